"""What every feed can do, and what their data sets have in common.

A step takes one global batch. For it, a worker's data set has `micros` × `replicas` elements
`(x, y, sample_weight, count)`, in the order step → micro-batch → replica. `count` is the number of
rows that count: where there is no row for a replica, it gets one that is padding, with count 0.
Components that do not exist are `None`.

Where workers may run out of rows at different steps, a data set goes on with padding for ever
(`pads`): training stops at the step to which nobody contributed a row. So it does where only
reading tells how many steps there are: what all should have alike, they may not have.
"""

from __future__ import annotations

import abc
import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from penstock.errors import ConfigError, InputError
from penstock.train.feed.cut import split

_AHEAD = 2  # micro-batches made ready for each replica


@dataclass(frozen=True)
class Share:
    """How a global batch is cut, and which part of it is this worker's."""

    batch_size: int
    replicas: int = 1
    worker: int = 0
    workers: int = 1
    micros: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "replicas", "workers", "micros"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not 0 <= self.worker < self.workers:
            raise ConfigError(
                f"worker: expected 0 to {self.workers - 1}, of {self.workers}; got {self.worker}"
            )

    @property
    def own_rows(self) -> int:
        """Rows of a global batch that a worker fills from data of its own."""
        start, stop = split((0, self.batch_size), self.workers)[self.worker]
        return max(stop - start, 1)

    @property
    def elements(self) -> int:
        """Elements of a data set for each step."""
        return self.micros * self.replicas


class Noted:
    """How many elements there were before padding, as far as they were made ready."""

    def __init__(self) -> None:
        self.count = 0

    def forget(self) -> None:
        """Before an epoch is begun, or taken up."""
        self.count = 0

    def each(self, *element: Any) -> Any:
        """To be mapped over a data set."""
        import tensorflow as tf

        def note() -> Any:
            self.count += 1
            return np.int32(0)

        return (*element[:3], element[3] + tf.reshape(tf.numpy_function(note, [], tf.int32), []))


@dataclass(frozen=True)
class Feed(abc.ABC):
    """Rows for training or validation. `policy` says how they are shared among the workers."""

    share: Share
    policy: str
    noted: Noted = field(default_factory=Noted, kw_only=True, compare=False)
    seeds: tuple[int, ...] = field(default=(), kw_only=True)  # of a data set's own shuffles

    @property
    @abc.abstractmethod
    def rows(self) -> int | None:
        """Rows an epoch, of all workers; `None` where only reading tells."""

    @property
    @abc.abstractmethod
    def ends_together(self) -> bool:
        """Whether all workers have equally many steps."""

    @property
    def pads(self) -> bool:
        """Whether data sets go on with padding behind their end."""
        return not self.ends_together or (self.share.workers > 1 and self.rows is None)

    @property
    def begins_ahead(self) -> bool:
        """Whether an epoch may be begun before the last one is told to be over: its rows are the
        same whenever that is done, and whoever made them does not notice."""
        return False

    @abc.abstractmethod
    def dataset(self, epoch: int, start_step: int = 0, every: int = 1) -> Any:
        """An epoch's data set from a step on: the same elements, whoever asks again.

        `every`: of so many steps the first alone.
        """

    def ended(self, epoch: int) -> None:  # noqa: B027
        """All of that epoch was taken, and the device is done with it; callbacks do not know yet.

        Nothing here; a feed whose epoch is begun ahead must not mind.
        """

    @property
    def steps(self) -> int | None:
        """Steps an epoch; `None` where only reading tells."""
        if self.rows is None or not self.ends_together:
            return None
        return -(-self.rows // self.share.batch_size)

    @property
    def likely_steps(self) -> int | None:
        """What people may be told before the first epoch has shown it."""
        return self.steps

    def recut(self, micros: int) -> Self:
        """The same rows in more or fewer micro-batches a step."""
        return dataclasses.replace(self, share=dataclasses.replace(self.share, micros=micros))


def check_some(rows: float, to: str) -> None:
    """Refuse data that turned out to have no rows."""
    if not rows:
        raise InputError(f"expected at least one row to {to} on, got none")


def made_ready(dataset: Any, share: Share) -> Any:
    """The data set, worked out ahead, always in order; nobody is to shard it again."""
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.prefetch(_AHEAD * share.replicas).with_options(options)


def untuned() -> Any:
    """Options of data sets that leave no numbers of threads and elements to TensorFlow.

    It looks for better ones all the same, in a thread of each iterator that wakes up more and more
    rarely; and the iterator's end waits for that: a quarter of a second after a short epoch.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return options
