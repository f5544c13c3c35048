"""Rows that lie in the parts of several shards, in the order of the input, a few at a time.

How many, their bytes decide, which are known row by row: a few may be much larger than all others.
Lines and records are put in order as they are, arrays and tables column by column.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, NamedTuple

import numpy as np

from penstock.data import Source, open_source
from penstock.data.arrays import open_npy
from penstock.data.chunk import Array
from penstock.data.files import read_range
from penstock.data.sinks import Sink
from penstock.offline.parts import DATA, KEYS, ROWS, Facts, PartStore

_ROWS = 65_536  # at a time, at most
_BYTES = 64 << 20


class Rows(NamedTuple):
    """Some of the output's. `head`: what stands before lines; `None` where these are columns."""

    columns: dict[str, Array]
    keys: Array
    head: bytes | None

    def write(self, sink: Sink, file: IO[bytes]) -> None:
        """As a file of the output's format."""
        if self.head is None:
            sink.write(file, self.columns, self.keys if sink.keeps_keys else None)
        else:
            file.write(self.head)
            file.writelines(self.columns[""])


def in_order(stores: list[PartStore], parts: list[dict[int, Facts]]) -> Iterator[Rows]:
    """All rows of these shards."""
    shards = [_Shard(store, facts) for store, facts in zip(stores, parts, strict=True)]
    while True:
        known = [shard.look() for shard in shards]
        rows, sizes = (np.concatenate(each) for each in zip(*known, strict=True))
        if not len(rows):
            return
        order = np.argsort(rows, kind="stable")
        before = min(shard.known_before for shard in shards)
        count = min(
            int(np.searchsorted(rows[order], before)),
            int(np.searchsorted(np.cumsum(sizes[order]), _BYTES, "right")),
            _ROWS,
        )
        stop = int(rows[order[max(count, 1) - 1]]) + 1
        yield _sorted([piece for shard in shards for piece in shard.take(stop)])


def _sorted(pieces: list[tuple[Array, Rows]]) -> Rows:
    order = np.argsort(np.concatenate([rows for rows, _ in pieces]), kind="stable")
    found = [some for _, some in pieces]
    columns = {
        name: np.concatenate([some.columns[name] for some in found])[order]
        for name in found[0].columns
    }
    return Rows(columns, np.concatenate([some.keys for some in found])[order], found[0].head)


class _Lines:
    """A part of lines or records."""

    def __init__(self, path: str, starts: Array) -> None:
        self._path, self._starts = path, starts
        self._head = read_range(path, 0, int(starts[0]))
        self.sizes: Array = np.diff(starts)

    def read(self, start: int, stop: int) -> Rows:
        bounds = self._starts[start : stop + 1]
        data = read_range(self._path, int(bounds[0]), int(bounds[-1]))
        lines = np.empty(stop - start, object)
        ends = (bounds - bounds[0]).tolist()
        lines[:] = [data[ends[at] : ends[at + 1]] for at in range(stop - start)]
        return Rows({"": lines}, np.zeros(stop - start, np.int64), self._head)


class _Columns:
    """A part of arrays, with keys in a file beside it or in a column."""

    def __init__(self, path: str, keys: str) -> None:
        self._source: Source = open_source(path) if keys else open_source(path, key="key")
        self._keys = keys
        sizes = self._source.sizes(0, len(self._source))
        assert sizes is not None
        self.sizes = sizes

    def read(self, start: int, stop: int) -> Rows:
        chunk = self._source.read(start, stop)
        if self._keys:
            return Rows(dict(chunk.columns), open_npy(self._keys).rows(start, stop), None)
        columns = {name: array for name, array in chunk.columns.items() if name != "key"}
        return Rows(columns, chunk.keys, None)


@dataclass
class _Part:
    """The rows in a file, of which those before `at` were taken."""

    file: _Lines | _Columns
    rows: Array
    at: int = 0

    def take(self, stop: int) -> tuple[Array, Rows]:
        """The rows before this one."""
        start, self.at = self.at, int(np.searchsorted(self.rows, stop))
        return self.rows[start : self.at], self.file.read(start, self.at)


class _Shard:
    """One shard's parts. Some are looked at before their rows are taken."""

    def __init__(self, store: PartStore, parts: dict[int, Facts]) -> None:
        data, rows = store.paths(parts, DATA), store.paths(parts, ROWS)
        keys = store.paths(parts, KEYS) or [""] * len(data)
        self._files = deque(zip(data, keys, rows, strict=True))
        self._sink = store.sink
        self._open: deque[_Part] = deque()

    @property
    def known_before(self) -> int:
        """All of its rows before this one were looked at."""
        return int(self._open[-1].rows[-1]) + 1 if self._files else np.iinfo(np.int64).max

    def look(self) -> tuple[Array, Array]:
        """Numbers and bytes of the rows that come next: as many as may be taken, or all."""
        rows, sizes = self._left()
        while self._files and len(rows) < _ROWS and sizes.sum() < _BYTES:
            path, keys, numbers = self._files.popleft()
            starts = self._sink.starts(path)
            file = _Columns(path, keys) if starts is None else _Lines(path, starts)
            self._open.append(_Part(file, np.load(numbers)))
            rows, sizes = self._left()
        return rows, sizes

    def take(self, stop: int) -> Iterator[tuple[Array, Rows]]:
        """The rows before this one, all of which were looked at."""
        while self._open and self._open[0].rows[self._open[0].at] < stop:
            yield self._open[0].take(stop)
            if self._open[0].at == len(self._open[0].rows):
                self._open.popleft()

    def _left(self) -> tuple[Array, Array]:
        none: Array = np.empty(0, np.int64)
        rows = [part.rows[part.at :] for part in self._open]
        sizes = [part.file.sizes[part.at :] for part in self._open]
        return np.concatenate([none, *rows]), np.concatenate([none, *sizes])
