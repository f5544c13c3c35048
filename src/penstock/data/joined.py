"""Many files of one kind as one source: which file a row lies in, and what its key is.

A format has only to be a `Reader` of one file. The columns of the first file that has rows are
those of all; a file that differs is refused when the source is opened, not in the middle of a job.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from penstock.data.chunk import Array, Chunk, Fault
from penstock.data.features import Features, same_columns
from penstock.data.listing import Listing
from penstock.data.source import Source, bounds, chunk_of, digest, runs_of
from penstock.errors import InputError
from penstock.spec import STRING, Signature

ROW_KEY, PATH_KEY = "#row", "#path"
_COLUMN_ROWS = 65_536  # of a whole column that are read at a time
_COLUMN_BYTES = 64 << 20
Block = tuple[dict[str, Array], dict[int, Fault]]


class Reader(Protocol):
    """One file. Keeps what it knows of it, and nothing open, between reads."""

    rows: int
    signature: Signature

    def read(self, start: int, stop: int, names: Sequence[str]) -> Block:
        """These rows of these columns; faults count from the first row that is read."""

    def sizes(self, start: int, stop: int, names: Sequence[str]) -> Array | None:
        """Bytes of each of these rows; `None` where only reading tells."""


class OpenFile(Protocol):
    """How a format opens a file: columns (`None`: all) and, after the first, what they are."""

    def __call__(self, path: str, columns: Sequence[str] | None, features: Features) -> Reader: ...


class Joined(Source):
    """Files of rows, one after the other."""

    def __init__(
        self,
        listing: Listing,
        open_file: OpenFile,
        *,
        columns: Sequence[str] | None = None,
        features: Features | None = None,
        key: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.listing = listing
        self._key = key or (ROW_KEY if len(listing) == 1 else PATH_KEY)
        self._by_column = self._key not in (ROW_KEY, PATH_KEY)
        wanted = None if columns is None else unique(columns)
        self._hidden = self._by_column and wanted is not None and self._key not in wanted
        if self._hidden:
            wanted = (*(wanted or ()), self._key)
        self._readers = _open_all(listing, open_file, wanted, features or {})
        self._all = self._readers[0].signature
        if self._by_column:
            check_key(self._key, self._all)
        self._starts = np.cumsum([0, *(reader.rows for reader in self._readers)])
        self._options = digest(self._key, sorted((options or {}).items()))
        self.together = max(getattr(reader, "together", 1) for reader in self._readers)

    @property
    def rows(self) -> int:
        """Those of all files together."""
        return int(self._starts[-1])

    @property
    def signature(self) -> Signature:
        """The columns of every file."""
        return self._all[:-1] if self._hidden else self._all

    def read(self, start: int, stop: int, out: Mapping[str, Array] | None = None) -> Chunk:
        """From each file what lies in it."""
        start, stop = bounds(start, stop, self.rows)
        names = [spec.name for spec in self._all]
        parts: list[dict[str, Array]] = []
        faults: dict[int, Fault] = {}
        keys: list[Array] = []
        nameless: set[int] = set()
        for file, low, high in self._within(start, stop):
            at = int(self._starts[file]) + low
            columns, found = self._readers[file].read(low, high, names)
            parts.append(columns)
            faults |= {row + at - start: fault for row, fault in found.items()}
            keys.append(self._keys(file, low, high, columns))
            nameless |= {
                row + at - start for row in self._nameless(file, low, high, keys[-1], found)
            }
        whole = {name: _concatenated([part[name] for part in parts]) for name in names}
        if self._hidden:
            del whole[self._key]
        return chunk_of(start, whole, _concatenated(keys), faults, out, nameless)

    def only(self, names: Collection[str]) -> Source:
        """Of every file, these columns alone."""
        kept = tuple(spec for spec in self.signature if spec.name in names)
        if kept == self.signature:
            return self
        hidden = self._by_column and self._key not in names
        key = tuple(spec for spec in self._all if hidden and spec.name == self._key)
        return self._narrowed(names, _all=(*kept, *key), _hidden=hidden)

    def sizes(self, start: int, stop: int) -> Array | None:
        """As far as the files know."""
        start, stop = bounds(start, stop, self.rows)
        names = [spec.name for spec in self._all]
        parts = []
        for file, low, high in self._within(start, stop):
            part = self._readers[file].sizes(low, high, names)
            if part is None:
                return None
            parts.append(part)
        return _concatenated(parts)

    def column(self, name: str) -> Array:
        """One column, without reading the others."""
        if name not in [spec.name for spec in self.signature]:
            return super().column(name)
        parts = []
        for reader in self._readers:
            for at in range(0, max(reader.rows, 1), _COLUMN_ROWS):
                stop = min(at + _COLUMN_ROWS, reader.rows)
                sizes = reader.sizes(at, stop, [name])
                runs = [(0, stop - at)] if sizes is None else runs_of(sizes, _COLUMN_BYTES)
                parts += [reader.read(at + a, at + b, [name])[0][name] for a, b in runs]
        return _concatenated(parts)

    def unchanged(self) -> bool:
        """The files are."""
        return self.listing.unchanged()

    def fingerprint(self) -> str:
        """Files, columns, key and options."""
        return digest(self.listing.fingerprint(), self._all, self.rows, self._options)

    def _within(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The files that have these rows, and which rows of each; for no rows one file."""
        file = max(int(np.searchsorted(self._starts, start, "right")) - 1, 0)
        at = start
        while True:
            file = min(file, len(self._readers) - 1)
            first = int(self._starts[file])
            high = max(min(stop - first, self._readers[file].rows), at - first)
            yield file, at - first, high
            if first + high >= stop:
                return
            at, file = first + high, file + 1

    def _keys(self, file: int, low: int, high: int, columns: Mapping[str, Array]) -> Array:
        if self._by_column:
            return key_array(columns[self._key])
        if self._key == ROW_KEY:
            first = int(self._starts[file])
            return np.arange(first + low, first + high)
        keys = np.empty(high - low, object)
        keys[:] = [f"{self.listing.names[file]}#{row}" for row in range(low, high)]
        return keys

    def _nameless(
        self, file: int, low: int, high: int, keys: Array, faults: Mapping[int, Fault]
    ) -> set[int]:
        """Failed rows that have no key, either: theirs looks like a blank one, and is none."""
        if not self._by_column or not any(keys[row] in (0, "") for row in faults):
            return set()
        return set(self._readers[file].read(low, high, [self._key])[1])


