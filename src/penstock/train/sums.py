"""Sums of gradients over the micro-batches of a step, on each replica for itself.

They are variables that no strategy keeps equal: what is in them is all-reduced once a step. With
them is kept what layers' statistics and metrics' counters were when the step began. None are made
for steps of one micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.model.runtime import tf
from penstock.train.strategies import Place
from penstock.train.tally import Tally


class Sums:
    """Of the gradients of `weights`, and of what pieces count (see `step`).

    What `tally` counts is kept beside.
    """

    def __init__(self, place: Place, weights: Sequence[Any], tally: Tally) -> None:
        self._statistics, self._counters = tally.statistics, tally.counters
        with place.strategy.scope():
            self._gradients = [_own(each.shape) for each in weights]
            self._counts = _own((3,))
            self._open = _own(())  # 1 from the beginning of a step to its end
            self._kept = [_own(each.shape, each.dtype) for each in self._changing()]

    def clear(self) -> None:
        """Before a step."""
        for total in (*self._gradients, self._counts):
            total.assign(tf.zeros(total.shape, total.dtype))
        pairs = zip(self._kept, self._changing(), strict=True)
        done = [kept.assign(variable.value) for kept, variable in pairs]
        with tf.control_dependencies(done):
            self._open.assign(1.0)

    def undo(self) -> None:
        """After a step that began and was not ended: statistics and counters are as before it."""
        for kept, variable in zip(self._kept, self._changing(), strict=True):
            now = tf.identity(variable.value)
            variable.value.assign(tf.where(self._open > 0, tf.identity(kept), now))

    def add(self, gradients: Sequence[Any], counts: Any, present: Sequence[bool]) -> None:
        """Of a piece; `present` says which of the weights have a gradient."""
        for total, gradient in zip(self._of(present), gradients, strict=True):
            total.assign_add(tf.cast(gradient, total.dtype))
        self._counts.assign_add(counts)

    def read(self, present: Sequence[bool]) -> tuple[list[Any], Any, list[Any]]:
        """Gradients, counts, and the statistics from before."""
        gradients = [tf.identity(total) for total in self._of(present)]
        before = [tf.identity(each) for each in self._kept[: len(self._statistics)]]
        with tf.control_dependencies(gradients):
            self._open.assign(0.0)
        return gradients, tf.identity(self._counts), before

    def _changing(self) -> list[Any]:
        return [*self._statistics, *self._counters]

    def _of(self, present: Sequence[bool]) -> list[Any]:
        pairs = zip(self._gradients, present, strict=True)
        return [total for total, is_there in pairs if is_there]


def _own(shape: Any, dtype: Any = "float32") -> Any:
    """A variable that each replica has for itself."""
    return tf.Variable(
        tf.zeros(shape, dtype),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )
