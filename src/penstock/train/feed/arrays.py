"""Rows that are gathered by their numbers: arrays, and sources that are read row by row.

An epoch's order is drawn from (seed, epoch), the same on every worker, so each takes its own rows
and a position is exact: nothing is read to skip. A piece is gathered at once, by threads beside
training, into memory that TensorFlow uses as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.train.feed.cut import pieces, split
from penstock.train.feed.feed import Feed, made_ready, untuned
from penstock.train.feed.memory import Memory
from penstock.train.feed.padding import then_padding
from penstock.train.feed.tree import Array, leaves, packed

_THREADS = 4

Numbers = Array | slice
Gather = Callable[[Numbers], list[Array]]


@dataclass(frozen=True)
class RowsFeed(Feed):
    """`gather` gives rows by number, as the flat list of what `example` has, nested, for one."""

    gather: Gather
    example: Any  # (x, y, sample_weight): a row of each, for structure, dtypes and shapes
    count: int
    seed: int | None = None  # no shuffling
    in_memory: bool = False  # and `gather` costs next to nothing

    @property
    def rows(self) -> int | None:
        """What there is, where all workers have the same arrays."""
        return self.count if self.ends_together else None

    @property
    def ends_together(self) -> bool:
        """Unless each of several workers has arrays of its own."""
        return self.policy != "off" or self.share.workers == 1

    @property
    def begins_ahead(self) -> bool:
        """An order is a matter of seed and epoch. Not where rows are noted before padding: those
        of two epochs would be mixed up."""
        return self.steps is not None and not self.pads

    def dataset(self, epoch: int, start_step: int = 0, every: int = 1) -> Any:
        """The pieces of an epoch, from a step on."""
        import tensorflow as tf

        flat = [array for _, array in leaves(self.example, "")]
        kinds = [tf.as_dtype(part.dtype if part.dtype != object else "string") for part in flat]
        order = self.order(epoch)

        def read(start: Any, stop: Any) -> list[Array]:
            return self.gather(slice(start, stop) if order is None else order[start:stop])

        def piece(start: Any, stop: Any, count: Any) -> Any:
            parts = tf.numpy_function(read, [start, stop], kinds)
            for part, like in zip(parts, flat, strict=True):
                part.set_shape((None, *like.shape[1:]))
            return (*packed(self.example, iter(parts)), count)

        (starts, stops), counts = self._left(start_step, every)
        made = tf.data.Dataset.from_tensor_slices((starts, stops, counts)).map(
            piece, num_parallel_calls=min(_THREADS, os.cpu_count() or 1), deterministic=True
        )
        if self.pads:
            made = then_padding(made.map(self.noted.each))
        return made_ready(made, self.share).with_options(untuned())

    def numbers(self, epoch: int, start_step: int = 0) -> Iterator[tuple[Array, int]]:
        """The rows' numbers of each piece of an epoch, from a step on; and how many count."""
        order = self.order(epoch)
        (starts, stops), counts = self._left(start_step)
        for start, stop, count in zip(starts, stops, counts, strict=True):
            yield np.arange(start, stop) if order is None else order[start:stop], int(count)

    def _left(self, start_step: int, every: int = 1) -> tuple[Array, Array]:
        """This worker's pieces from a step on: where they start and stop, and how many rows count.
        One without rows is the first row."""
        steps = self.spans().reshape(-1, self.share.elements, 2)
        spans = steps[start_step::every].reshape(-1, 2)
        counts = (spans[:, 1] - spans[:, 0]).astype(np.int32)
        return np.where(counts[:, None] > 0, spans, (0, 1)).T, counts

    def order(self, epoch: int) -> Array | None:
        """The rows' numbers as they come in an epoch; nothing, where they come as they are."""
        if self.seed is None:
            return None
        return np.random.Generator(np.random.PCG64([self.seed, epoch])).permutation(self.count)

    def spans(self) -> Array:
        """This worker's pieces of every step, as positions in the order: from, up to."""
        share = self.share
        workers, worker = (share.workers, share.worker) if self.ends_together else (1, 0)
        size = share.batch_size if self.ends_together else share.own_rows

        def cut(rows: int) -> Array:
            return np.array(
                pieces(split((0, rows), workers)[worker], share.micros, share.replicas), np.int64
            )

        steps, rest = divmod(self.count, size)
        whole = (np.arange(steps)[:, None, None] * size + cut(size)).reshape(-1, 2)
        return np.concatenate([whole, steps * size + cut(rest)]) if rest else whole


def gather_from(tree: Any, floats: str) -> Gather:
    """Rows of a tree's arrays; those of float64 as `floats`, as Keras does it."""
    arrays = [array for _, array in leaves(tree, "")]
    memory = Memory()

    def gather(numbers: Numbers) -> list[Array]:
        return [_rows(array, numbers, floats, memory) for array in arrays]

    return gather


def _rows(array: Array, numbers: Numbers, floats: str, memory: Memory) -> Array:
    if array.dtype == np.float64:
        return array[numbers].astype(floats)
    if isinstance(numbers, slice) or array.dtype == object or not array.flags.c_contiguous:
        return array[numbers]
    out = memory.empty((len(numbers), *array.shape[1:]), array.dtype)
    return np.take(array, numbers, axis=0, out=out, mode="clip")
