"""Which entries of a piece count, where Keras' loss is a mean over those that are not masked.

An entry does not count that is masked in what the model gives (`Embedding(mask_zero=True)`), nor
one whose target is of the class that the loss ignores (`ignore_class`). Keras divides by the number
of those that are left, so that is what a piece counts.

A model with a `compute_loss` of its own may have looked at no mask: its loss is taken for a mean
over rows, whatever is masked.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import ConfigError
from penstock.model.runtime import keras, tf


class Masks:
    """Of a model that is compiled. `pieces`: of a step, on all replicas."""

    def __init__(self, model: Any, pieces: int) -> None:
        self._pieces = pieces
        self._none = type(model).compute_loss is not keras().Model.compute_loss
        self._ignored: int | None = None
        if self._none or model._compile_loss is None or pieces == 1:
            return
        losses = [each.loss for each in model._compile_loss._flat_losses]
        ignored = [getattr(each, "ignore_class", None) for each in losses]
        if any(each is not None for each in ignored):
            if len(losses) > 1:
                raise self._several("several losses of which some ignore a class")
            self._ignored = ignored[0]

    def unmasked(self, y: Any, y_pred: Any) -> Any:
        """1.0 for each entry that counts, else 0.0; `None` where all do."""
        if self._none:
            return None
        parts = keras().tree.flatten(y_pred)
        masks = [getattr(part, "_keras_mask", None) for part in parts]
        if self._ignored is None and all(mask is None for mask in masks):
            return None
        if len(parts) > 1:
            raise self._several("several outputs of which some are masked")
        mask = None if masks[0] is None else tf.cast(masks[0], tf.float32)
        if self._ignored is None:
            return mask
        return self._valid(y, mask)

    def _valid(self, y: Any, mask: Any) -> Any:
        (targets,) = keras().tree.flatten(y)
        ignored = tf.cast(self._ignored, tf.float32)  # as Keras compares them
        valid = tf.cast(tf.cast(targets, tf.float32) != ignored, tf.float32)
        if mask is None:
            return tf.squeeze(valid, -1) if _is_column(valid) else valid
        return tf.reshape(valid, tf.shape(mask)) * mask

    def _several(self, what: str) -> ConfigError:
        return ConfigError(
            f"{what} cannot be summed over {self._pieces} pieces a step: each would count "
            "something else"
        )


def _is_column(targets: Any) -> bool:
    return len(targets.shape) > 1 and targets.shape[-1] == 1
