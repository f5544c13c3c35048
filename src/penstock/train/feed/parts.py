"""Data in parts, each of which one worker reads by itself: for parameter servers.

A part has steps of its own, each a whole batch. Whoever is given the same data can read any part,
from any step on, and finds the same rows there.

- "data", "rows": of the steps of an epoch every so-manieth; "data" is read to be passed over
- "file": the steps of files of its own, for `tf.data` that reads as many files as there are parts
- "off": all that a worker was given; nobody else can read that

What only one process has is in no parts: a generator that has begun, what Python makes by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError
from penstock.train.feed.arrays import RowsFeed
from penstock.train.feed.datasets import DatasetFeed, is_shuffled, shared
from penstock.train.feed.feed import Feed, Share
from penstock.train.feed.opening import feed_for, is_files, made
from penstock.train.feed.orders import in_order


@dataclass(frozen=True)
class Part:
    """Steps of a feed: the first of them, and how many there are between two."""

    feed: Feed
    first: int = 0
    every: int = 1

    def elements(self, epoch: int, number: int) -> Iterator[Any]:
        """Of its steps, from one on."""
        return iter(self.feed.dataset(epoch, self.first + number * self.every, self.every))


def policy_for(x: Any, feed: Feed, parts: int, shard: str) -> str | None:
    """How workers share some data, whose feed this is; `None`: one process has to read it."""
    from penstock.data import Source
    from penstock.data.tfdata import is_dataset

    if shard == "chief":
        return None
    if isinstance(x, Iterator):
        if shard != "auto":
            raise ConfigError(
                f'shard="{shard}" needs data that each worker can read by itself; a generator that '
                "has begun is the chief's alone: pass a function that makes it"
            )
        return None
    if shard == "off":
        return "off"
    if isinstance(feed, RowsFeed):
        return "rows"
    x = made(x)
    if is_dataset(x):
        return _policy_of_dataset(x, parts, shard)
    again = is_files(x) or (isinstance(x, Source) and x.seekable)
    return "data" if again or shard == "data" else None


def _policy_of_dataset(dataset: Any, parts: int, shard: str) -> str | None:
    policy, _ = shared(dataset, Share(parts, workers=parts), shard)
    if not is_shuffled(dataset) or in_order(dataset, 0, 0) is not None:
        return policy
    if shard != "auto":
        raise ConfigError(
            f'shard="{shard}" needs a data set that each worker reads in the same order; got one '
            'that is shuffled and cannot be copied: say shard="chief" to have the chief read it'
        )
    return None


def part_of(
    data: tuple[Any, Any, Any], policy: str, part: int, parts: int, share: Share, **options: Any
) -> Part:
    """A part of some data. `share` cuts its batches; `options`: more of `feed_for`."""
    from penstock.data.tfdata import is_dataset

    x, y, weight = data
    x = made(x)
    if policy == "file":
        _, x = shared(x, Share(parts, workers=parts, worker=part), "file")
    first, every = (0, 1) if policy in ("file", "off") else (part, parts)
    if is_dataset(x) and in_order(x, options["seed"], 0) is not None:
        return Part(_in_order(x, share, policy, options["seed"]), first, every)
    feed = feed_for(
        *(x, y, weight),
        batch_size=share.batch_size,
        micros=share.micros,
        **options,
    )
    return Part(feed, first, every)


def _in_order(dataset: Any, share: Share, policy: str, seed: int) -> DatasetFeed:
    """The feed of a shuffled data set, in the order of an epoch whenever that is read."""

    def read(epoch: int, start_row: int, size: int) -> Any:
        ordered = in_order(dataset, seed, epoch)
        assert ordered is not None
        return ordered.rebatch(size).skip(start_row // size)

    return DatasetFeed(share, policy, read)
