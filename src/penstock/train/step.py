"""One step: forward and backward of each micro-batch, one all-reduce, one change of the weights.

Everything of a step is one call of one `tf.function`, which also takes the data from the iterator.
Nothing is fetched from the device. With one replica (and one micro-batch a step) all of it may be
compiled by XLA; with several, the forward and backward part of each.

    micro-batches ─▶ _piece ─▶ (sums) ─▶ _reduced ─▶ _apply
                     each replica         all         each, unless the step is skipped

With several workers it is more than one function (`apart`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import ConfigError
from penstock.model.runtime import tf
from penstock.train.clipping import finished, once
from penstock.train.intake import taken
from penstock.train.passes import count_in, forward, replica_number
from penstock.train.reducing import summed
from penstock.train.scaling import LossScale, optimizer_of
from penstock.train.strategies import Place
from penstock.train.sums import Sums
from penstock.train.tally import Tally
from penstock.train.tracing import traced
from penstock.train.undoing import Before
from penstock.train.weighing import Weighing, plainly


class TrainStep:
    """The training step of a model at a place, on elements of a `spec`.

    `micros`: micro-batches a step. `rows`: what a piece has as a rule; only their ratio to `count`
    matters. `may_be_empty`: a step may have no rows at all, and then changes nothing. `through`
    computes the model forward, where it is not the model itself (`remat`). `before` notes what a
    step that fails is to put back.
    """

    def __init__(
        self,
        model: Any,
        place: Place,
        weighing: Weighing,
        tally: Tally,
        before: Before,
        spec: Any,
        *,
        micros: int = 1,
        rows: float = 1.0,
        jit: bool = False,
        scale: LossScale | None = None,
        clip_norm: float | None = None,
        may_be_empty: bool = False,
        through: Any = None,
    ) -> None:
        self._model, self._place, self._weighing, self._tally = model, place, weighing, tally
        self._micros, self._rows, self.jit = micros, rows, jit
        self._before, self._spec = before, spec
        self._through = model if through is None else through
        self._scale, self._clip_norm = scale, clip_norm
        self._may_be_empty = may_be_empty
        self._optimizer = optimizer_of(model)
        self._weights = list(model.trainable_variables)
        self._lone = place.replicas == 1
        self._has_gradient: list[bool] = []
        self._compiled: dict[Any, Any] = {}
        self._prepare()

    def __call__(self, iterator: Any) -> Any:
        """Take a step. Returns what all have counted: (counters, rows), tensors; see `Tally`."""
        with self._plainly():
            return self._function(iterator)

    def undo(self) -> None:
        """After a step that raised in its middle: all but the weights is as before it."""
        self._before.undo()

    def probed(self, x: Any, y: Any, weight: Any, count: Any) -> Any:
        """What a step of several micro-batches does with one, for its memory to be measured."""
        run = self._place.strategy.run(self._added, args=(x, y, weight, count))
        return self._place.strategy.experimental_local_results(run)[0]

    def _prepare(self) -> None:
        if self._micros > 1:
            self._sums = Sums(self._place, self._weights)
        self._function = traced(self._step, reduce_retracing=True)

    def _plainly(self) -> Any:
        return plainly(self._place.replicas, self._optimizer, self._tally.chance)

    def _step(self, iterator: Any) -> Any:
        strategy = self._place.strategy
        if self._place.kind == "one" and self._micros == 1:
            return self._whole(iterator)
        if self._micros == 1:
            reduced = strategy.run(self._piece_reduced, args=self._taken(iterator))
        else:
            begun = strategy.experimental_local_results(strategy.run(self._begin))

            def one(done: Any) -> tuple[Any]:
                strategy.run(self._add, args=self._taken(iterator))
                return (done + 1,)

            with tf.control_dependencies(begun):
                tf.while_loop(lambda done: done < self._micros, one, [0], parallel_iterations=1)
            reduced = strategy.run(self._sums_reduced)
        return self._ended(reduced)

    def _ended(self, reduced: Any) -> Any:
        gradients, changes, counted, rows, finite = reduced
        self._change(gradients, changes, finite, rows)
        local = self._place.strategy.experimental_local_results
        return [local(each)[0] for each in counted], local(rows)[0]

    def _taken(self, iterator: Any) -> Any:
        return taken(iterator, self._place, self._spec)

    # A step of one piece: Keras' own, without a weight.

    def _whole(self, iterator: Any) -> Any:
        x, y, weight, count = self._taken(iterator)
        compiled = self._as_compiled("whole", self._whole_on)
        return compiled(x, y, weight, self._before.note(count))

    def _whole_on(self, x: Any, y: Any, weight: Any, count: Any) -> Any:
        gradients, counts = self._backward(x, y, weight, count)
        self._before.close(gradients)
        with tf.control_dependencies(gradients):
            self._tally.count_loss(counts[2], counts[1])
        gradients, good = finished(gradients, self._scale, self._clip_norm)
        if good is None:
            self._apply(gradients)
        elif self.jit:
            self._apply_where(good, gradients)
        else:
            tf.cond(good, lambda: self._applied(gradients), lambda: tf.constant(False))
        if good is not None:
            self._learn(good)
        return [], tf.cast(count, tf.float32)

    # A step of several pieces.

    def _piece_reduced(self, x: Any, y: Any, weight: Any, count: Any) -> Any:
        gradients, counts = self._piece(x, y, weight, self._before.note(count))
        return self._reduced(gradients, counts, self._before.statistics())

    def _piece(self, x: Any, y: Any, weight: Any, count: Any) -> Any:
        compiled = self._as_compiled("piece", self._backward)
        return compiled(x, y, weight, count)

    def _begin(self) -> Any:
        self._sums.clear()
        return self._before.note(tf.constant(0))

    def _add(self, x: Any, y: Any, weight: Any, count: Any) -> None:
        compiled = self._as_compiled("add", self._added)
        compiled(x, y, weight, count)

    def _added(self, x: Any, y: Any, weight: Any, count: Any) -> Any:
        before = [tf.identity(each.value) for each in self._tally.statistics]
        gradients, counts = self._backward(x, y, weight, count)
        self._keep_from_padding(before, count)
        self._sums.add(gradients, counts, self._has_gradient)
        return counts

    def _keep_from_padding(self, before: list[Any], count: Any) -> None:
        """Statistics are as before, where no row counts."""
        for variable, old in zip(self._tally.statistics, before, strict=True):
            variable.value.assign(tf.where(count > 0, variable.value, old))

    def _sums_reduced(self) -> Any:
        gradients, counts = self._sums.read(self._has_gradient)
        return self._reduced(gradients, counts, self._before.statistics())

    def _reduced(self, gradients: list[Any], counts: Any, before: list[Any]) -> Any:
        """The sums of all replicas, the same on each: gradients, statistics, counters, rows, and
        whether the gradients are finite (`None` where nobody asks).

        `before`: statistics when the step began.
        """
        counted: list[Any] = []
        changes: list[Any] = []
        if not self._lone:
            own = counts[1]
            now = [tf.identity(v.value) for v in self._tally.statistics]
            changes = [(new - old) * own for new, old in zip(now, before, strict=True)]
            counted = [tf.identity(each.value) for each in self._tally.counters]
            sums = summed([*gradients, *changes, counts, *counted], self._place.options)
            ends = (len(gradients), len(gradients) + len(changes))
            gradients, changes = sums[: ends[0]], sums[ends[0] : ends[1]]
            counts, counted = sums[ends[1]], sums[ends[1] + 1 :]
            changes = [
                old + tf.math.divide_no_nan(change, counts[1])
                for old, change in zip(before, changes, strict=True)
            ]
        self._before.close(gradients)
        loss, rows = counts[2], counts[1]
        if self._weighing.by != "sum":
            share = tf.math.divide_no_nan(1.0, counts[0])
            gradients = [gradient * tf.cast(share, gradient.dtype) for gradient in gradients]
            loss = loss * share
        self._tally.count_loss(loss, rows, self._place.replicas)
        if counted:
            counted = self._tally.with_loss(counted, loss, rows)
        gradients, finite = finished(gradients, self._scale, self._clip_norm)
        return gradients, changes, counted, rows, finite

    def _change(self, gradients: Any, changes: Any, finite: Any, rows: Any) -> None:
        """The weights, in each replica; the decision is taken outside of them.

        A step without rows changes nothing, and no more does the loss scale learn of it.
        """
        strategy = self._place.strategy
        local = strategy.experimental_local_results

        def applied() -> Any:
            strategy.run(self._apply, args=(gradients,))
            return tf.constant(True)

        strategy.run(self._set_statistics, args=(changes,))
        some = local(rows)[0] > 0 if self._may_be_empty else None
        good = None if finite is None else local(finite)[0]
        needed = [each for each in (some, good) if each is not None]
        if not needed:
            applied()
            return
        tf.cond(tf.reduce_all(needed), applied, lambda: tf.constant(False))
        if good is not None:
            self._learn(good, some)

    def _set_statistics(self, changes: Any) -> None:
        for variable, value in zip(self._tally.statistics[: len(changes)], changes, strict=True):
            variable.value.assign(value)

    # What all steps share.

    def _backward(self, x: Any, y: Any, weight: Any, count: Any) -> Any:
        """The gradients of a piece × what it counts, and [what it counts, its rows, its loss × what
        it counts].

        Nothing may happen where there is no piece any more: random seeds would go on.
        """
        with tf.control_dependencies([count]):
            return self._differentiated(x, y, weight, count)

    def _differentiated(self, x: Any, y: Any, weight: Any, count: Any) -> Any:
        model, tally = self._model, self._tally
        many = self._weighing.pieces > 1
        weight = self._weighing.sample_weight(y, weight)
        before = tally.before() if many or tally.weighs_losses else []
        with tf.GradientTape() as tape:
            y_pred, loss = forward(model, x, y, weight, training=True, through=self._through)
            own, rows, aim = tf.ones(()), tf.cast(count, tf.float32), loss
            if many:
                own = self._weighing.of(count, y, weight, y_pred, self._rows)
                aim = aim * tf.cast(own, aim.dtype)
            weighed = tf.where(count > 0, tf.cast(loss, tf.float32) * own, 0.0)
            if self._scale is not None:
                aim = aim * tf.cast(self._scale.value, aim.dtype)
        found = tape.gradient(aim, [each.value for each in self._weights])
        self._has_gradient = [each is not None for each in found]
        gradients = [each for each in found if each is not None]
        if not gradients:
            raise ConfigError("the loss depends on none of the model's trainable weights")
        gradients = [once(each, dense=many or self.jit) for each in gradients]
        # Where memory runs out on the way back, the piece is taken again: it must not count twice.
        with tf.control_dependencies(gradients):
            count_in(model, tally, x, y, y_pred, weight, count, before)
        return gradients, tf.stack([own, rows, weighed])

    def _apply(self, gradients: list[Any]) -> None:
        pairs = zip(self._weights, self._has_gradient, strict=True)
        weights = [weight for weight, has in pairs if has]
        with tf.control_dependencies(gradients):  # weights decay without them, else
            self._optimizer.apply(gradients, weights)

    def _applied(self, gradients: list[Any]) -> Any:
        self._apply(gradients)
        return tf.constant(True)

    def _apply_where(self, good: Any, gradients: list[Any]) -> None:
        """Without a branch: at one of XLA's the host waits for the device, in every step."""
        changing = [*self._weights, *self._optimizer.variables]
        before = [tf.identity(each.value) for each in changing]
        self._apply(gradients)
        for each, old in zip(changing, before, strict=True):
            each.value.assign(tf.where(good, each.value, old))

    def _learn(self, finite: Any, some: Any = None) -> None:
        assert self._scale is not None
        self._scale.learn(finite, some)

    def _as_compiled(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if not self.jit:
            return function
        key = (name, replica_number())
        if key not in self._compiled:
            self._compiled[key] = traced(function, jit_compile=True, reduce_retracing=True)
        compiled: Callable[..., Any] = self._compiled[key]
        return compiled
