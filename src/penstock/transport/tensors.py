"""How arrays lie in a slot, and how they get in and out. Only this and `copying` know numpy.

A *block* is what one side writes for the other: the same number of rows of each tensor. Tensors of
fixed size come first, each from the next multiple of 64 bytes; then strings, each as offsets
(uint64, one more than elements) followed by the bytes. A block says nothing of shapes and dtypes:
those are in the messages (`Signature`), so whoever can still write the memory cannot change them.
The reader copies a string's offsets before it checks them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from penstock.errors import InputError
from penstock.spec import (
    DTYPES,
    MAX_NAME_BYTES,
    MAX_RANK,
    MAX_TENSORS,
    STRING,
    ModelSpec,
    Signature,
    TensorSpec,
    refuse_mask,
)
from penstock.transport.copying import copied, copy

ALIGNMENT = 64
Array = np.ndarray[Any, Any]


class BadBlock(Exception):
    """A block that cannot be read: its offsets lie outside it, or it is too short."""


def align(size: int) -> int:
    """The next multiple of 64."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of one of our names."""
    if name == STRING:
        return np.dtype(object)
    return np.dtype(getattr(ml_dtypes, name, name))


_NAMES: dict[np.dtype[Any], str] = {
    numpy_dtype(name): name for name in DTYPES if name != STRING
} | {numpy_dtype(name).newbyteorder(): name for name in DTYPES if name != STRING}


def dtype_name(dtype: np.dtype[Any], label: str = "the array") -> str:
    """Our name of a numpy dtype, whatever its byte order. Raises `InputError` for the others."""
    name = _NAMES.get(dtype)
    if name is None:
        if dtype.kind not in "SUOT":
            raise InputError(
                f"{label}: dtype {dtype} cannot be sent; possible: {', '.join(DTYPES)}"
            )
        name = STRING
    return name


