"""Between Arrow's columns and arrays of rows.

Numbers and booleans become what they are, lists become axes, text `str`, binary `bytes`, and
dates, times and decimals, for which models have no dtype, their text. What has no place in an
array (a null, a list of another length) makes its row fail; `fill` gives nulls a value instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.data.chunk import Array, Fault
from penstock.data.extras import need
from penstock.data.features import blank, lost, numpy_dtype
from penstock.errors import InputError
from penstock.spec import DTYPES, STRING, TensorSpec

_FROM_ARROW = {"double": "float64", "float": "float32", "halffloat": "float16"}


def spec_of_field(field: Any, sample: Callable[[], Any], where: str) -> TensorSpec:
    """What a column's rows look like. `sample()` gives a row, for the lengths of its lists."""
    kind, shape = field.type, []
    values = sample() if _has_open_list(kind) else None
    while _is_list(kind):
        if values is None:
            shape.append(kind.list_size)
        else:
            shape.append(len(values[0]) if len(values) else 0)
            values = values.flatten().drop_null()
        kind = kind.value_type
    return TensorSpec(_dtype_name(kind, field, where), tuple(shape), field.name)


def to_array(column: Any, spec: TensorSpec, fill: Any = None) -> tuple[Array, dict[int, Fault]]:
    """A column's rows, and those that do not fit."""
    arrow = need("pyarrow", "Arrow")
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if arrow.types.is_dictionary(whole.type):
        whole = whole.dictionary_decode()
    if _is_binary(whole.type) and spec.dtype != STRING:
        return _from_buffers(whole if fill is None else whole.fill_null(fill), spec)
    if _is_list(whole.type) and len(spec.shape) > 1 and not _is_list(whole.type.value_type):
        flat = TensorSpec(spec.dtype, (math.prod(spec.sizes),), spec.name)
        array, faults = _convert(whole, flat, fill)
        return array.reshape(len(array), *spec.sizes), faults
    return _convert(whole, spec, fill)


def from_array(array: Array, label: str) -> Any:
    """Rows as an Arrow array: axes beyond the first become lists of fixed size."""
    arrow = need("pyarrow", "Arrow")
    flat = array.reshape(-1)
    if array.dtype.kind in "OSUT":
        values = _texts(flat, label)
    else:
        if array.dtype.kind == "V":  # bfloat16, float8, int4: exactly floats
            flat = flat.astype(np.float32)
        if flat.dtype.kind not in "biuf":
            raise InputError(f"{label}: dtype {array.dtype} has no place in Arrow and Parquet")
        values = arrow.array(np.ascontiguousarray(flat.astype(flat.dtype.newbyteorder("="))))
    for axis in range(array.ndim - 1, 0, -1):
        size = array.shape[axis]
        if size == 0:
            raise InputError(f"{label}: an axis of size 0 in {array.shape[1:]}")
        element = arrow.field("element", values.type)  # Parquet's name for it
        values = arrow.FixedSizeListArray.from_arrays(values, type=arrow.list_(element, size))
    return values


def text_sizes(table: Any) -> Array:
    """Bytes of each row's texts."""
    sizes = np.zeros(len(table), np.int64)
    lists = need("pyarrow", "Arrow").types.is_fixed_size_list
    for column in table.columns:
        whole = column.combine_chunks()
        while lists(whole.type) and not whole.null_count:
            whole = whole.flatten()
        if len(table) and (_is_text(whole.type) or _is_binary(whole.type)):
            lengths = need("pyarrow.compute", "Arrow").binary_length(whole).fill_null(0)
            sizes += lengths.to_numpy(zero_copy_only=False).reshape(len(table), -1).sum(1)
    return sizes


def _texts(flat: Array, label: str) -> Any:
    arrow = need("pyarrow", "Arrow")
    items = flat.tolist()
    if all(isinstance(item, str) for item in items):
        # A file's name may hold bytes that are no text.
        items = [item.encode(errors="backslashreplace").decode() for item in items]
        return arrow.array(items, arrow.string())
    if all(isinstance(item, bytes) for item in items):
        return arrow.array(items, arrow.binary())
    found = sorted({type(item).__name__ for item in items})
    raise InputError(f"{label}: expected only str or only bytes, got {', '.join(found)}")


def _convert(whole: Any, spec: TensorSpec, fill: Any) -> tuple[Array, dict[int, Fault]]:
    faults: dict[int, Fault] = {}
    if fill is not None and not _is_list(whole.type):
        whole = whole.fill_null(fill)
    label = f"{spec.name!r}: " if spec.name else ""
    fits = np.ones(len(whole), bool)
    if whole.null_count:
        fits = whole.is_valid().to_numpy(zero_copy_only=False)
        null = Fault("null", f"{label}expected {spec.dtype}, got null")
        faults = dict.fromkeys(np.flatnonzero(~fits).tolist(), null)
    if not spec.shape:
        values = _numbers(_values(whole.drop_null() if faults else whole, spec), spec, fits, faults)
    else:
        values = _lists(whole, spec, fits, faults, fill)
    if not faults:
        return values, faults
    array = blank(spec, len(whole), b"" if _is_binary(whole.type) else "")
    array[fits] = values
    return array, faults


