"""What replicas count and average beside their gradients: metrics, and statistics of layers.

Metrics count on each replica on its own, and travel with the gradients: the sums of all replicas
come back with every step, so nobody ever has to ask the others for them, and reading a metric
costs nothing until somebody does. Sums of sums are right for whatever Keras counts as sums.

The loss of a global batch is not to be had from one piece (see `weighing`): it is counted once for
all of them, each replica its share of it, so that here, too, the sum is right.

Statistics (those of `BatchNormalization`) Keras leaves to each replica alone. Here what each piece
has changed in them is averaged at every step, weighed by rows, so all replicas go on with the same.
Micro-batches of a step change them one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.model.runtime import keras, tf
from penstock.train.chance import Chance


class Tally:
    """The metric variables and the statistics of a compiled, built model; `chance`: of its run."""

    def __init__(self, model: Any, chance: Chance | None = None) -> None:
        self._model, self.chance = model, chance
        self.counters = list(model.metrics_variables)
        losses = model._compile_loss.metrics if model._compile_loss is not None else []
        self._loss_counters = {id(each) for metric in losses for each in metric.variables}
        self._always_rows = bool(losses)
        self.statistics = statistics_of(model)
        self.other_state = _other_state(model, (*self.counters, *self.statistics))
        if chance is not None:
            self.other_state.append(chance.state)

    def count_loss(self, loss: Any, rows: Any, shares: int = 1) -> None:
        """The loss of so many rows; where so many replicas say the same, a share from each."""
        self._model._loss_tracker.update_state(loss, sample_weight=rows / shares)

    def with_loss(self, counted: Sequence[Any], loss: Any, rows: Any) -> list[Any]:
        """Counters, with a loss of so many rows added to them."""
        tracker = self._model._loss_tracker
        added = {id(tracker.total): loss * rows, id(tracker.count): rows}
        return [
            value + tf.cast(added[id(variable)], value.dtype) if id(variable) in added else value
            for variable, value in zip(self.counters, counted, strict=True)
        ]

    def before(self) -> list[Any]:
        """The counters before a piece, to be given to `weigh` after it."""
        return [tf.identity(each.value) for each in self.counters]

    def weigh(self, before: Sequence[Any], count: Any) -> None:
        """Padding counts nothing; Keras' losses of single outputs count by rows."""
        for variable, old in zip(self.counters, before, strict=True):
            new = tf.identity(variable.value)
            if id(variable) in self._loss_counters:
                variable.value.assign(old + (new - old) * tf.cast(count, new.dtype))
            else:
                variable.value.assign(tf.where(count > 0, new, old))

    def own(self, strategy: Any) -> list[Any]:
        """What this worker's replicas have counted, without asking the others."""
        local = strategy.experimental_local_results
        return [tf.add_n([tf.identity(part) for part in local(v.value)]) for v in self.counters]

    @property
    def weighs_losses(self) -> bool:
        """Whether the model tracks the losses of several outputs."""
        return self._always_rows

    def results(self, counted: Sequence[Any] | None = None) -> dict[str, Any]:
        """The metrics as they stand; of what the replicas have counted together, if given."""
        if counted is None:
            return dict(self._model.get_metrics_result())
        mapping = list(zip(self.counters, counted, strict=True))
        with keras().StatelessScope(state_mapping=mapping):
            return dict(self._model.get_metrics_result())


def statistics_of(model: Any) -> list[Any]:
    """Variables that layers keep up to date themselves, not by gradients."""
    counted = {id(each) for each in model.metrics_variables}
    return [
        variable
        for layer in model._flatten_layers()
        for variable in layer._non_trainable_variables
        if id(variable) not in counted and tf.as_dtype(variable.dtype).is_floating
    ]


def _other_state(model: Any, known: Sequence[Any]) -> list[Any]:
    """Whatever else layers change themselves: random seeds, whole numbers."""
    found = {
        id(variable): variable
        for layer in model._flatten_layers()
        for variable in (
            *layer._non_trainable_variables,
            *(seeds.state for seeds in layer._seed_generators),
        )
    }
    for variable in known:
        found.pop(id(variable), None)
    return [each for each in found.values() if tf.as_dtype(each.dtype) != tf.string]
