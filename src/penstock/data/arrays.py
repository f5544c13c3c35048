"""Arrays: in memory, in `.npy` files and in `.npz` archives, mapped wherever they can be.

Rows are views: nothing is read before it is used, and nothing is copied unless asked. A member of
an `.npz` that is stored and not compressed lies in the file as an `.npy` does, and is mapped too.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import mmap
import os
import struct
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, TypeGuard

import numpy as np

from penstock.data.chunk import Array, Chunk, Fault
from penstock.data.features import Features, chosen, native, spec_of, stack
from penstock.data.files import is_local, open_binary, read_into
from penstock.data.joined import ROW_KEY, Block, check_key, key_array
from penstock.data.source import Source, bounds, chunk_of, digest
from penstock.errors import InputError
from penstock.spec import Signature, refuse_mask


class Arrays(Source):
    """One array, or several of as many rows, in memory.

    What is no text among texts is refused where it is found at once, and else fails its row.
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        columns: Sequence[str] | None = None,
        key: str | None = None,
    ) -> None:
        given = {str(name): array for name, array in arrays.items()}
        names = chosen(list(given), columns, "the dict of arrays")
        self._arrays = {name: _loaded(given[name], name) for name in names}
        if not self._arrays:
            raise InputError("expected at least one array, got an empty dict")
        self._signature = tuple(spec_of(array, name) for name, array in self._arrays.items())
        counts = {name: len(array) for name, array in self._arrays.items()}
        self._rows = _same_rows(counts, "the arrays")
        self._keys: Array = np.arange(self._rows)
        self._key = ""
        if key not in (None, ROW_KEY):
            every = self._arrays | {
                name: _loaded(given[name], name) for name in given if name == key
            }
            check_key(key or "", tuple(spec_of(array, name) for name, array in every.items()))
            self._keys, self._key = key_array(every[key or ""]), key or ""

    @property
    def rows(self) -> int:
        """As many as every array has."""
        return self._rows

    @property
    def signature(self) -> Signature:
        """What the arrays are."""
        return self._signature

    def read(self, start: int, stop: int, out: Mapping[str, Array] | None = None) -> Chunk:
        """Views of the arrays."""
        start, stop = bounds(start, stop, self._rows)
        faults: dict[int, Fault] = {}
        columns = {
            name: _texts(array[start:stop], name, faults) for name, array in self._arrays.items()
        }
        nameless: dict[int, Fault] = {}
        keys = _texts(self._keys[start:stop], self._key, nameless)
        return chunk_of(start, columns, keys, nameless | faults, out, nameless)

    def only(self, names: Collection[str]) -> Source:
        """These arrays."""
        kept = {name: array for name, array in self._arrays.items() if name in names}
        if len(kept) == len(self._arrays):
            return self
        signature = tuple(spec for spec in self._signature if spec.name in kept)
        return self._narrowed(names, _arrays=kept, _signature=signature)

    def fingerprint(self) -> str:
        """Of every byte: there is no time of writing to go by."""
        return digest(
            self._signature,
            self._rows,
            *(_content(array) for array in (*self._arrays.values(), self._keys)),
        )


class ArrayFile:
    """One `.npy` or `.npz` file, as a `Reader`."""

    def __init__(self, path: str, columns: Sequence[str] | None, features: Features) -> None:
        if path.lower().endswith(".npz"):
            self._arrays = _open_archive(path, columns)
        else:
            self._arrays = {name: open_npy(path) for name in chosen([""], columns, path)}
        empty = {name: array.rows(0, 0) for name, array in self._arrays.items()}
        self.signature: Signature = tuple(spec_of(array, name) for name, array in empty.items())
        counts = {name: len(array) for name, array in self._arrays.items()}
        self.rows = _same_rows(counts, path)

    def read(self, start: int, stop: int, names: Sequence[str]) -> Block:
        """Views of the mapped file."""
        return {name: native(self._arrays[name].rows(start, stop)) for name in names}, {}

    def sizes(self, start: int, stop: int, names: Sequence[str]) -> Array:
        """The same for all."""
        empty = [self._arrays[name].rows(0, 0) for name in names]
        return np.full(stop - start, sum(a.itemsize * math.prod(a.shape[1:]) for a in empty))


_AT_A_TIME = 512 << 10  # bytes, as many as a core's cache has room for


class _Mapped(np.memmap[Any, Any]):
    """Rows of a file that lies where its path says, as it is.

    Whoever copies them need not look at them: they can be read from the file, which tells when that
    was cut short meanwhile. To look at such rows would end the process (SIGBUS).
    """

    _mmap: mmap.mmap  # numpy's

    def read_into(self, target: Array, address: int) -> None:
        """What lies in the map from this address on, from the file. Raises `Shorter`."""
        mapped = self.offset - self.offset % mmap.ALLOCATIONGRANULARITY  # what begins there
        at = address - np.frombuffer(self._mmap, np.uint8).ctypes.data
        read_into(str(self.filename), mapped + at, target)