def _lists(whole: Any, spec: TensorSpec, fits: Array, faults: dict[int, Fault], fill: Any) -> Array:
    """The rows that fit; the others are taken out of `fits`."""
    arrow, compute = need("pyarrow", "Arrow"), need("pyarrow.compute", "Arrow")
    size = spec.sizes[0]
    if _is_list(whole.type):
        lengths = compute.list_value_length(whole).fill_null(size).to_numpy(zero_copy_only=False)
    else:
        raise InputError(f"column {spec.name!r}: expected lists of {size}, got {whole.type}")
    for row in np.flatnonzero(lengths != size).tolist():
        fits[row] = False
        message = f"expected {spec.dtype} {spec.shape}, got a list of {lengths[row]}"
        faults[row] = Fault("shape", f"{spec.name!r}: {message}")
    kept = whole.filter(arrow.array(fits)) if faults else whole
    inner = TensorSpec(spec.dtype, spec.shape[1:], spec.name)
    values, below = _convert(kept.flatten(), inner, fill)
    values = values.reshape(int(fits.sum()), *spec.sizes)
    if below:
        rows = np.flatnonzero(fits)
        bad: dict[int, Fault] = {}
        for at, fault in below.items():
            bad.setdefault(at // max(size, 1), fault)
        for position, fault in bad.items():
            fits[rows[position]] = False
            faults[int(rows[position])] = fault
        values = np.delete(values, list(bad), axis=0)
    return values


def _values(whole: Any, spec: TensorSpec) -> Array:
    arrow = need("pyarrow", "Arrow")
    kind = whole.type
    if spec.dtype == STRING:
        if not _is_text(kind) and not _is_binary(kind):
            whole = whole.cast(arrow.string())
        texts = np.empty(len(whole), object)
        texts[:] = whole.to_pylist()
        return texts
    types = arrow.types
    if not (types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)):
        raise InputError(f"column {spec.name!r}: expected {spec.dtype}, got {kind}")
    array: Array = whole.to_numpy(zero_copy_only=False)
    return array


def _numbers(values: Array, spec: TensorSpec, fits: Array, faults: dict[int, Fault]) -> Array:
    """As numbers of the column's dtype; rows whose number is none are taken out of `fits`."""
    dtype = numpy_dtype(spec.dtype)
    bad = lost(values, dtype)
    if bad.any():
        label = f"{spec.name!r}: " if spec.name else ""
        for row, value in zip(np.flatnonzero(fits)[bad].tolist(), values[bad], strict=True):
            fits[row] = False
            faults[row] = Fault("type", f"{label}expected {spec.dtype}, got {value}")
        values = values[~bad]
    return values.astype(dtype, copy=False)


def _from_buffers(whole: Any, spec: TensorSpec) -> tuple[Array, dict[int, Fault]]:
    faults: dict[int, Fault] = {}
    array = blank(spec, len(whole))
    for row, data in enumerate(whole.to_pylist()):
        if data is None or len(data) != spec.row_bytes:
            got = "null" if data is None else f"{len(data)} bytes"
            message = f"expected {spec.row_bytes} bytes of {spec.dtype} {spec.shape}, got {got}"
            faults[row] = Fault("null" if data is None else "shape", f"{spec.name!r}: {message}")
        else:
            array[row] = np.frombuffer(data, array.dtype).reshape(spec.sizes)
    return array, faults


def _dtype_name(kind: Any, field: Any, where: str) -> str:
    types = need("pyarrow", "Arrow").types
    if types.is_dictionary(kind):
        return _dtype_name(kind.value_type, field, where)
    name = _FROM_ARROW.get(str(kind), str(kind))
    if name in DTYPES and name != STRING:
        return name
    if _is_text(kind) or _is_binary(kind) or types.is_temporal(kind) or types.is_decimal(kind):
        return STRING
    raise InputError(
        f"{where}: column {field.name!r} is {field.type}, which does not fit into an array; "
        "leave it out with columns=…"
    )


def _is_list(kind: Any) -> bool:
    types = need("pyarrow", "Arrow").types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _has_open_list(kind: Any) -> bool:
    fixed = need("pyarrow", "Arrow").types.is_fixed_size_list
    return _is_list(kind) and (not fixed(kind) or _has_open_list(kind.value_type))


def _is_binary(kind: Any) -> bool:
    types = need("pyarrow", "Arrow").types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def _is_text(kind: Any) -> bool:
    types = need("pyarrow", "Arrow").types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))
