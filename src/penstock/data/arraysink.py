"""`.npy`: one column, ready to be mapped. Keys have no place in it; write them beside it."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from penstock.data.arrays import Held, Stored, open_npy
from penstock.data.chunk import Array
from penstock.data.sinks import Sink
from penstock.errors import InputError

_BLOCK_BYTES = 16 << 20


class NpySink(Sink):
    """One array. Texts get the width of the longest one."""

    suffix = ".npy"
    keeps_keys = False

    def _write(self, file: IO[bytes], columns: dict[str, Array]) -> None:
        if len(columns) != 1:
            raise InputError(
                f".npy files hold one column, got {', '.join(columns)}: choose one, "
                "or write Parquet"
            )
        array = _storable(next(iter(columns.values())))
        _header(file, array.dtype, array.shape)
        for block in _blocks(array):
            file.write(block.reshape(-1).view(np.uint8).data)

    def join(self, parts: Iterable[str], file: IO[bytes]) -> None:
        """One header and all rows: as they come, where the first ones tell what all will be."""
        arrivals = iter(parts)
        seen: list[str] = []
        kind: Array | None = None  # of the rows that were written
        rows = 0
        for part in arrivals:
            seen.append(part)
            array = open_npy(part)
            found = array.rows(0, 0)
            if not len(array):
                continue
            if kind is None:
                if not _may_grow(found, file):
                    break
                kind = found
                _header(file, kind.dtype, kind.shape)
            elif (found.dtype, found.shape) != (kind.dtype, kind.shape):
                _check_joinable(part, found, kind.dtype, kind.shape[1:])
                file.seek(0)
                file.truncate()
                break
            _write_rows(file, array, kind.dtype)
            rows += len(array)
        else:
            if kind is not None:
                file.seek(0)
                _header(file, kind.dtype, (rows, *kind.shape[1:]))
                file.seek(0, os.SEEK_END)
                return
        _join_all([*seen, *arrivals], file)

    def count(self, file: IO[bytes]) -> int:
        """As the header says, or fewer where bytes are missing."""
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        begin, end = file.tell(), file.seek(0, os.SEEK_END)
        size = dtype.itemsize * math.prod(shape[1:])
        return min(shape[0], (end - begin) // size) if size else shape[0]


def _may_grow(kind: Array, file: IO[bytes]) -> bool:
    """Whether rows can be written before it is known how many there are, and how wide."""
    if kind.dtype.kind in "SU" or not file.seekable():
        return False
    lengths = set()
    for rows in (0, 1 << 60):
        header = io.BytesIO()
        _header(header, kind.dtype, (rows, *kind.shape[1:]))
        lengths.add(header.tell())
    return len(lengths) == 1


def _join_all(parts: Sequence[str], file: IO[bytes]) -> None:
    """Rows of whatever dtype has room for all of them."""
    if not parts:
        raise InputError("expected at least one part to join")
    arrays = [open_npy(part) for part in parts]
    kinds = [array.rows(0, 0) for array in arrays if len(array)] or [arrays[0].rows(0, 0)]
    dtype, shape = np.result_type(*(kind.dtype for kind in kinds)), kinds[0].shape[1:]
    for part, array in zip(parts, arrays, strict=True):
        if len(array):
            _check_joinable(part, array.rows(0, 0), dtype, shape)
    _header(file, dtype, (sum(map(len, arrays)), *shape))
    for array in arrays:
        _write_rows(file, array, dtype)


def _check_joinable(part: str, kind: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Rows may be wider or narrower numbers, or texts, of one kind and one shape."""
    if kind.shape[1:] != shape or kind.dtype.kind != dtype.kind:
        raise InputError(
            f"{part}: expected rows {dtype} {shape}, got {kind.dtype} {kind.shape[1:]}"
        )


def _write_rows(file: IO[bytes], array: Stored | Held, dtype: np.dtype[Any]) -> None:
    for block in _blocks(array.rows(0, len(array))):
        file.write(block.astype(dtype, copy=False).reshape(-1).view(np.uint8).data)


def _storable(array: Array) -> Array:
    if array.dtype.kind == "V":
        return array.astype(np.float32)  # bfloat16 and its like: numpy alone cannot read them
    if array.dtype.kind not in "OSUT":
        return array
    items = array.ravel().tolist()
    kinds = {type(item) for item in items} or {str}
    if kinds not in ({str}, {bytes}):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f".npy: expected numbers, or only str or only bytes, got {names}")
    found: Array = np.array(items, np.str_ if kinds == {str} else np.bytes_).reshape(array.shape)
    if found.ravel().tolist() != items:
        raise InputError(".npy: a text ends in a nul, which numpy drops; write Parquet")
    return found


def _header(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    description = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(file, description)


def _blocks(array: Array) -> Iterator[Array]:
    step = max(1, _BLOCK_BYTES // max(array[:1].nbytes, 1))
    for at in range(0, len(array), step):
        yield np.ascontiguousarray(array[at : at + step])