@dataclass(frozen=True)
class Stored:
    """An array in a file, mapped anew for every read: that costs microseconds, and in between
    neither a descriptor nor memory is held, however many files there are."""

    path: str
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, start: int, stop: int) -> Array:
        """A read-only view."""
        shape = (stop - start, *self.shape[1:])
        if 0 in shape:
            return np.empty(shape, self.dtype)
        try:
            if self.fortran:
                whole = _Mapped(self.path, self.dtype, "r", self.offset, self.shape, "F")
                return whole[start:stop]
            skipped = start * self.dtype.itemsize * math.prod(shape[1:])
            return _Mapped(self.path, self.dtype, "r", self.offset + skipped, shape)
        except ValueError as error:
            raise InputError(f"{self.path} is shorter than it was ({error})") from None


@dataclass(frozen=True)
class Held:
    """An array that had to be read as a whole."""

    array: Array

    def __len__(self) -> int:
        return len(self.array)

    def rows(self, start: int, stop: int) -> Array:
        """A view."""
        return self.array[start:stop]


def brought(array: Array) -> Array:
    """The same rows in memory of their own, where they lie in a file that is mapped or in another's
    memory: whoever uses them does not wait for the disk, and may look at them. Raises `Shorter`
    where the file was cut short."""
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if isinstance(base, np.ndarray):
        return array
    if not _in_one_piece(array):
        return np.array(array)
    whole = np.empty(array.shape, array.dtype)
    array.read_into(whole, array.ctypes.data)
    return whole


def awaited(array: Array) -> bool:
    """Wait for the disk for rows that will only be copied (`transport.copying`). Returns whether
    they lie in a file, in one piece. Raises `Shorter` where that was cut short."""
    if not _in_one_piece(array):
        return False
    some = np.empty(_AT_A_TIME, np.uint8)
    for at in range(0, array.nbytes, _AT_A_TIME):
        array.read_into(some[: array.nbytes - at], array.ctypes.data + at)
    return True


def _in_one_piece(array: Array) -> TypeGuard[_Mapped]:
    return isinstance(array, _Mapped) and bool(array.size) and array.flags.c_contiguous


def _loaded(value: Any, name: str) -> Array:
    label = f"column {name!r}" if name else "the array"
    refuse_mask(value, label)
    array = native(np.asarray(value))
    strange = [v for v in array.ravel()[:100] if not isinstance(v, (str, bytes))]
    if array.dtype != object or not strange:
        return array
    with contextlib.suppress(ValueError):  # tables have lists in their columns
        stacked = np.array(array.tolist())
        if stacked.dtype.kind in "biufc":
            return stacked
    raise InputError(f"{label}: expected numbers or texts, got a {type(strange[0]).__name__}")


def _texts(rows: Array, name: str, faults: dict[int, Fault]) -> Array:
    """The rows as they are, where they are texts or numbers."""
    if rows.dtype != object or all(isinstance(item, (str, bytes)) for item in rows.ravel()):
        return rows
    return stack(rows.tolist(), spec_of(rows, name), faults)


def _same_rows(counts: Mapping[str, int], where: str) -> int:
    if len(set(counts.values())) > 1:
        raise InputError(f"{where}: expected as many rows in every array, got {dict(counts)}")
    return next(iter(counts.values()), 0)


def _content(array: Array) -> str:
    whole = hashlib.sha256()
    step = max(1, (16 << 20) // max(array[:1].nbytes, 1))
    for at in range(0, len(array), step):
        block = array[at : at + step]
        texts = block.dtype == object
        whole.update(repr(block.tolist()).encode() if texts else np.ascontiguousarray(block).data)
    return whole.hexdigest()


def open_npy(path: str) -> Stored | Held:
    """The array in a file; of a local one only where it lies."""
    try:
        with open_binary(path) as file:
            if is_local(path):
                return _stored(path, file)
            return _held(np.lib.format.read_array(file, allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise InputError(f"{path}: expected a .npy file ({error})") from None


def _open_archive(path: str, columns: Sequence[str] | None) -> dict[str, Stored | Held]:
    """The arrays that are chosen; whatever else there is."""
    name = ""
    try:
        with open_binary(path) as file, zipfile.ZipFile(file) as archive:
            found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if not found:
                raise InputError(f"{path} holds no arrays")
            if len(found) == 1 and list(found) != list(columns or ()):
                found = {"": next(iter(found.values()))}
            arrays = {}
            for name in chosen(list(found), columns, path):
                arrays[name] = _member(path, archive, found[name])
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        label = f"{path}: {name!r}" if name else path
        raise InputError(f"{label}: expected a .npz file ({error})") from None
    return arrays


def _member(path: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Stored | Held:
    if info.compress_type != zipfile.ZIP_STORED or not is_local(path):
        with archive.open(info) as member:
            return _held(np.lib.format.read_array(member, allow_pickle=False))
    with open(path, "rb") as file:
        file.seek(info.header_offset + 26)  # of the lengths of the name and of what follows it
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(name + extra, os.SEEK_CUR)
        return _stored(path, file)


def _stored(path: str, file: IO[bytes]) -> Stored:
    """The array whose header begins where the file stands."""
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
        version, np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which are not opened")
    if not shape:
        raise ValueError("expected rows along the first axis, got a scalar")
    array = Stored(path, file.tell(), dtype, shape, fortran)
    end = array.offset + dtype.itemsize * math.prod(shape)
    if end > os.path.getsize(path):
        raise ValueError(f"it ends before its last row: expected {end} bytes")
    return array


def _held(array: Array) -> Held:
    if array.ndim == 0:
        raise ValueError("expected rows along the first axis, got a scalar")
    return Held(array)
