"""Sources of `penstock.data` as a feed: columns become `x`, `y` and `sample_weight`.

A source that can be read from any row on is read in stretches of rows (`mixing`), by every worker
its own ("rows"). Images, each a file of its own to decode, are read one by one in any order, by
every worker its own as well. A source that must be read from front to back (a `tf.data.Dataset`, an
iterable) every worker reads as a whole ("data"); it is mixed within windows, as it comes. So is,
by every worker as a whole, what is too little for each to have a row of it.
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
from penstock.train.feed.cut import split
from penstock.train.feed.datasets import DatasetFeed
from penstock.train.feed.feed import Feed, Share
from penstock.train.feed.mixing import Stretch, stretches
from penstock.train.feed.tree import Array

_BLOCK = 256
_WINDOW = 32  # blocks whose rows are mixed

Columns = dict[str, Array]


def source_feed(
    source: Source, y: Any, weight: Any, share: Share, seed: int | None, shard: str
) -> Feed:
    """The feed of a source. `y` and `weight` name columns; all others are inputs."""
    if source.rows == 0:
        raise InputError("expected at least one row, got none")
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

    policy = _policy(source, share, shard)
    own = split((0, share.batch_size), share.workers)[share.worker]
    size = share.own_rows if policy == "off" else share.batch_size

    def batches(epoch: int, start: int) -> Iterator[list[Array]]:
        if source.seekable and source.rows is not None:
            mine = own if policy == "rows" else (0, size)
            batch = start // max(mine[1] - mine[0], 1)
            read = jumping(source, stretches(source.rows, size, mine, seed, epoch, batch))
        else:
            read = from_front_to_back(source, epoch, start, seed)
        for columns in read:
            yield flat(roles.example(columns))

    return DatasetFeed(share, policy, reading(batches, example), source.rows)


def _policy(source: Source, share: Share, shard: str) -> str:
    jumps = source.seekable and source.rows is not None
    few = share.batch_size < share.workers or (source.rows or 0) < share.batch_size
    if shard == "auto" and jumps and (share.workers == 1 or not few):
        return "rows"
    return policy_of(shard)


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


def jumping(source: Source, to: Iterable[Stretch]) -> Iterator[Columns]:
    """What lies in these stretches."""
    for spans, order in to:
        if not spans:
            continue
        # As they lie in the file: what has to be decoded together is then decoded once.
        read = {span: _columns(source.read(*span)) for span in sorted(spans)}
        columns = read[spans[0]] if len(spans) == 1 else _joined([read[span] for span in spans])
        if order is not None:
            columns = {name: array[order] for name, array in columns.items()}
        yield columns


def from_front_to_back(
    source: Source, epoch: int, start: int, seed: int | None
) -> Iterator[Columns]:
    """An epoch's rows, from the one that comes at `start` on."""
    length = _BLOCK if seed is None else _WINDOW * _BLOCK
    first = start // length if seed is None else 0  # what was mixed is mixed again, to be skipped
    for number in itertools.count(first):
        at = number * length
        columns = _columns(source.read(at, at + length))
        count = _rows(columns)
        if seed is not None:
            mixed = np.random.Generator(np.random.PCG64([seed, epoch, number])).permutation(count)
            columns = {name: array[mixed] for name, array in columns.items()}
        skipped = min(max(start - at, 0), count)
        if skipped < count:
            yield {name: array[skipped:] for name, array in columns.items()}
        if count < length:
            return


def _joined(parts: list[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


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
