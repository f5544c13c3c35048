"""Which rows of a source come in which batch of an epoch, and what a worker reads of them. Pure.

    blocks    rows that follow each other, in an order drawn from (seed, epoch)
    windows   as many blocks as make some batches                 ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
    strips    a window in as many parts as a batch has rows       ▒▒▒|▒▒▒|▒▒▒|▒▒▒|▒▒▒|
    batches   one row of each strip, drawn
    workers   each has strips of its own                          worker 0 |  worker 1

So which rows a batch has does not depend on the number of workers, and what a worker has of a
window lies there side by side: it reads that and nothing else. Where nothing is shuffled, batches
are rows that follow each other, and a worker reads its part of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from penstock.train.feed.cut import Span, portion, split

_BLOCK = 256
_WINDOW = 32 * _BLOCK  # rows that are mixed,
_BATCHES = 4  # or as many batches, where those are more

Array = np.ndarray[Any, Any]
Stretch = tuple[
    list[Span], Array | None
]  # what to read, and the order in which it comes, if another


def stretches(
    rows: int, size: int, own: Span, seed: int | None, epoch: int, start: int = 0
) -> Iterator[Stretch]:
    """An epoch's batches of so many rows, from batch `start` on, a few batches at a time.

    `own`: which rows of each batch are read, and come. Nothing is shuffled without a `seed`.
    """
    if seed is None:
        return _in_order(rows, size, own, start)
    return _mixed(rows, size, own, (seed, epoch), start)


def _in_order(rows: int, size: int, own: Span, start: int) -> Iterator[Stretch]:
    batches, together = -(-rows // size), max(_BLOCK // size, 1)
    for first in range(start, batches, together):
        found = []
        for at in range(first * size, min((first + together) * size, rows), size):
            low, high = portion(min(size, rows - at), size, own)
            found.append((at + low, at + high))
        yield _joined(found), None


def _mixed(
    rows: int, size: int, own: Span, seeds: tuple[int, int], start: int
) -> Iterator[Stretch]:
    batches, most = -(-rows // size), max(_WINDOW // size, _BATCHES)
    blocks = _Blocks(rows, seeds)
    for number, (first, last) in enumerate(split((0, batches), -(-batches // most))):
        if last <= start:
            continue
        low, high = first * size, min(last * size, rows)
        edges = _edges(high - low, size)
        spans = _within(blocks.spans(low, high), int(edges[own[0]]), int(edges[own[1]]))
        drawn = _drawn_rows(edges, own, _generator(*seeds, number))
        yield spans, drawn[max(start - first, 0) * (own[1] - own[0]) :]


class _Blocks:
    """All rows in blocks, in the order of an epoch."""

    def __init__(self, rows: int, seeds: tuple[int, int]) -> None:
        starts = np.arange(0, rows, _BLOCK)
        self._starts = starts[_generator(*seeds).permutation(len(starts))]
        self._lengths = np.minimum(_BLOCK, rows - self._starts)
        self._ends = np.cumsum(self._lengths)

    def spans(self, low: int, high: int) -> list[Span]:
        """What comes at these positions."""
        first, last = np.searchsorted(self._ends, [low, high - 1], "right")
        starts, lengths = self._starts[first : last + 1], self._lengths[first : last + 1]
        before = self._ends[first : last + 1] - lengths
        begins = starts + np.maximum(low - before, 0)
        ends = starts + np.minimum(high - before, lengths)
        return list(zip(begins.tolist(), ends.tolist(), strict=True))


def _edges(rows: int, size: int) -> Array:
    """Where strips begin and end. A last, shorter batch has rows of some of them, evenly spread."""
    whole, rest = divmod(rows, size)
    strips = np.arange(size + 1)
    return strips * whole + strips * rest // size


def _drawn_rows(edges: Array, own: Span, generator: Any) -> Array:
    """The rows of own strips, as batch after batch takes one of each.

    All strips are drawn, whoever reads them: so it is the same on every worker.
    """
    lengths = np.diff(edges)
    whole, most = int(lengths.min()), int(lengths.max())
    keys = generator.random((len(lengths), most))
    keys[lengths == whole, whole:] = np.inf  # a row that is not there is the last of its strip
    mine = slice(*own)
    rows = (edges[:-1] - edges[own[0]])[mine, None] + np.argsort(keys, axis=1)[mine]
    there: Array = np.arange(most) < lengths[mine, None]
    found: Array = rows.T[there.T]
    return found


def _within(spans: Iterable[Span], low: int, high: int) -> list[Span]:
    """What of these spans, laid side by side, is at the positions from `low` up to `high`."""
    found, at = [], 0
    for start, stop in spans:
        begin, end = start + max(low - at, 0), min(stop, start + high - at)
        if begin < end:
            found.append((begin, end))
        at += stop - start
    return found


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Spans that follow each other as one; none that is empty."""
    found: list[Span] = []
    for start, stop in spans:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        elif start < stop:
            found.append((start, stop))
    return found


def _generator(*seeds: int) -> Any:
    return np.random.Generator(np.random.PCG64(seeds))
