"""Validation at the end of an epoch: the metrics of another data set, over all replicas.

What XLA compiles of a training step, it may not of validation: that goes on without it. A batch is
taken in as many pieces as in training, and in more where they do not fit. No worker asks another
one before the end: each may cut its batches as it must, and run out of them when it does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import DeviceMemoryError
from penstock.model.runtime import tf
from penstock.train.agreement import added_up, largest
from penstock.train.callbacks import Listeners, Logs
from penstock.train.feed.feed import check_some
from penstock.train.intake import iterator_of, taken
from penstock.train.jit import _is_of_the_compiler
from penstock.train.loop import plain
from penstock.train.micro import is_out_of_memory
from penstock.train.passes import count_in, forward, replica_number
from penstock.train.reducing import summed
from penstock.train.strategies import Place
from penstock.train.tally import Tally
from penstock.train.tracing import traced
from penstock.train.weighing import Weighing, plainly

_FETCHED = 512  # losses at a time


class Validation:
    """Called once an epoch. What the metrics have counted in training is gone afterwards."""

    def __init__(
        self, model: Any, place: Place, tally: Tally, feed: Any, listeners: Listeners, jit: bool
    ) -> None:
        self._model, self._place, self._tally = model, place, tally
        self._feed, self._listeners = feed, listeners
        self._jit = jit
        self._told = 0  # steps of which the listeners have heard
        self._step = self._made()
        self._losses = _Losses(self._step.sums)

    def __call__(self) -> dict[str, float]:
        self._listeners.tell("test_begin", {})
        self._told = 0
        while not self._run_through():
            pass
        losses = self._losses.of_all(self._place)
        self._feed.ended(0)
        check_some(losses[:, 1].sum(), "validate")
        logs = self._results(self._step.counted(), losses)
        self._listeners.tell("test_end", logs)
        return logs

    def _run_through(self) -> bool:
        """Whether that could be done; else it is to be tried again, in another way."""
        self._model.reset_metrics()
        self._losses = _Losses(self._step.sums)
        iterator = iterator_of(self._feed, self._place, 0)
        step = 0
        while self._feed.steps is None or step < self._feed.steps:
            self._tell("test_batch_begin", step, {})
            try:
                counts = [self._step(iterator) for _ in range(self._feed.share.micros)]
            except tf.errors.OutOfRangeError:
                break
            except tf.errors.OpError as error:
                self._change(error)
                return False
            total = counts[0] if len(counts) == 1 else tf.add_n(counts)
            # A worker whose own rows have ended counts only padding from there on.
            if self._feed.pads and float(total[1]) == 0:
                break
            self._losses.add(total)
            self._tell("test_batch_end", step, Logs(self._so_far))
            step += 1
            self._told = max(self._told, step)
        return True

    def _tell(self, hook: str, step: int, logs: Any) -> None:
        if step >= self._told:
            self._listeners.tell(hook, step, logs)

    def _so_far(self) -> dict[str, float]:
        """What this worker has counted: the others may be at another step, or not look at all."""
        own = self._tally.own(self._place.strategy)
        return self._results(own, self._losses.of_worker())

    def _results(self, counted: list[Any], losses: np.ndarray[Any, Any]) -> dict[str, float]:
        loss, rows = self._losses.mean(losses)
        return plain(self._tally.results(self._tally.with_loss(counted, loss, rows)))

    def _change(self, error: Exception) -> None:
        """Another way, after that; or the error again."""
        share = self._feed.share
        if is_out_of_memory(error):
            if share.micros * share.replicas >= share.batch_size:
                raise DeviceMemoryError(
                    "validation of one row at a time does not fit the device's memory"
                ) from error
            self._feed = self._feed.recut(2 * share.micros)
        elif self._jit and _is_of_the_compiler(error):
            self._jit = False
        else:
            raise error
        self._step = self._made()

    def _made(self) -> _Step:
        spec = self._feed.dataset(0).element_spec
        return _Step(
            self._model, self._place, self._tally, spec, self._feed.share.micros, self._jit
        )


class _Losses:
    """Of each step, as this worker has it: [what it counts, its rows, its loss × what it counts].

    Only with those of the other workers a step's loss can be told.
    """

    def __init__(self, sums: bool) -> None:
        self._sums = sums  # the loss of a step is the sum of its pieces'
        self._fetched = np.zeros((0, 3))
        self._fresh: list[Any] = []

    def add(self, counts: Any) -> None:
        """A step's; it is fetched from the device later."""
        self._fresh.append(counts)
        if len(self._fresh) >= _FETCHED:
            self.of_worker()

    def of_worker(self) -> np.ndarray[Any, Any]:
        """A row a step."""
        if self._fresh:
            fresh, self._fresh = tf.stack(self._fresh).numpy(), []
            self._fetched = np.concatenate([self._fetched, fresh.astype("float64")])
        return self._fetched

    def of_all(self, place: Place) -> np.ndarray[Any, Any]:
        """The sums of all workers, some of which may have had fewer steps."""
        own = self.of_worker()
        steps = largest(place, len(own))
        return added_up(place, np.pad(own, ((0, steps - len(own)), (0, 0))))

    def mean(self, losses: np.ndarray[Any, Any]) -> tuple[float, float]:
        """The mean of the steps' losses, each by its rows; and all rows."""
        counts, rows, loss = losses.T
        if not self._sums:
            loss = np.divide(loss, counts, out=np.zeros_like(loss), where=counts > 0)
        return float(loss @ rows / max(rows.sum(), 1.0)), float(rows.sum())


