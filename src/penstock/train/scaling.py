"""The loss scale of float16: gradients that would vanish are made larger on their way back.

The scale halves when a step's gradients are not finite (and that step changes nothing), and
doubles after so many steps that were; one without any rows counts as neither. Whether they are is
asked after the all-reduce, so all replicas and workers decide alike. Keras' own
`LossScaleOptimizer` does not work under a strategy; where a model was compiled with one, its inner
optimizer is used, with this scale, which begins with what that one has, and is left there in the
end. Of a plain optimizer it is noted beside it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from penstock.model.runtime import keras, tf

FIRST = 2.0**15
PATIENCE = 2_000  # steps before the scale is doubled
_LARGEST = 2.0**40
_noted: weakref.WeakKeyDictionary[Any, Mapping[str, float]] = weakref.WeakKeyDictionary()


class LossScale:
    """Two variables, made in the scope of the strategy."""

    def __init__(self, first: float = FIRST, patience: int = PATIENCE) -> None:
        self._patience = patience
        kept: dict[str, Any] = {
            "trainable": False,
            "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA,
        }
        self.value = tf.Variable(first, name="loss_scale", dtype=tf.float32, **kept)
        # Not an integer: TensorFlow keeps those on the host, where XLA cannot reach from a GPU.
        self.good = tf.Variable(0.0, name="good_steps", dtype=tf.float32, **kept)

    def learn(self, finite: Any, some: Any = None) -> None:
        """After a step, outside of the replicas; nothing from one that did not have `some` rows."""
        good = tf.where(finite, self.good + 1.0, 0.0)
        grown = good >= self._patience
        raised = tf.where(grown, tf.minimum(self.value * 2.0, _LARGEST), self.value)
        value = tf.where(finite, raised, tf.maximum(self.value * 0.5, 1.0))
        good = tf.where(grown, 0.0, good)
        if some is not None:
            value, good = tf.where(some, value, self.value), tf.where(some, good, self.good)
        self.value.assign(value)
        self.good.assign(good)

    def to_json(self) -> dict[str, float]:
        """As a checkpoint keeps it."""
        return {"scale": float(self.value.numpy()), "good": int(self.good.numpy())}

    def from_json(self, told: Mapping[str, float]) -> None:
        """As a checkpoint has kept it."""
        self.value.assign(told["scale"])
        self.good.assign(float(told["good"]))


def scale_of(model: Any) -> LossScale | None:
    """Where the model needs one: its optimizer's, if that has some already. In the scope."""
    if not needs_scale(model):
        return None
    theirs = model.optimizer
    if theirs is optimizer_of(model):
        scale = LossScale()
        scale.from_json(_noted.get(theirs, scale.to_json()))
        return scale
    scale = LossScale(patience=theirs.dynamic_growth_steps)
    told = {"scale": theirs.dynamic_scale.numpy(), "good": theirs.step_counter.numpy()}
    scale.from_json({name: float(value) for name, value in told.items()})
    return scale


def leave(scale: LossScale | None, model: Any) -> None:
    """With the model's optimizer, for whoever trains it next."""
    if scale is None:
        return
    told, optimizer = scale.to_json(), model.optimizer
    if optimizer is optimizer_of(model):
        note(optimizer, told)
    else:
        optimizer.dynamic_scale.assign(told["scale"])
        optimizer.step_counter.assign(told["good"])


def noted(optimizer: Any) -> Mapping[str, float] | None:
    """The scale that an optimizer without one was left with."""
    return _noted.get(optimizer)


def note(optimizer: Any, told: Mapping[str, float] | None) -> None:
    """Have it go on from there."""
    if told is not None:
        _noted[optimizer] = told


def needs_scale(model: Any) -> bool:
    """Whether anything of the model computes in float16."""
    return any(layer.compute_dtype == "float16" for layer in model._flatten_layers())


def optimizer_of(model: Any) -> Any:
    """The optimizer that changes the weights: the inner one, where Keras has wrapped it."""
    optimizer = model.optimizer
    if isinstance(optimizer, keras().optimizers.LossScaleOptimizer):
        return optimizer.inner_optimizer
    return optimizer
