"""`feed_for`: from what people pass to `fit` to the feed that cuts it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.errors import ConfigError, InputError
from penstock.train.feed.feed import Feed, Share

_BATCH = 32  # as in Keras
SHARDS = ("auto", "data", "file", "off")


def feed_for(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    replicas: int = 1,
    worker: tuple[int, int] = (0, 1),
    micros: int = 1,
    shuffle: bool = True,
    seed: int = 0,
    shard: str = "auto",
    training: bool = True,
) -> Feed:
    """The feed of some data. `worker` is this worker's index and how many there are.

    Where no `batch_size` is given, data that comes in batches keeps its own; others have 32 rows.

    All workers call it with the same data, except for `shard="off"`: each its own. Only training
    shuffles, and only what has no order of its own making (as `tf.data` and generators have).
    For files and sources, `y` and `sample_weight` name columns.
    """
    if shard not in SHARDS:
        raise ConfigError(f"shard: expected one of {', '.join(SHARDS)}; got {shard!r}")
    share = Share(_BATCH if batch_size is None else batch_size, replicas, *worker, micros)
    order = seed if shuffle and training else None
    try:
        return _found((x, y, sample_weight), share, order, shard, own=batch_size is None)
    except InputError as error:
        if training:
            raise
        raise InputError(f"validation_data: {error}") from error


def _found(data: Any, share: Share, order: int | None, shard: str, own: bool) -> Feed:
    """The feed of that kind of data; `own`: in batches of its own size, where it has some."""
    from penstock.data import Source, open_source
    from penstock.data.arrays import Arrays
    from penstock.data.tfdata import is_dataset

    x, y, sample_weight = data
    if x is None:
        raise InputError("x: expected data to train on, got nothing")
    x = made(x)
    if is_dataset(x):
        from penstock.train.feed.datasets import dataset_feed, own_batch

        _alone(y, sample_weight, "a data set")
        if own:
            share = dataclasses.replace(share, batch_size=own_batch(x))
        return dataset_feed(x, share, shard)
    if shard == "file":
        raise ConfigError(
            'shard="file" is for tf.data sets that read files; '
            f"got a {type(x).__name__}, of which each worker takes its own rows"
        )
    if isinstance(x, Source) or is_files(x):
        from penstock.train.feed.sources import roles_of, source_feed

        source = open_source(x)
        if not isinstance(source, Arrays):
            return source_feed(source, y, sample_weight, share, order, shard)
        columns = dict(source.read(0, len(source)).columns)
        x, y, sample_weight = roles_of(source, y, sample_weight).example(columns)
    if isinstance(x, (Mapping, list, tuple)) or hasattr(x, "__array__"):
        return _arrays(x, y, sample_weight, share, order, shard)
    if callable(x) or isinstance(x, Iterable) or hasattr(x, "__getitem__"):
        from penstock.train.feed.batches import batches_feed

        _alone(y, sample_weight, "a generator of batches")
        return batches_feed(x, share, order, shard, own=own)
    raise InputError(
        "x: expected arrays, a tf.data.Dataset, a source of penstock.data, files, or something "
        f"that gives batches; got a {type(x).__name__}"
    )


def made(x: Any) -> Any:
    """The data set that a function returns; whatever else it is, as it is."""
    from penstock.data.tfdata import is_dataset

    if callable(x) and not hasattr(x, "__getitem__"):
        returned = x()
        return returned if is_dataset(returned) else x
    return x


def _arrays(x: Any, y: Any, weight: Any, share: Share, seed: int | None, shard: str) -> Feed:
    import keras

    from penstock.train.feed.arrays import RowsFeed, gather_from
    from penstock.train.feed.tree import packed, same_rows, tree_of

    named = {"x": x, "y": y, "sample_weight": weight}
    trees = {name: None if value is None else tree_of(value, name) for name, value in named.items()}
    rows = same_rows(trees)
    tree = tuple(trees.values())
    gather = gather_from(tree, keras.config.floatx())
    example = packed(tree, iter(gather(slice(0, 1))))
    policy = "off" if shard == "off" else "rows"
    return RowsFeed(share, policy, gather, example, rows, seed, in_memory=True)


def _alone(y: Any, weight: Any, what: str) -> None:
    given = [name for name, value in (("y", y), ("sample_weight", weight)) if value is not None]
    if given:
        raise InputError(f"{given[0]} comes with x in the elements of {what}; got it apart as well")


def is_files(value: Any) -> bool:
    """Whether it names files."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(item, (str, os.PathLike)) for item in value)
    return isinstance(value, (str, os.PathLike))
