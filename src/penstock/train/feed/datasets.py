"""`tf.data` as a feed: batches of any size, cut anew to global batches and then to pieces.

How workers share a data set:

- "data": each reads all of it and takes its part of every global batch. All must see the same
  order, so what has none (`orders.loose`) is refused
- "file": each reads its own files (`tf.data`'s auto-sharding) and fills its part of every batch
  from them. Nothing is read twice; workers may run out of rows at different steps
- "rows": each reads its part of every global batch alone. Not of a `tf.data` set, which is read
  from front to back, but of `sources`
- "off": each was given a data set of its own

"auto" is "file" where there are as many files as workers, and `tf.data` can tell them apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import ConfigError, InputError
from penstock.train.feed.cut import portion, split
from penstock.train.feed.feed import Feed, Share, made_ready
from penstock.train.feed.padding import then_padding

# What may be done with batches without changing how many rows they have, as a rule.
_KEEP_BATCHES: tuple[str, ...] = (
    "Map",
    "ParallelMap",
    "Prefetch",
    "Shuffle",
    "Repeat",
    "Cache",
    "Take",
    "Skip",
)
_KEEP_BATCHES += ("Filter", "Options", "Concatenate", "Zip", "Shard", "AssertCardinality")

Read = Callable[[int, int, int], Any]  # (epoch, start row, rows a batch) to batches


@dataclass(frozen=True)
class DatasetFeed(Feed):
    """`read` gives an epoch's batches from a row on, as data sets of `(x,)`, `(x, y)` or so."""

    read: Read
    count: int | None = None
    likely_rows: int | None = None  # if all batches that were given are whole
    ends: Callable[[int], None] | None = None  # told which epoch is over

    @property
    def likely_steps(self) -> int | None:
        """As many as its batches should make."""
        if self.steps is not None or self.likely_rows is None:
            return self.steps
        return -(-self.likely_rows // self.share.batch_size)

    @property
    def rows(self) -> int | None:
        """What whoever made it knows."""
        return self.count if self.ends_together else None

    @property
    def ends_together(self) -> bool:
        """Where all read of the same, or there is but one."""
        return self.policy in ("data", "rows") or self.share.workers == 1

    def dataset(self, epoch: int, start_step: int = 0, every: int = 1) -> Any:
        """The pieces of an epoch, from a step on; what comes before may have to be read."""
        share = self.share
        size = share.batch_size if self._reads_all else share.own_rows
        batches = self.read(epoch, start_step * size, size)
        if every > 1:
            batches = batches.shard(every, 0)
        whole = share.elements == 1 and not (self._reads_all and share.workers > 1)
        made = batches.map(_counted) if whole else batches.flat_map(self._pieces)
        if self.pads:
            made = then_padding(made.map(self.noted.each))
        elif self._lacks_last:
            assert self.steps is not None
            made = then_padding(made).take((self.steps - start_step) * share.elements)
        return made_ready(made, share)

    def ended(self, epoch: int) -> None:
        """Whoever gave it may want to know."""
        if self.ends is not None:
            self.ends(epoch)

    @property
    def _reads_all(self) -> bool:
        return self.policy == "data"

    @property
    def _lacks_last(self) -> bool:
        """Whether the last batch is so short that it has nothing for this worker."""
        share = self.share
        rest = self.count % share.batch_size if self.policy == "rows" and self.count else 0
        own = split((0, share.batch_size), share.workers)[share.worker]
        start, stop = portion(rest, share.batch_size, own)
        return rest > 0 and start == stop

    def _pieces(self, *batch: Any) -> Any:
        """A batch as its pieces; an empty one is its first row, with count 0."""
        import tensorflow as tf

        share = self.share
        x, y, weight, rows = _counted(*batch)
        spans = tf.stack([[0, rows]])
        if self._reads_all:
            spans = _split(spans, share.workers)[share.worker : share.worker + 1]
        spans = _split(_split(spans, share.micros), share.replicas)

        def piece(span: Any) -> Any:
            start, stop = span[0], span[1]
            count = stop - start
            stop = tf.where(count > 0, stop, 1)
            start = tf.where(count > 0, start, 0)
            parts = tf.nest.map_structure(
                lambda part: None if part is None else part[start:stop], (x, y, weight)
            )
            return (*parts, count)

        return tf.data.Dataset.from_tensor_slices(spans).map(piece)


def dataset_feed(dataset: Any, share: Share, shard: str) -> DatasetFeed:
    """The feed of a Dataset of batches."""
    import tensorflow as tf

    from penstock.train.feed.orders import loose

    _check(dataset)
    policy, mine = shared(dataset, share, shard)
    if policy == "data" and share.workers > 1 and (why := loose(dataset)):
        raise InputError(
            f"expected a data set that every worker reads in the same order; got {why}: pass "
            "seed=…, or leave out deterministic=False, or shard it yourself and say shard='off'"
        )
    orders = _Orders(mine) if is_shuffled(dataset) else None

    def read(epoch: int, start_row: int, size: int) -> Any:
        why = loose(dataset) if start_row else ""
        if start_row and orders is not None and orders.drawn > epoch:
            why = why or "a shuffle that has drawn the next order already"
        if why:
            warnings.warn(
                "this epoch goes on in another order of rows than it began, so that some come "
                f"twice or not at all: the data set has {why}",
                RuntimeWarning,
                stacklevel=4,
            )
        ordered = mine if orders is None else orders.of(epoch)
        return ordered.rebatch(size).skip(start_row // size)

    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise InputError(
            "expected a data set that ends, as an epoch does; got one repeated for ever: pass it "
            "without repeat(), and as many epochs as there are to be"
        )
    given = int(dataset.cardinality())
    size = _batch_of(dataset) if given >= 0 else None
    likely = None if size is None or policy == "off" else given * size
    seeds = tuple(int(each) for pair in _seeds(dataset) for each in pair)
    return DatasetFeed(share, policy, read, likely_rows=likely, seeds=seeds)


class _Orders:
    """The epochs' orders of a shuffled data set, which draws the next one whenever it is begun."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self.drawn = dataset, 0

    def of(self, epoch: int) -> Any:
        """The data set, which draws what comes before this epoch's order when it is begun."""
        import tensorflow as tf

        def draw() -> Any:
            for _ in range(self.drawn, epoch):
                iter(self._dataset)
            self.drawn = max(self.drawn, epoch) + 1
            return np.int64(self.drawn)

        def begun(_: Any) -> Any:
            tf.numpy_function(draw, [], tf.int64)
            return self._dataset

        return tf.data.Dataset.range(1).flat_map(begun)


def _counted(*batch: Any) -> Any:
    """(x, y, sample weight, rows) of an element."""
    import tensorflow as tf

    if len(batch) == 1 and isinstance(batch[0], tuple):
        batch = batch[0]
    x, y, weight = (*batch, None, None)[:3]
    return x, y, weight, tf.shape(tf.nest.flatten(x)[0])[0]


def _split(spans: Any, parts: int) -> Any:
    """`cut.split`, of several spans at once, in the graph."""
    import tensorflow as tf

    start, rows = spans[:, :1], spans[:, 1:] - spans[:, :1]
    edges = tf.range(parts + 1)[None]
    edges = start + edges * (rows // parts) + tf.minimum(edges, rows % parts)
    return tf.reshape(tf.stack([edges[:, :-1], edges[:, 1:]], -1), [-1, 2])


def shared(dataset: Any, share: Share, shard: str) -> tuple[str, Any]:
    """How workers share the data set, and what this one reads of it."""
    import tensorflow as tf

    if shard == "off":
        return "off", dataset
    if shard == "data" or share.workers == 1:
        return "data", dataset
    files = max(map(_files, chain(dataset)), default=0)
    why = f"{files} files" if files else "no list of files"
    if share.batch_size < share.workers:
        why = f"global batches of {share.batch_size}"
    elif files >= share.workers:
        try:
            return "file", _sharded_by_file(dataset, share)
        except tf.errors.OpError as error:
            why = str(error).partition(":")[0]
    if shard == "file":
        raise ConfigError(
            f'shard="file" needs as many files as workers, read by tf.data; got {why} for '
            f"{share.workers} workers"
        )
    return "data", dataset


def _sharded_by_file(dataset: Any, share: Share) -> Any:
    """Raises what TensorFlow does, where it cannot."""
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops import distribute

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    return distribute._AutoShardDataset(dataset.with_options(options), share.workers, share.worker)


def _check(dataset: Any) -> None:
    import tensorflow as tf

    spec = dataset.element_spec
    if isinstance(spec, tuple) and not 1 <= len(spec) <= 3:
        raise InputError(
            f"expected a data set of (x, y) or (x, y, sample_weight); got {len(spec)} components"
        )
    for part in tf.nest.flatten(spec):
        if not isinstance(part, tf.TensorSpec):
            raise InputError(f"expected a data set of dense tensors, got {part}")
        if part.shape.rank == 0:
            raise InputError(
                f"expected a data set of batches, got rows ({part}): call dataset.batch(…)"
            )


def chain(dataset: Any) -> Iterator[Any]:
    """A data set and what it is made of."""
    yield dataset
    for source in getattr(dataset, "_impl", dataset)._inputs():  # readers have one within
        yield from chain(source)


def _files(dataset: Any) -> int:
    """How many names of files a data set lists, if that is what it does."""
    import tensorflow as tf

    names = getattr(dataset, "_filenames", None)
    if names is not None:
        return int(tf.size(names)) if tf.is_tensor(names) else _files(names)
    spec = dataset.element_spec
    listed = isinstance(spec, tf.TensorSpec) and spec.dtype == tf.string and spec.shape.rank == 0
    return int(dataset.cardinality()) if listed and not dataset._inputs() else 0


def own_batch(dataset: Any) -> int:
    """How many rows its batches have, as it was made."""
    _check(dataset)
    found = _batch_of(dataset)
    if found is None:
        raise InputError(
            "expected a data set that tells how many rows its batches have, or a batch_size; got "
            f"{dataset.element_spec}, made in a way that does not: pass fit(…, batch_size=…)"
        )
    return found


def _batch_of(dataset: Any) -> int | None:
    """How many rows the batches of a data set have; `None` where it does not tell."""
    import tensorflow as tf

    known = {part.shape[0] for part in tf.nest.flatten(dataset.element_spec) if part.shape.rank}
    if len(known) == 1 and None not in known:
        return int(known.pop())
    size = getattr(dataset, "_batch_size", getattr(dataset, "_batch_sizes", None))
    if size is not None:
        return int(size) if tf.rank(size) == 0 else None
    if type(dataset).__name__.removeprefix("_").removesuffix("Dataset") not in _KEEP_BATCHES:
        return None
    sizes = {_batch_of(source) for source in dataset._inputs()}
    return sizes.pop() if len(sizes) == 1 else None


def is_shuffled(dataset: Any) -> bool:
    """Whether it, or what it is made of, is."""
    return any(True for _ in _shuffles(dataset))


def is_unseeded(dataset: Any) -> bool:
    """Whether whoever reads it has an order of his own."""
    return any(not any(map(int, seeds)) for seeds in _seeds(dataset))


def _seeds(dataset: Any) -> Iterator[Any]:
    """The two of each shuffle."""
    yield from ((each._seed, each._seed2) for each in _shuffles(dataset))
    yield from _seeds_within(dataset)


def _seeds_within(dataset: Any) -> Iterator[list[Any]]:
    """Of shuffles in the functions that make data sets of its elements (`interleave`, `flat_map`);
    those that are not constants are taken to be some."""
    import tensorflow as tf

    for link in chain(dataset):
        made = getattr(getattr(link, "_map_func", None), "function", None)
        for operation in made.graph.get_operations() if made is not None else ():
            if operation.type.startswith("ShuffleDataset"):
                found = [tf.get_static_value(each) for each in operation.inputs[2:4]]
                yield [1 if each is None else each for each in found]


def _shuffles(dataset: Any) -> Iterator[Any]:
    return (link for link in chain(dataset) if type(link).__name__ == "_ShuffleDataset")
