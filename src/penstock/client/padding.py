"""Rows of different lengths made rows of one length, before they are sent.

A model of texts takes any length, but only rows of one shape can share a batch, and every shape is
compiled once. So a model may declare (`Pad`) that an axis is padded to one of a few sizes, with
what value, and which of its inputs get the mask or the lengths of the rows: callers pass rows as
they are, an array, or a list of arrays of different lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import InputError
from penstock.spec import STRING, ModelSpec, Pad, TensorSpec, refuse_mask
from penstock.transport.tensors import Array, numpy_dtype


class Trim(NamedTuple):
    """An output's axis (of a row) is as long as the longest row was; what is behind is padding."""

    output: str
    axis: int
    length: int


def pad_inputs(x: Any, pads: Sequence[Pad], spec: ModelSpec) -> tuple[Any, tuple[Trim, ...]]:
    """What a caller passed, padded, with masks and lengths; and what to cut from the outputs."""
    bare = not isinstance(x, Mapping)
    given: dict[str, Any] = {pads[0].input: x} if bare else dict(x)
    declared = {tensor.name: tensor for tensor in spec.inputs or ()}
    trims: list[Trim] = []
    for pad in pads:
        if pad.input not in given:
            continue  # whoever checks the inputs says so
        label = f"input {pad.input!r}" if pad.input else "the input"
        rows = _rows_of(given[pad.input], declared.get(pad.input), label)
        lengths = _lengths(rows, pad, label)
        longest = max(lengths, default=0)
        size = next((size for size in pad.sizes if size >= longest), None)
        if size is None:
            raise InputError(
                f"{label}: a row has {longest} along axis {pad.axis}; "
                f"rows are padded to at most {pad.sizes[-1]}"
            )
        given[pad.input] = _padded(rows, pad, size, label)
        known = np.asarray(lengths, np.int64)
        if pad.mask and pad.mask not in given:
            mask = np.arange(size) < known[:, None]
            given[pad.mask] = mask.astype(_dtype(declared.get(pad.mask), "bool"))
        if pad.lengths and pad.lengths not in given:
            given[pad.lengths] = known.astype(_dtype(declared.get(pad.lengths), "int32"))
        trims += [Trim(output, pad.axis, longest) for output in pad.trim]
    alone = bare and len(given) == 1
    return (next(iter(given.values())) if alone else given), tuple(trims)


def trim_output(name: str, array: Array, trims: Sequence[Trim]) -> Array:
    """An output without the padding of the inputs."""
    for trim in trims:
        if trim.output == name and array.ndim > trim.axis + 1:
            array = array[(slice(None),) * (trim.axis + 1) + (slice(trim.length),)]
    return array


def _rows_of(value: Any, declared: TensorSpec | None, label: str) -> Array | list[Array]:
    refuse_mask(value, label)
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        got = type(value).__name__
        raise InputError(f"{label}: expected an array or a list of rows, got {got}")
    dtype = None
    if declared is not None and not any(hasattr(row, "dtype") for row in value):
        dtype = np.dtype(object) if declared.dtype == STRING else numpy_dtype(declared.dtype)
    try:
        rows = [np.asarray(row, dtype) for row in value]
        if any(row.dtype.kind in "SU" for row in rows):  # fixed-width texts lose nuls at their end
            rows = [np.asarray(row, object) for row in value]
        return rows
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{label}: a row is not an array: {error}") from None


def _lengths(rows: Array | list[Array], pad: Pad, label: str) -> list[int]:
    shapes = [rows.shape[1:]] * len(rows) if isinstance(rows, np.ndarray) else None
    shapes = [row.shape for row in rows] if shapes is None else shapes
    for shape in shapes:
        if len(shape) <= pad.axis:
            raise InputError(
                f"{label}: axis {pad.axis} of a row is padded, and a row has the shape {shape}"
            )
        if len(shape) != len(shapes[0]) or any(
            one != other
            for axis, (one, other) in enumerate(zip(shape, shapes[0], strict=True))
            if axis != pad.axis
        ):
            raise InputError(
                f"{label}: rows differ in more than axis {pad.axis}: {shapes[0]} and {shape}"
            )
    return [shape[pad.axis] for shape in shapes]


def _padded(rows: Array | list[Array], pad: Pad, size: int, label: str) -> Array:
    if isinstance(rows, np.ndarray) and rows.shape[pad.axis + 1] == size:
        return rows
    if not len(rows):
        if isinstance(rows, np.ndarray):
            shape = (*rows.shape[: pad.axis + 1], size, *rows.shape[pad.axis + 2 :])
            return np.empty(shape, rows.dtype)
        raise InputError(f"{label}: an empty list says nothing of its rows; pass an empty array")
    first = rows[0]
    dtype = rows.dtype if isinstance(rows, np.ndarray) else np.result_type(*_types(rows, label))
    shape = (len(rows), *first.shape[: pad.axis], size, *first.shape[pad.axis + 1 :])
    value = b"" if dtype.kind in "OSU" and pad.value == 0 else pad.value
    padded: Array = np.full(shape, value, dtype)
    before = (slice(None),) * pad.axis
    for target, row in zip(padded, rows, strict=True):
        target[(*before, slice(row.shape[pad.axis]))] = row
    return padded


def _types(rows: list[Array], label: str) -> list[np.dtype[Any]]:
    types = {row.dtype for row in rows}
    if len(types) > 1 and any(kind.kind == "O" for kind in types):
        raise InputError(f"{label}: rows of different kinds: {', '.join(map(str, types))}")
    return list(types)


def _dtype(declared: TensorSpec | None, otherwise: str) -> np.dtype[Any]:
    return numpy_dtype(declared.dtype if declared is not None else otherwise)
