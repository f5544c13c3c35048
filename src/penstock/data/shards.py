"""Who reads which rows: every row in exactly one shard, the same way on every machine.

`contiguous` and `strided` need only a number of rows. `balanced` evens out what rows cost,
`stratified` gives each shard its part of every class. `dynamic` cuts chunks, and whoever is free
takes the next. Nothing depends on a library's random numbers, so that jobs with different versions
of one agree.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.data.chunk import Array
from penstock.data.source import Source
from penstock.errors import ConfigError, InputError

WAYS = ("contiguous", "strided", "balanced", "stratified", "dynamic")
CHUNK_ROWS = 4096
_SHARD = re.compile(r"\s*(\d+)\s*/\s*(\d+)\s*")


@dataclass(frozen=True, eq=False)
class Shard:
    """Shard `index` (from 0) of `count`: its rows, rising."""

    index: int
    count: int
    rows: range | Array

    def __len__(self) -> int:
        return len(self.rows)

    def runs(self, limit: int | None = None) -> Iterator[tuple[int, int]]:
        """The rows as ranges to read, none longer than `limit`."""
        for start, stop in self._whole_runs():
            step = limit or max(stop - start, 1)
            for at in range(start, stop, step):
                yield at, min(at + step, stop)

    def _whole_runs(self) -> Iterator[tuple[int, int]]:
        if isinstance(self.rows, range) and self.rows.step == 1:
            yield self.rows.start, self.rows.stop
            return
        rows = np.asarray(self.rows, np.int64)
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        for run in np.split(rows, breaks):
            if len(run):
                yield int(run[0]), int(run[-1]) + 1


def shards(
    what: int | Source,
    count: int = 1,
    how: str = "contiguous",
    *,
    cost: str | Any = None,
    label: str | Any = None,
    seed: int = 0,
    chunk: int = CHUNK_ROWS,
) -> list[Shard]:
    """Cut a source, or a number of rows, into shards.

    `how`: "contiguous", "strided", "balanced" (by `cost`: a column or numbers; otherwise by the
    sizes of files), "stratified" (by `label`: a column or values), or "dynamic" (chunks of `chunk`
    rows, however many; `count` does not matter). `seed` decides who gets which of equal rows.
    """
    if how not in WAYS:
        raise ConfigError(f"how: expected one of {', '.join(WAYS)}; got {how!r}")
    _check_count("count", count)
    _check_count("chunk", chunk)
    rows = _rows(what)
    if how == "contiguous":
        return [
            Shard(at, count, range(rows * at // count, rows * (at + 1) // count))
            for at in range(count)
        ]
    if how == "strided":
        return [Shard(at, count, range(at, rows, count)) for at in range(count)]
    if how == "dynamic":
        pieces = max(-(-rows // chunk), 1)
        return [
            Shard(at, pieces, range(at * chunk, min((at + 1) * chunk, rows)))
            for at in range(pieces)
        ]
    if how == "balanced":
        owners = _balanced(_costs(what, cost, rows), count, seed)
    else:
        owners = _stratified(_labels(what, label, rows), count, seed)
    return [Shard(at, count, np.flatnonzero(owners == at)) for at in range(count)]


def parse_shard(text: str) -> tuple[int, int]:
    """`"3/8"`, the third of eight, as (index from 0, count)."""
    match = _SHARD.fullmatch(text)
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= count:
        raise ConfigError(f"a shard is written as 1/8 to 8/8; got {text!r}")
    return index - 1, count


def _balanced(costs: Array, count: int, seed: int) -> Array:
    """The dearest row first, each to the shard that has cost least so far (LPT), and of those that
    cost the same to the one with the fewest rows: there may be rows that cost nothing."""
    order = np.lexsort((_mixed(len(costs), seed), -costs))
    owners = np.empty(len(costs), np.int32)
    heap = [(0.0, 0, shard) for shard in range(count)]
    for at in range(0, len(order), 65_536):
        some = order[at : at + 65_536]
        taken = []
        for cost in costs[some].tolist():
            total, rows, shard = heap[0]
            taken.append(shard)
            heapq.heapreplace(heap, (total + cost, rows + 1, shard))
        owners[some] = taken
    return owners


def _stratified(labels: Array, count: int, seed: int) -> Array:
    """Class by class in turn, going on where the last one ended: of each class every shard gets
    its part rounded up or down, and sizes differ by one row at most."""
    classes = np.unique(labels, return_inverse=True)[1].reshape(-1)
    order = np.lexsort((_mixed(len(labels), seed), classes))
    owners = np.empty(len(labels), np.int32)
    owners[order] = np.arange(len(labels)) % count
    return owners


def _mixed(rows: int, seed: int) -> Array:
    """A number for each row that looks random (splitmix64)."""
    value = np.arange(rows, dtype=np.uint64) + np.uint64(seed % (1 << 64))
    value = (value + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _rows(what: int | Source) -> int:
    if isinstance(what, Source):
        if what.rows is None:
            raise InputError("shards: the source does not know how many rows it has")
        return what.rows
    if type(what) is not int or what < 0:
        raise InputError(f"shards: expected a source or a number of rows, got {what!r}")
    return what


def _costs(what: int | Source, cost: Any, rows: int) -> Array:
    found = _values(what, cost, rows, "cost")
    if found is None and isinstance(what, Source):
        found = what.costs()
    if found is None:
        raise InputError(
            "balanced: expected cost=…, a column or a number for each row "
            "(only sources of files know costs of their own)"
        )
    costs = np.asarray(found)
    if costs.dtype.kind not in "iuf":
        raise InputError(f"balanced: costs are numbers; got {costs.dtype}")
    costs = costs.astype(np.float64)
    if not np.all(np.isfinite(costs)) or np.any(costs < 0):
        raise InputError("balanced: costs are finite and not negative")
    return costs


def _labels(what: int | Source, label: Any, rows: int) -> Array:
    found = _values(what, label, rows, "label")
    if found is None:
        raise InputError("stratified: expected label=…, a column or a value for each row")
    return found.astype(str) if found.dtype == object else found


def _values(what: int | Source, given: Any, rows: int, name: str) -> Array | None:
    if given is None:
        return None
    if isinstance(given, str):
        if not isinstance(what, Source):
            raise InputError(f"{name}={given!r} names a column, but there is no source")
        return what.column(given)
    values = np.asarray(given)
    if values.shape != (rows,):
        raise InputError(f"{name}: expected a value for each of {rows} rows, got {values.shape}")
    return values


def _check_count(name: str, value: int) -> None:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name}: expected a whole number from 1 on, got {value!r}")
