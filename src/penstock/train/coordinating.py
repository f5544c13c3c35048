"""The chief of parameter servers: it hands out steps, and waits for them where that must be.

Steps go to whichever worker is free. Where workers can read the data themselves, each takes the
next batch of its own part (`sharing`); else steps come with their rows, or the numbers of these
(`shipping`). Every row is trained on once an epoch, whoever dies; steps are taken at the same time,
each with weights that the others are changing. The chief waits for all steps that are under way
(`Steps.join`) after every round of them, before metrics are told at the end of an epoch, and before
a checkpoint is written.
"""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

from penstock.data.tfdata import is_dataset
from penstock.errors import ConfigError
from penstock.model.runtime import keras, tf
from penstock.train.callbacks import Listeners, Logs
from penstock.train.cluster import Cluster
from penstock.train.feed import feed_for
from penstock.train.feed.batches import check_epochs
from penstock.train.feed.feed import check_some
from penstock.train.feed.opening import made
from penstock.train.feed.parts import policy_for
from penstock.train.handing import (
    AsyncLoop,
    Rested,
    Steps,
    count_at_once,
    count_loss_at_once,
    losses_at_once,
    steps_at_once,
)
from penstock.train.history import History
from penstock.train.keeping import Keeper
from penstock.train.loop import Loop, Run, listed, plain
from penstock.train.options import Options
from penstock.train.passes import check_targets, forward
from penstock.train.patience import Patience
from penstock.train.reading import Asked, names_of_functions, spec_of
from penstock.train.saving import Kept
from penstock.train.scaling import optimizer_of
from penstock.train.servers import three
from penstock.train.sharing import Own, OwnLoop
from penstock.train.shipping import Carried, Change, Shipped, shipped
from penstock.train.strategies import Place
from penstock.train.tally import Tally
from penstock.train.weighing import Weighing