def check_key(key: str, signature: Signature) -> None:
    """Raise `InputError` unless there is such a column and its values can be keys."""
    named = {spec.name: spec for spec in signature}
    if key not in named:
        raise InputError(
            f"there is no column {key!r} to take keys from; there are {list(named)}, "
            f"and {ROW_KEY!r} and {PATH_KEY!r}"
        )
    if named[key].shape or not (named[key].dtype == STRING or "int" in named[key].dtype):
        raise InputError(f"keys are texts or whole numbers; column {key!r} is {named[key]}")


def key_array(column: Array) -> Array:
    """A column's values as keys: whole numbers as they are, bytes as the text they hold."""
    if column.dtype != object or not any(isinstance(key, bytes) for key in column):
        return column
    keys = np.empty(len(column), object)
    keys[:] = [
        key.decode(errors="backslashreplace") if isinstance(key, bytes) else key for key in column
    ]
    return keys


def unique(names: Sequence[str]) -> tuple[str, ...]:
    """Names as a tuple, each once."""
    return (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))


def _open_all(
    listing: Listing, open_file: OpenFile, columns: Sequence[str] | None, features: Features
) -> list[Reader]:
    assert len(listing), "a listing of no files"
    readers = []
    for index in range(len(listing)):
        readers.append(open_file(listing.path(index), columns, features))
        if readers[-1].rows:  # an empty file may not know what its columns are
            break
    first = (readers[-1] if readers[-1].rows else readers[0]).signature
    columns, features = [spec.name for spec in first], {spec.name: spec for spec in first}
    known = [None] * (len(readers) - 1) + [readers[-1]]
    readers = [
        reader or open_file(listing.path(index), columns, features)
        for index, reader in itertools.zip_longest(range(len(listing)), known)
    ]
    for name, reader in zip(listing.names, readers, strict=True):
        same_columns(first, reader.signature, name)
    return readers


def _concatenated(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