class _Step:
    """Counts a piece on each replica; `counted` sums what the replicas have."""

    def __init__(
        self, model: Any, place: Place, tally: Tally, spec: Any, micros: int, jit: bool
    ) -> None:
        self._model, self._place, self._tally, self._jit = model, place, tally, jit
        self._spec = spec
        self._weighing = Weighing(model, micros * place.replicas)
        self.sums = self._weighing.by == "sum"
        self._function = traced(self._step, reduce_retracing=True)
        self._gather = traced(self._gathered)
        self._compiled: dict[Any, Any] = {}

    def __call__(self, iterator: Any) -> Any:
        """Take a piece on each replica; returns what those of this worker count: see `_Losses`."""
        with plainly(self._place.replicas, chance=self._tally.chance):
            return self._function(iterator)

    def counted(self) -> list[Any]:
        """The counters of all replicas."""
        if self._place.replicas == 1:
            return self._tally.before()
        return list(self._gather())

    def _step(self, iterator: Any) -> Any:
        data = taken(iterator, self._place, self._spec)
        counts = self._place.strategy.run(self._piece, args=data)
        return tf.add_n(self._place.strategy.experimental_local_results(counts))

    def _piece(self, x: Any, y: Any, weight: Any, count: Any) -> Any:
        function: Any = self._counted
        if self._jit:
            function = self._compiled.setdefault(
                replica_number(), traced(function, jit_compile=True)
            )
        with tf.control_dependencies([count]):  # nothing happens without data
            return function(x, y, weight, count)

    def _counted(self, x: Any, y: Any, weight: Any, count: Any) -> Any:
        tally, many = self._tally, self._weighing.pieces > 1
        before = tally.before() if many or tally.weighs_losses else []
        y_pred, loss = forward(self._model, x, y, weight, training=False)
        count_in(self._model, tally, x, y, y_pred, weight, count, before)
        own = self._weighing.of(count, y, weight, y_pred, 1.0) if many else tf.ones(())
        weighed = tf.where(count > 0, tf.cast(loss, tf.float32) * own, 0.0)
        return tf.stack([own, tf.cast(count, tf.float32), weighed])

    def _gathered(self) -> Any:
        def together() -> Any:
            counted = [tf.identity(each.value) for each in self._tally.counters]
            return summed(counted, self._place.options)

        strategy = self._place.strategy
        sums = strategy.run(together)
        return [strategy.experimental_local_results(each)[0] for each in sums]
