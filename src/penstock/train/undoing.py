"""What a step that failed has changed is put back, so that it can be taken again, in other pieces.

Layers change their state in the forward pass (statistics of `BatchNormalization`, random seeds),
and metrics count behind it. So a step notes all of that before anything else happens; until it is
changed, that shares memory and copies nothing. The weights need none of it: they change last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.model.runtime import tf
from penstock.train.strategies import Place
from penstock.train.tally import Tally
from penstock.train.tracing import traced


class Before:
    """What the state that `tally` knows of was when a step began, on each replica for itself."""

    def __init__(self, place: Place, tally: Tally) -> None:
        self._place, self._tally = place, tally
        with place.strategy.scope():
            self._open = own_variable(())  # 1 while a step may have changed something
            self._kept = [
                own_variable(each.shape, each.dtype, _device(place, each)) for each in self._state()
            ]

    def note(self, count: Any) -> Any:
        """In a replica, before anything else. Returns `count`: what waits for it happens later."""
        pairs = zip(self._kept, self._state(), strict=True)
        noted = [kept.assign(variable.value) for kept, variable in pairs]
        with tf.control_dependencies(noted):
            opened = self._open.assign(1.0)
        with tf.control_dependencies([opened]):
            return tf.identity(count)

    def close(self, gradients: Sequence[Any]) -> None:
        """In a replica, when these are known, of all replicas: no other has failed, either."""
        counted = [tf.identity(each.value) for each in self._tally.counters]
        with tf.control_dependencies([*gradients, *counted]):
            self._open.assign(0.0)

    def statistics(self) -> list[Any]:
        """Of layers, as noted."""
        return [tf.identity(each) for each in self._kept[: len(self._tally.statistics)]]

    def undo(self) -> None:
        """After a step that raised: all is as it was noted, if that step has noted anything."""
        strategy = self._place.strategy
        traced(lambda: strategy.run(self._undo))()

    def _undo(self) -> None:
        for kept, variable in zip(self._kept, self._state(), strict=True):
            now = tf.identity(variable.value)
            variable.value.assign(tf.where(self._open > 0, tf.identity(kept), now))
        self._open.assign(0.0)

    def _state(self) -> Iterator[Any]:
        yield from self._tally.statistics
        yield from self._tally.other_state
        yield from self._tally.counters


def own_variable(shape: Any, dtype: Any = "float32", device: str | None = None) -> Any:
    """A variable that each replica has for itself: no strategy keeps them equal."""
    with tf.device(device):
        return tf.Variable(
            tf.zeros(shape, dtype),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )


def _device(place: Place, variable: Any) -> str | None:
    """Beside what is kept in it: a model in stages lies on several."""
    return str(variable.value.device) if place.kind == "one" else None
