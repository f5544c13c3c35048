"""Sources of `penstock.data` as a feed: columns become `x`, `y` and `sample_weight`.

A source is read in blocks of rows that follow each other, which is what files are good at. To
shuffle, the blocks of an epoch come in an order drawn from (seed, epoch), and rows are mixed within
windows of many blocks. A source that must be read from front to back is mixed within windows as it
comes. Images, each a file of its own to decode, are read one by one in any order, by every worker
its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.data import Chunk, Source
from penstock.data.features import blank
from penstock.errors import InputError
from penstock.train.feed.arrays import Numbers, RowsFeed
from penstock.train.feed.batches import flat, policy_of, reading
from penstock.train.feed.datasets import DatasetFeed
from penstock.train.feed.feed import Feed, Share
from penstock.train.feed.tree import Array

_BLOCK = 256
_WINDOW = 32  # blocks whose rows are mixed

Columns = dict[str, Array]
Span = tuple[int, int]


def source_feed(
    source: Source, y: Any, weight: Any, share: Share, seed: int | None, shard: str
) -> Feed:
    """The feed of a source. `y` and `weight` name columns; all others are inputs."""
    if source.rows == 0:
        raise InputError("expected at least one row to train on, got none")
    roles = roles_of(source, y, weight)
    example = roles.example({spec.name: blank(spec, 1) for spec in source.signature})
    if source.decodes and source.seekable and source.rows is not None:

        def gather(numbers: Numbers) -> list[Array]:
            if isinstance(numbers, slice):
                numbers = np.arange(numbers.start, numbers.stop)
            rows = [
                flat(roles.example(_columns(source.read(int(row), int(row) + 1))))
                for row in numbers
            ]
            return [np.concatenate(parts) for parts in zip(*rows, strict=True)]

        policy = "off" if shard == "off" else "rows"
        return RowsFeed(share, policy, gather, example, source.rows, seed)

    def batches(epoch: int, start: int) -> Iterator[list[Array]]:
        for columns in windows(source, epoch, start, seed):
            yield flat(roles.example(columns))

    return DatasetFeed(share, policy_of(shard), reading(batches, example), source.rows)


@dataclass(frozen=True)
class Roles:
    """Which columns are what."""

    inputs: tuple[str, ...]
    y: str | None
    weight: str | None

    def example(self, columns: Columns) -> Any:
        """`(x, y, sample_weight)`; a single input comes bare."""
        x: Any = {name: columns[name] for name in self.inputs}
        if len(self.inputs) == 1:
            x = columns[self.inputs[0]]
        y, weight = (None if n is None else columns[n] for n in (self.y, self.weight))
        return x, y, weight


def roles_of(source: Source, y: Any, weight: Any) -> Roles:
    """Columns named "label" and "weight" are what they are called, unless others are named."""
    names = [spec.name for spec in source.signature]
    y = _named(y, "label", names, "y")
    weight = _named(weight, "weight", names, "sample_weight")
    inputs = tuple(name for name in names if name not in (y, weight))
    if not inputs:
        raise InputError(f"expected columns besides y and sample_weight; got {names}")
    return Roles(inputs, y, weight)


def windows(source: Source, epoch: int, start: int, seed: int | None) -> Iterator[Columns]:
    """An epoch's rows, from the one that comes at `start` on."""
    passed = start if seed is None else 0
    spans = iter(_spans(source, epoch, passed, seed))
    for number in itertools.count():
        window = list(itertools.islice(spans, 1 if seed is None else _WINDOW))
        length = sum(stop - at for at, stop in window)
        if source.rows is not None and window and passed + length <= start:
            passed += length  # all there, and nothing to read
            continue
        parts = [_columns(source.read(at, stop)) for at, stop in window]
        count = sum(map(_rows, parts))
        if not count:
            return
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if seed is not None:
            mixed = _drawn(count, seed, epoch, number)
            columns = {name: array[mixed] for name, array in columns.items()}
        skipped = min(max(start - passed, 0), count)
        passed += count
        if skipped < count:
            yield {name: array[skipped:] for name, array in columns.items()}


def _spans(source: Source, epoch: int, start: int, seed: int | None) -> Iterable[Span]:
    """Blocks of rows, in the order of an epoch."""
    if source.rows is None:
        return ((at, at + _BLOCK) for at in itertools.count(start, _BLOCK))
    blocks = [(at, min(at + _BLOCK, source.rows)) for at in range(start, source.rows, _BLOCK)]
    if seed is None or not source.seekable:
        return blocks
    return [blocks[at] for at in _drawn(len(blocks), seed, epoch)]


def _drawn(count: int, *seeds: int) -> Array:
    return np.random.Generator(np.random.PCG64(seeds)).permutation(count)


def _columns(chunk: Chunk) -> Columns:
    if chunk.failures:
        first = chunk.failures[0]
        raise InputError(f"row {first.row} ({first.key}) cannot be read: {first.message}")
    return dict(chunk.columns)


def _rows(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _named(column: Any, usual: str, names: list[str], argument: str) -> str | None:
    if column is None:
        return usual if usual in names and len(names) > 1 else None
    if not isinstance(column, str) or column not in names:
        raise InputError(f"{argument}: expected the name of a column of {names}; got {column!r}")
    return column
