"""What each piece of a global batch counts, so that all pieces together make one step.

A piece is one micro-batch of one replica. Keras' loss is a mean over its rows; the mean over the
global batch is the sum of the pieces' losses × what they count, over the sum of what they count::

    gradient = Σ count × ∇(mean loss of the piece) / Σ count

| the loss is reduced by | a piece counts |
|---|---|
| `sum_over_batch_size`, `mean` | its rows (with a mask: the entries that count, see `masking`) |
| `mean_with_sample_weight` | the sum of its sample weights |
| `sum` | 1, and nothing is divided |

So a short last batch and uneven replicas are right without anyone's knowing the total before.
Penalties on weights are the same in every piece, and stay what they are. A loss of your own
(`compute_loss`, `add_loss`) is taken for a mean over rows. Where there is no right weight,
`Weighing` refuses; with one piece a step everything is Keras' own, and nothing is refused.

While a step is traced (`plainly`), Keras' own scaling of losses by the number of replicas is off,
and random seeds differ by replica: Keras would drop out the same places on all of them.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from penstock.errors import ConfigError, TrainingError
from penstock.model.runtime import keras, tf
from penstock.train.chance import Chance
from penstock.train.masking import Masks

_ROWS = ("sum_over_batch_size", "mean")
_SUMS = "_all_reduce_sum_gradients"  # what Keras' optimizers add gradients up with, once more
_STRIDE = 0x9E3779B9  # between the seeds of two replicas
_lock = threading.RLock()


class Weighing:
    """How the pieces of a model's steps are weighed. `pieces`: of a step, on all replicas."""

    def __init__(
        self, model: Any, pieces: int, class_weight: Mapping[int, float] | None = None
    ) -> None:
        self.pieces = pieces
        self._table = _table(class_weight)
        self.by = _reduction(model) if pieces > 1 else "rows"
        self._masks = Masks(model, pieces)
        if pieces > 1:
            _refuse_activity(model)
            refuse_stateful(model, f"a step of {pieces} pieces")
        if self.by == "sum" and model.losses:
            raise ConfigError(
                'a loss with reduction="sum" and penalties on weights cannot be summed over '
                f'{pieces} pieces a step: use reduction="sum_over_batch_size"'
            )

    def sample_weight(self, y: Any, given: Any) -> Any:
        """The weights of rows: those given × those of their classes."""
        if self._table is None:
            return given
        if y is None or isinstance(y, (dict, list, tuple)):
            raise ConfigError("class_weight needs one output, with classes for targets")
        weight = _of_classes(y, self._table)
        return weight if given is None else tf.cast(given, weight.dtype) * weight

    def of(self, count: Any, y: Any, weight: Any, y_pred: Any, rows: float) -> Any:
        """What a piece counts, a float32 scalar: about 1 for one of so many rows."""
        is_real = tf.cast(count > 0, tf.float32)  # and not padding
        if self.by == "sum":
            return is_real
        unmasked = self._masks.unmasked(y, y_pred)
        if unmasked is not None:
            return is_real * self._sum_of(unmasked, weight) / rows
        if self.by == "weights" and weight is not None:
            return is_real * _sum(weight) / rows
        return tf.cast(count, tf.float32) / rows

    def _sum_of(self, unmasked: Any, weight: Any) -> Any:
        if self.by == "weights" and weight is not None:
            weight = tf.cast(weight, tf.float32)
            while len(weight.shape) < len(unmasked.shape):
                weight = weight[..., None]
            while len(weight.shape) > len(unmasked.shape) and weight.shape[-1] == 1:
                weight = tf.squeeze(weight, -1)
            unmasked = unmasked * weight
        return tf.reduce_sum(unmasked)


def _reduction(model: Any) -> str:
    compiled = model._compile_loss
    if compiled is None:
        return "rows"
    found = {loss.loss.reduction for loss in compiled._flat_losses if loss.loss is not None}
    kinds = {"rows" if each in _ROWS else each for each in found}
    if len(kinds) > 1 or not kinds <= {"rows", "sum", "mean_with_sample_weight"}:
        named = ", ".join(sorted(repr(each) for each in found))
        raise ConfigError(
            "a step of several pieces needs one way to reduce all losses: "
            f"'sum_over_batch_size', 'mean_with_sample_weight' or 'sum'; the model has {named}"
        )
    kind = kinds.pop() if kinds else "rows"
    if kind == "mean_with_sample_weight":
        if len(compiled._flat_losses) > 1:
            raise ConfigError(
                "several losses with reduction='mean_with_sample_weight' cannot be summed over "
                "pieces: each would count something else"
            )
        return "weights"
    return str(kind)


def _refuse_activity(model: Any) -> None:
    for layer in model._flatten_layers():
        if getattr(layer, "activity_regularizer", None) is not None:
            raise ConfigError(
                f"the layer {layer.name!r} has an activity regularizer, which is a sum over rows "
                "and no mean: it cannot be weighed in a step of several pieces"
            )


