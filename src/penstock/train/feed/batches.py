"""Batches from Python: generators, functions that make them, `PyDataset`s (`indexed`), other
iterables."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from penstock.errors import InputError
from penstock.train.feed.datasets import DatasetFeed
from penstock.train.feed.feed import Share
from penstock.train.feed.indexed import indexed
from penstock.train.feed.tree import Array, leaves, packed, tree_of

_ROLES = ("x", "y", "sample_weight")
_ONCE = "a generator can be gone through once"
_ANEW = "pass a function that makes it, to begin anew"

Batches = Callable[[int, int], Iterator[list[Array]]]  # (epoch, start row) to flat batches


def batches_feed(
    x: Any, share: Share, seed: int | None, shard: str, own: bool = False
) -> DatasetFeed:
    """The feed of something that gives batches: `x`, `(x, y)` or `(x, y, sample_weight)`.

    `own`: a step takes as many rows as the first of them has.
    """
    numbered = indexed(x, seed)
    begin: Callable[[int], Iterator[Any]]
    if numbered is not None:
        begin, first = numbered.begin, numbered.first
    else:
        begin = _once(x) if isinstance(x, Iterator) else _begun_again(x)
        first = next(begin(0), None)
    if first is None:
        raise InputError("expected at least one batch, got none")
    if isinstance(x, Iterator):
        begin = _once(itertools.chain([first], x))

    size = len(flat(_example(first))[0])
    if own:
        share = dataclasses.replace(share, batch_size=size)
    likely = numbered.count * size if numbered is not None and shard != "off" else None

    def batches(epoch: int, start: int) -> Iterator[list[Array]]:
        for batch in begin(epoch):
            parts = flat(_example(batch))
            skipped = min(start, len(parts[0]))
            start -= skipped
            if skipped < len(parts[0]):
                yield [part[skipped:] for part in parts]

    read = reading(batches, _example(first))
    ends = None if numbered is None else numbered.ended
    return DatasetFeed(share, policy_of(shard), read, likely_rows=likely, ends=ends)


def check_epochs(x: Any, times: int) -> None:
    """Refuse a generator that has begun where it is to be gone through several times."""
    if isinstance(x, Iterator) and times > 1:
        raise InputError(f"{_ONCE}, and {times} epochs need it: {_ANEW}")


def policy_of(shard: str) -> str:
    """How workers share what is read from front to back."""
    return "off" if shard == "off" else "data"


def flat(example: Any) -> list[Array]:
    """The arrays of an `(x, y, sample_weight)`."""
    return [array for _, array in leaves(example, "")]


def reading(batches: Batches, example: Any) -> Any:
    """What a `DatasetFeed` reads with: flat batches, each nested like the example."""

    def read(epoch: int, start_row: int, size: int) -> Any:
        import tensorflow as tf

        kinds = tuple(
            tf.TensorSpec((None, *part.shape[1:]), "string" if part.dtype == object else part.dtype)
            for part in flat(example)
        )
        made = tf.data.Dataset.from_generator(
            lambda: map(tuple, batches(epoch, start_row)), output_signature=kinds
        )
        nested = made.map(lambda *parts: packed(_given(example), iter(parts)))
        return nested.prefetch(1).rebatch(size)

    return read


def _given(example: Any) -> Any:
    """Without the components at its end that do not exist: `rebatch` takes no `None`."""
    while example[-1] is None:
        example = example[:-1]
    if None in [part if part is None else 0 for part in example]:
        raise InputError("expected y where there is a sample_weight; got none")
    return example


def _example(batch: Any) -> Any:
    parts = batch if isinstance(batch, tuple) else (batch,)
    if not 1 <= len(parts) <= len(_ROLES):
        raise InputError(
            f"expected batches of (x, y) or (x, y, sample_weight); got {len(parts)} components"
        )
    trees = (
        None if part is None else tree_of(part, role)
        for role, part in zip(_ROLES, parts, strict=False)
    )
    return (*trees, None, None)[: len(_ROLES)]


def _once(batches: Iterator[Any]) -> Callable[[int], Iterator[Any]]:
    left = [batches]

    def begin(_epoch: int) -> Iterator[Any]:
        if not left:
            raise InputError(f"{_ONCE}, and another epoch was asked for: {_ANEW}")
        return left.pop()

    return begin


def _begun_again(x: Any) -> Callable[[int], Iterator[Any]]:
    return lambda _epoch: iter(x() if callable(x) else x)
