"""Validation at the end of an epoch: the metrics of another data set, over all replicas.

What XLA compiles of a training step, it may not of validation: that goes on without it.
"""

from __future__ import annotations

from typing import Any

from penstock.model.runtime import tf
from penstock.train.callbacks import Listeners, Logs
from penstock.train.intake import iterator_of, taken
from penstock.train.jit import _is_of_the_compiler
from penstock.train.loop import plain
from penstock.train.passes import count_in, forward, replica_number
from penstock.train.reducing import summed
from penstock.train.strategies import Place
from penstock.train.tally import Tally
from penstock.train.weighing import plainly


class Validation:
    """Called once an epoch; leaves the metrics of training as they were."""

    def __init__(
        self, model: Any, place: Place, tally: Tally, feed: Any, listeners: Listeners, jit: bool
    ) -> None:
        self._model, self._place, self._tally = model, place, tally
        self._feed, self._listeners = feed, listeners
        self._jit = jit
        self._step = self._made()

    def __call__(self) -> dict[str, float]:
        self._model.reset_metrics()
        self._listeners.tell("test_begin", {})
        self._run_through()
        logs = plain(self._tally.results(self._step.counted()))
        self._listeners.tell("test_end", logs)
        return logs

    def _run_through(self) -> None:
        iterator = iterator_of(self._feed, self._place, 0)
        step = 0
        while self._feed.steps is None or step < self._feed.steps:
            self._listeners.tell("test_batch_begin", step, {})
            try:
                rows = self._step(iterator)
            except tf.errors.OutOfRangeError:
                break
            except tf.errors.OpError as error:
                if not self._jit or not _is_of_the_compiler(error):
                    raise
                self._jit = False
                self._step = self._made()
                iterator = iterator_of(self._feed, self._place, 0, step)
                rows = self._step(iterator)
            # A worker whose own rows have ended counts only padding from there on.
            if not self._feed.ends_together and int(rows) == 0:
                break
            logs = Logs(lambda: plain(self._tally.results()))
            self._listeners.tell("test_batch_end", step, logs)
            step += 1

    def _made(self) -> _Step:
        spec = self._feed.dataset(0).element_spec
        return _Step(self._model, self._place, self._tally, spec, self._jit)


class _Step:
    """Counts a piece on each replica; `counted` sums what the replicas have."""

    def __init__(self, model: Any, place: Place, tally: Tally, spec: Any, jit: bool) -> None:
        self._model, self._place, self._tally, self._jit = model, place, tally, jit
        self._spec = spec
        self._function = tf.function(self._step, reduce_retracing=True, autograph=False)
        self._gather = tf.function(self._gathered, autograph=False)
        self._compiled: dict[Any, Any] = {}

    def __call__(self, iterator: Any) -> Any:
        """Take a step; returns its rows on this worker."""
        with plainly(self._place.replicas):
            return self._function(iterator)

    def counted(self) -> Any:
        """The counters of all replicas; `None` with one, whose own they are."""
        return None if self._place.replicas == 1 else self._gather()

    def _step(self, iterator: Any) -> Any:
        data = taken(iterator, self._place, self._spec)
        rows = self._place.strategy.run(self._piece, args=data)
        return tf.add_n(self._place.strategy.experimental_local_results(rows))

    def _piece(self, x: Any, y: Any, weight: Any, count: Any) -> Any:
        function: Any = self._counted
        if self._jit:
            function = self._compiled.setdefault(
                replica_number(), tf.function(function, jit_compile=True, autograph=False)
            )
        with tf.control_dependencies([count]):  # nothing happens without data
            return function(x, y, weight, count)

    def _counted(self, x: Any, y: Any, weight: Any, count: Any) -> Any:
        tally = self._tally
        before = tally.before() if self._place.replicas > 1 or tally.weighs_losses else []
        y_pred, loss = forward(self._model, x, y, weight, training=False)
        count_in(self._model, tally, x, y, y_pred, weight, loss, count, before)
        return count

    def _gathered(self) -> Any:
        def together() -> Any:
            counted = [tf.identity(each.value) for each in self._tally.counters]
            return summed(counted, self._place.options)

        strategy = self._place.strategy
        sums = strategy.run(together)
        return [strategy.experimental_local_results(each)[0] for each in sums]