def refuse_stateful(model: Any, who: str) -> None:
    """Refuse layers that go on with the states of a batch's rows, where that is for others."""
    names = stateful(model)
    if names:
        raise ConfigError(
            f"{' and '.join(map(repr, names))}: stateful=True has the states of a batch's rows go "
            f"on in the next one's, and {who} would hand them to other rows: "
            "leave it out, or train on one device with accumulate=1"
        )


def stateful(model: Any) -> list[str]:
    """The layers that go on in a batch with the states of the one before, row by row."""
    return [each.name for each in model._flatten_layers() if getattr(each, "stateful", False)]


def _sum(weight: Any) -> Any:
    parts = keras().tree.flatten(weight)
    if len(parts) != 1:
        raise ConfigError("sample weights for each output cannot be summed over pieces")
    return tf.reduce_sum(tf.cast(parts[0], tf.float32))


def _table(class_weight: Mapping[int, float] | None) -> Any:
    if not class_weight:
        return None
    if not isinstance(class_weight, Mapping):
        raise ConfigError(
            "class_weight must be a dict, from classes to their weights; "
            f"got a {type(class_weight).__name__}"
        )
    if not all(_is_class(key) for key in class_weight):
        named = ", ".join(map(repr, class_weight))
        raise ConfigError(f"class_weight must be by class, 0, 1, …; got {named}")
    table = [1.0] * (max(map(int, class_weight)) + 2)  # the last: classes that are not named
    for key, weight in class_weight.items():
        table[int(key)] = float(weight)
    return table


def _is_class(key: Any) -> bool:
    is_number = isinstance(key, (int, float, np.integer)) and not isinstance(key, bool)
    return is_number and key >= 0 and int(key) == key


def _of_classes(y: Any, table: list[float]) -> Any:
    if len(y.shape) == 2 and y.shape[-1] is None:  # only the data tells whether there is one column
        classes = tf.cond(tf.shape(y)[-1] == 1, lambda: _numbers(y), lambda: _largest(y))
    else:
        classes = _largest(y) if len(y.shape) > 1 and y.shape[-1] != 1 else _numbers(y)
    other = len(table) - 1
    named = tf.logical_and(classes >= 0, classes < other)
    return tf.gather(tf.constant(table), tf.where(named, classes, other))


def _largest(y: Any) -> Any:
    return tf.argmax(y, axis=-1, output_type=tf.int32)


def _numbers(y: Any) -> Any:
    numbers = tf.reshape(y, (-1,))
    return tf.cast(tf.round(numbers) if numbers.dtype.is_floating else numbers, tf.int32)


@contextlib.contextmanager
def plainly(replicas: int, optimizer: Any = None, chance: Chance | None = None) -> Iterator[None]:
    """While this lasts, losses are what one replica computes, seeds are each replica's own, and
    the optimizer takes gradients as they are: they are summed already."""
    with contextlib.ExitStack() as stack:
        if replicas > 1:
            stack.enter_context(_lock)
            stack.enter_context(_apart_and_summed(optimizer))
        if chance is not None:
            stack.enter_context(chance.drawn())
        yield


@contextlib.contextmanager
def _apart_and_summed(optimizer: Any) -> Iterator[None]:
    if optimizer is not None and not hasattr(type(optimizer), _SUMS):
        raise TrainingError(
            f"expected Keras' optimizers to add gradients up in {_SUMS}, to be switched off here; "
            f"{type(optimizer).__name__} of Keras {keras().__version__} has none, and would add "
            "them up twice"
        )
    losses: Any = importlib.import_module("keras.src.losses.loss")
    seeds = keras().random.SeedGenerator
    before = (losses.scale_loss_for_distribution, losses.unscale_loss_for_distribution)
    drawn = seeds.next
    losses.scale_loss_for_distribution = _as_it_is
    losses.unscale_loss_for_distribution = _as_it_is
    seeds.next = lambda self, ordered=True: _apart(drawn(self, ordered))
    if optimizer is not None:
        vars(optimizer)[_SUMS] = _as_it_is
    try:
        yield
    finally:
        if optimizer is not None:
            del vars(optimizer)[_SUMS]
        losses.scale_loss_for_distribution, losses.unscale_loss_for_distribution = before
        seeds.next = drawn


def _as_it_is(value: Any) -> Any:
    return value


def _apart(seed: Any) -> Any:
    context = tf.distribute.get_replica_context()
    if context is None:
        return seed
    replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
    first = tf.cast(seed[0], tf.int64) + replica * _STRIDE
    moved = tf.stack([first & 0x7FFFFFFF, tf.cast(seed[1], tf.int64)])
    return tf.cast(moved, seed.dtype)