class Plan:
    """How blocks of one signature are laid out."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.fixed = [
            (index, numpy_dtype(t.dtype), t.sizes, t.row_bytes)
            for index, t in enumerate(signature)
            if t.dtype != STRING
        ]
        self.strings = [
            (index, t.sizes, t.elements) for index, t in enumerate(signature) if t.dtype == STRING
        ]
        self.row_bytes = sum(row_bytes for *_, row_bytes in self.fixed)
        self.single = len(self.fixed) == 1 and not self.strings
        self.bare = self.single and signature[0].name == ""

    def fixed_bytes(self, rows: int) -> int:
        """Bytes that the tensors of fixed size take."""
        if self.single:
            return -(-rows * self.row_bytes // ALIGNMENT) * ALIGNMENT
        return sum(align(rows * row_bytes) for *_, row_bytes in self.fixed)

    def size(self, arrays: list[Array], start: int, stop: int) -> int:
        """Bytes of a block with these rows of these arrays."""
        size = self.fixed_bytes(stop - start)
        if self.single:
            return size
        for index, _, elements in self.strings:
            flat = arrays[index][start:stop].ravel()
            size += align(8 * ((stop - start) * elements + 1) + sum(map(len, flat)))
        return size

    def write(self, view: memoryview, at: int, arrays: list[Array], start: int, stop: int) -> None:
        """Write these rows as a block at `at`. The room was measured with `size`."""
        rows = stop - start
        if self.single:
            _, dtype, shape, _ = self.fixed[0]
            source = arrays[0]
            copy(
                np.ndarray((rows, *shape), dtype, view, at),
                source if len(source) == rows else source[start:stop],
            )
            return
        for index, dtype, shape, row_bytes in self.fixed:
            target: Array = np.ndarray((rows, *shape), dtype, view, at)
            source = arrays[index]
            copy(target, source if len(source) == rows else source[start:stop])
            at += align(rows * row_bytes)
        for index, _, elements in self.strings:
            at = _write_strings(view, at, arrays[index][start:stop].ravel(), rows * elements)

    def read_single(self, view: memoryview, at: int, end: int, rows: int) -> Array:
        """A copy of the only tensor of a block of `rows` rows that lies in `at`…`end`."""
        _, dtype, shape, row_bytes = self.fixed[0]
        if at + rows * row_bytes > end:
            raise BadBlock(f"{rows} rows of {row_bytes} bytes end behind the block")
        return copied(np.ndarray((rows, *shape), dtype, view, at))

    def read(
        self, view: memoryview, at: int, end: int, rows: int, start: int, stop: int
    ) -> list[Array]:
        """Copies of rows `start` to `stop` of a block of `rows` rows that lies in `at`…`end`."""
        arrays: list[Array] = [_NOTHING] * len(self.signature)
        for index, dtype, shape, row_bytes in self.fixed:
            if at + rows * row_bytes > end:
                raise BadBlock(f"{rows} rows of {row_bytes} bytes end behind the block")
            source: Array = np.ndarray((stop - start, *shape), dtype, view, at + start * row_bytes)
            arrays[index] = copied(source)
            at += align(rows * row_bytes)
        for index, shape, elements in self.strings:
            flat, at = _read_strings(
                view, at, end, rows * elements, start * elements, stop * elements
            )
            arrays[index] = flat.reshape((stop - start, *shape))
        return arrays


_NOTHING: Array = np.empty(0)


@lru_cache(maxsize=1024)
def plan_of(signature: Signature) -> Plan:
    """The plan of a signature; kept, because the same few come again and again."""
    return Plan(signature)


def _write_strings(view: memoryview, at: int, items: Array, count: int) -> int:
    offsets: Array = np.ndarray(count + 1, np.uint64, view, at)
    offsets[0] = 0
    np.cumsum(np.fromiter(map(len, items), np.uint64, count), out=offsets[1:])
    data = b"".join(items)
    begin = at + 8 * (count + 1)
    view[begin : begin + len(data)] = data
    return at + align(8 * (count + 1) + len(data))


def _read_strings(
    view: memoryview, at: int, end: int, count: int, first: int, last: int
) -> tuple[Array, int]:
    begin = at + 8 * (count + 1)
    if begin > end:
        raise BadBlock(f"the offsets of {count} strings end behind the block")
    offsets = np.ndarray(count + 1, np.uint64, view, at).copy()
    total = int(offsets[-1])
    if offsets[0] != 0 or total > end - begin or bool(np.any(offsets[1:] < offsets[:-1])):
        raise BadBlock("a string's offsets do not rise within the block")
    low = int(offsets[first])
    data = bytes(view[begin + low : begin + int(offsets[last])])
    bounds = (offsets[first : last + 1] - offsets[first]).tolist()
    items = np.empty(last - first, object)
    for index in range(last - first):
        items[index] = data[bounds[index] : bounds[index + 1]]
    return items, at + align(8 * (count + 1) + total)


def collect(x: Any, spec: ModelSpec) -> tuple[Signature, list[Array], int]:
    """What a caller passed, as signature, arrays in its order, and number of rows.

    Raises `InputError` for what cannot be sent or does not fit the model.
    """
    if isinstance(x, Mapping):
        if not x:
            raise InputError("an empty dict: expected one array for each input")
        if len(x) > MAX_TENSORS:
            raise InputError(f"{len(x)} inputs; at most {MAX_TENSORS} can be sent")
        named = [(_checked_name(name), value) for name, value in x.items()]
    else:
        named = [("", x)]
    wanted = {tensor.name: tensor.dtype for tensor in spec.inputs or ()}
    only = spec.inputs[0].dtype if spec.inputs and len(spec.inputs) == 1 else None
    tensors: list[TensorSpec] = []
    arrays: list[Array] = []
    rows = -1
    for name, value in named:
        label = f"input {name!r}" if name else "the input"
        array = _array(value, wanted.get(name, only if not name else None), label)
        if array.ndim == 0:
            raise InputError(f"{label}: expected an array whose first axis is rows, got a scalar")
        if array.ndim - 1 > MAX_RANK:
            raise InputError(f"{label} has {array.ndim - 1} axes a row; at most {MAX_RANK}")
        if rows not in (-1, len(array)):
            raise InputError(f"{label} has {len(array)} rows, the inputs before it have {rows}")
        rows = len(array)
        dtype = dtype_name(array.dtype, label)
        tensors.append(TensorSpec(dtype, array.shape[1:], name))
        arrays.append(encode_strings(array, label) if dtype == STRING else array)
    signature = tuple(tensors)
    spec.check(signature)
    return signature, arrays, rows


def _checked_name(name: Any) -> str:
    if isinstance(name, str) and name and "\0" not in name:
        with contextlib.suppress(UnicodeEncodeError):
            if len(name.encode()) <= MAX_NAME_BYTES:
                return name
    raise InputError(f"an input's name is a text of 1 to {MAX_NAME_BYTES} bytes; got {name!r}")


def _array(value: Any, wanted: str | None, label: str) -> Array:
    if type(value) is not np.ndarray:
        refuse_mask(value, label)
    if isinstance(value, np.ndarray):
        return value
    as_dtype = numpy_dtype(wanted) if wanted and not hasattr(value, "dtype") else None
    try:
        array: Array = np.asarray(value, dtype=as_dtype)
        if array.dtype.kind in "SU" and not hasattr(value, "dtype"):
            array = np.asarray(value, dtype=object)  # fixed-width texts lose nuls at their end
        return array
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{label}: not an array: {error}") from None


def encode_strings(array: Array, label: str) -> Array:
    """Texts and bytes of any kind as an object array of bytes; texts become UTF-8."""
    encoded = np.empty(array.shape, object)
    flat = encoded.reshape(-1)
    for index, item in enumerate(array.reshape(-1).tolist()):
        if isinstance(item, str):
            try:
                flat[index] = item.encode()
            except UnicodeEncodeError as error:
                raise InputError(f"{label}: a text cannot be sent as UTF-8: {error}") from None
        elif isinstance(item, bytes):
            flat[index] = item
        else:
            raise InputError(
                f"{label}: expected text or bytes in an array of objects, got {type(item).__name__}"
            )
    return encoded


def structure(signature: Signature, arrays: list[Array]) -> Any:
    """The array alone when it has no name, else a dict by name: what callers and models see."""
    if len(signature) == 1 and signature[0].name == "":
        return arrays[0]
    return {tensor.name: array for tensor, array in zip(signature, arrays, strict=True)}


def address_of(array: Array) -> int:
    """Where an array's bytes begin."""
    return int(array.__array_interface__["data"][0])


def empty_aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array that begins at a multiple of 64 bytes, as TensorFlow likes it."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    skip = -address_of(raw) % ALIGNMENT
    return raw[skip : skip + size].view(dtype).reshape(shape)


def answer_room(
    offset: int, length: int, input_bytes: int, total: int, start: int, rows: int
) -> tuple[int, int]:
    """Where in the segment the answer of rows `start`… of a slot may lie: begin and end.

    The room behind the input is divided evenly between the slot's `total` rows, so that rows that
    are answered apart do not overlap, and both sides can tell where each of them is.
    """
    begin = min(offset + align(input_bytes), offset + length)
    room = offset + length - begin
    if rows >= total:
        return begin, begin + room
    return begin + room * start // total, begin + room * (start + rows) // total