class Coordinated:
    """A run of `fit` on the chief. See `running` for its like without servers."""

    def __init__(
        self,
        model: Any,
        coordinator: Any,
        found: Cluster,
        options: Options,
        patience: Patience,
        first: bool = True,
    ) -> None:
        self._first = first  # the `fit` that workers have come to, and stay in
        self._model, self._options, self._found = model, options, found
        self._coordinator, self._strategy = coordinator, coordinator.strategy
        self._handed = Steps(coordinator, found, options.timeout, patience)
        self._place = Place(self._strategy, "parameter_server", workers=1, cluster=found)
        self._batch_size, self._micros = 0, 1
        self._example: Any = None

    def trained(self, data: Any, validation_data: Any, callbacks: Any) -> History:
        """Train to the end."""
        options, model = self._options, self._model
        keeper = Keeper(options, self._place)
        newest = keeper.newest
        drawn = options.seed if options.seed is not None else random.SystemRandom().getrandbits(31)
        self._seed = int(newest.facts["seed"]) if newest is not None else drawn
        check_epochs(data[0], options.trainings)
        feed = self._feed(data, options.batch_size, training=True)
        self._batch_size = feed.share.batch_size
        self._micros = options.micros(self._batch_size, 1, 1)
        feed = feed.recut(self._micros)
        self._example = feed.dataset(0).element_spec[:3]
        check_targets(model, self._example[1])
        with self._strategy.scope():
            self.build(model)
        self._tally = Tally(model)
        rows = self._rows(data, feed, "training")
        shared = isinstance(rows, Own)
        kept = Kept(model, self._tally, None)
        parts = {"shard": rows.policy, "workers": self._found.size} if shared else {}
        at = keeper.begin(kept, feed, **parts)
        steps = (
            None if rows.policy == "off" else feed.likely_steps
        )  # there the chief's rows are not taken
        params = options.params(steps)
        listeners: Any = Rested(
            Listeners(model, callbacks, params, True, alone=False), self._handed.patience
        )
        loop = (OwnLoop if shared else AsyncLoop)(
            Run(
                model,
                self._place,
                self._tally,
                feed,
                self._step(rows),
                listeners,
                options.epochs,
                validate=self._validation(validation_data, listeners),
                validation_freq=options.validation_freq,
                save=keeper.saving(kept, self._seed, listeners.all),
                save_every=options.checkpoint_every,
                recall=keeper.recall,
            ),
            at,
            self._handed,
            rows,
        )
        resumed, began = at.step, time.monotonic()
        try:
            loop()
        finally:
            listeners.close()
        told = listeners.history
        return History(
            model,
            listed(told.history),
            list(told.epoch),
            params,
            self._report(loop, resumed, time.monotonic() - began, rows.policy),
        )

    def build(self, model: Any) -> None:
        """Make all variables of a model, before anything is traced."""
        spec = keras().tree.map_structure(
            lambda part: part if hasattr(part, "shape") else None, self._example
        )
        model._symbolic_build(data_batch=spec)

    def _feed(self, data: Any, batch_size: int | None, training: bool) -> Any:
        return feed_for(
            *data,
            batch_size=batch_size,
            replicas=1,
            worker=(0, 1),
            shuffle=self._options.shuffle and training,
            seed=self._seed,
            training=training,
        )

    def _rows(self, data: Any, feed: Any, which: str) -> Carried | Shipped | Own:
        """How rows reach the workers."""
        asked = self._options.shard
        if which == "validation" and asked == "file":
            asked = "auto"  # what is validated on may lie elsewhere
        if asked == "file" and not is_dataset(made(data[0])):
            raise ConfigError(
                f'shard="file" is for tf.data sets that read files; got a {type(data[0]).__name__}'
            )
        arrays = None if asked in ("off", "chief") else shipped(feed, self._coordinator)
        if arrays is not None:
            return arrays
        policy = policy_for(data[0], feed, self._found.size, asked)
        if policy is not None and names_of_functions() is None:
            if asked != "auto":
                raise ConfigError(
                    f'shard="{asked}": TensorFlow {tf.__version__} keeps the functions by which '
                    "workers read their own data where they are not found (2.21 is known to work): "
                    'say shard="chief"'
                )
            return Carried(feed)
        if policy is not None and _looks_up(self._model):
            if asked != "auto":
                raise ConfigError(
                    f'shard="{asked}": expected a model without tables, which a worker that reads '
                    "its own data cannot reach; got one with a StringLookup, an IntegerLookup or a "
                    'TextVectorization: say shard="chief", or look words up in the data'
                )
            return Carried(feed)
        if policy is not None and not self._first and asked != "auto":
            raise ConfigError(
                f'shard="{asked}" is for the first fit of a script: its workers stay there, and '
                'know no data of a later one, which the chief has to read: say shard="auto"'
            )
        if policy is None or not self._first:
            return Carried(feed)
        whole = feed.dataset(0)
        request = Asked(
            *(which, policy, self._found.size, feed.share.batch_size, feed.share.micros),
            *(self._options.shuffle and which == "training", self._seed, spec_of(whole)),
        )
        return Own(
            *(request, whole.element_spec[:3], self._strategy),
            *(self._handed, self._found, self._options.timeout),
        )

    # ── steps ───────────────────────────────────────────────────────────────────────────────────

    def _step(self, rows: Carried | Shipped | Own) -> Any:
        weighing = Weighing(self._model, self._micros, self._options.class_weight)

        def change(pieces: list[Any]) -> Any:
            return self._strategy.run(self._changed, args=(pieces, weighing))

        function = _on_workers(rows, change)
        if isinstance(rows, Own):
            return lambda most: rows.round(function, most)

        def step(iterator: Any) -> tuple[None, int]:
            with self._handed.patience.resting():  # data may take its time
                pieces = list(itertools.islice(iterator, self._micros))
            if not pieces:
                raise tf.errors.OutOfRangeError(None, None, "the epoch is over")
            self._handed.hand_out(function, rows.arguments(pieces))
            return None, 1

        return step

    def _changed(self, pieces: list[Any], weighing: Weighing) -> Any:
        """On a worker: one change of the weights."""
        model, optimizer = self._model, optimizer_of(self._model)
        weights = list(model.trainable_variables)
        sums: list[Any] = [None] * len(weights)
        total: Any = 0.0
        losses: Any = 0.0
        taken: Any = 0.0
        rows = self._batch_size / self._micros
        for x, y, given, count in pieces:
            weight = weighing.sample_weight(y, given)
            with tf.GradientTape() as tape, losses_at_once(model, count):
                y_pred, loss = forward(model, x, y, weight, training=True)
                counts = weighing.of(count, y, weight, y_pred, rows) if len(pieces) > 1 else 1.0
                aim = loss * tf.cast(counts, loss.dtype)
            found = tape.gradient(aim, [each.value for each in weights])
            sums = [_plus(sum_, gradient) for sum_, gradient in zip(sums, found, strict=True)]
            total += counts
            losses += tf.where(count > 0, tf.cast(aim, tf.float32), 0.0)
            taken += tf.cast(count, tf.float32)
            count_at_once(model, self._tally, x, y, y_pred, weight, count)
        share = (
            1.0 if weighing.by == "sum" or len(pieces) == 1 else tf.math.divide_no_nan(1.0, total)
        )
        count_loss_at_once(model._loss_tracker, losses * share, taken)
        pairs = [
            (g * tf.cast(share, g.dtype), w)
            for g, w in zip(sums, weights, strict=True)
            if g is not None
        ]
        if not pairs:
            raise ConfigError("the loss depends on none of the model's trainable weights")
        gradients = [gradient for gradient, _ in pairs]
        if self._options.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self._options.clip_norm)
        with steps_at_once(optimizer):
            optimizer.apply(gradients, [weight for _, weight in pairs])
        return total

    def _validation(self, data: Any, listeners: Rested) -> Any:
        if data is None:
            return None
        parts = three(data)
        options = self._options
        check_epochs(parts[0], options.validations)
        size = options.validation_batch_size or self._batch_size
        feed = self._feed(parts, size, training=False)
        rows = self._rows(parts, feed, "validation")

        def counted(x: Any, y: Any, weight: Any, count: Any) -> Any:
            with losses_at_once(self._model, count):
                y_pred, loss = forward(self._model, x, y, weight, training=False)
            count_at_once(self._model, self._tally, x, y, y_pred, weight, count)
            count_loss_at_once(self._model._loss_tracker, loss, count)
            return count

        function = _on_workers(rows, lambda pieces: self._strategy.run(counted, args=pieces[0]))

        def so_far() -> dict[str, float]:
            with self._handed.patience.watching():
                return plain(self._tally.results())

        def read() -> None:
            assert isinstance(rows, Own)
            rows.begin(0)
            told = 0
            while not rows.over:
                rows.round(function)
                for step in range(told, rows.steps):
                    listeners.tell("test_batch_begin", step, {})
                    listeners.tell("test_batch_end", step, Logs(so_far))
                told = rows.steps
            rows.check_ends()
            check_some(rows.rows, "validate")

        def carry() -> None:
            assert not isinstance(rows, Own)
            iterator = rows.begin(0)
            for step in itertools.count():
                listeners.tell("test_batch_begin", step, {})
                with self._handed.patience.resting():
                    piece = next(iterator, None)
                if piece is None:
                    break
                self._handed.hand_out(function, rows.arguments([piece]))
                listeners.tell("test_batch_end", step, Logs(so_far))
            self._handed.join()
            feed.ended(0)
            check_some(step, "validate")

        def validate() -> dict[str, float]:
            self._model.reset_metrics()
            listeners.tell("test_begin", {})
            read() if isinstance(rows, Own) else carry()
            logs = plain(self._tally.results())
            listeners.tell("test_end", logs)
            return logs

        return validate

    # ── checkpoints, and what is told ───────────────────────────────────────────────────────────

    def _report(self, loop: Loop, resumed: int, seconds: float, policy: str) -> dict[str, Any]:
        options = self._options
        steps, rows = loop.pace(seconds)
        return {
            "strategy": "parameter_server",
            "worker": 0,
            "workers": self._found.size,
            "servers": len(self._found.servers),
            "replicas": self._found.size,
            "reduce": "none",
            "shard": policy,
            "batch_size": self._batch_size,
            "micros": self._micros,
            "precision": options.precision or self._model.dtype_policy.name,
            "seed": self._seed,
            "steps": loop.at.step,
            "resumed_at_step": resumed or None,
            "steps_per_second": round(steps, 3),
            "rows_per_second": round(rows, 1),
            "seconds": {name: round(value, 3) for name, value in loop.seconds.items()},
        }


def _on_workers(rows: Carried | Shipped | Own, change: Change) -> Any:
    """What is handed out: a step on rows, however they come."""
    return tf.function(
        lambda *given: rows.run(change, *given), reduce_retracing=True, autograph=False
    )


def _looks_up(model: Any) -> bool:
    """Whether it has tables: TensorFlow does not find those of servers within a branch, and a step
    of a worker's own rows is one."""
    return any(
        getattr(layer, "lookup_table", None) is not None for layer in model._flatten_layers()
    )


def _plus(sum_: Any, gradient: Any) -> Any:
    if gradient is None or sum_ is None:
        return gradient if sum_ is None else sum_
    return tf.convert_to_tensor(sum_) + tf.convert_to_tensor(gradient)
