"""Gradients made ready to be applied: unscaled, looked at, clipped by their norm over all weights.

They are the sums of all replicas by then, so the norm is that of the whole batch. Those of an
embedding have a part for each time that one of its rows was looked up (`once`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.model.runtime import tf
from penstock.train.scaling import LossScale


def finished(gradients: Sequence[Any], scale: LossScale | None, clip_norm: float | None) -> Any:
    """The gradients; and whether they are finite, where there is a scale (else `None`)."""
    if scale is not None:
        share = 1.0 / scale.value
        gradients = [_times(gradient, share) for gradient in gradients]
    if scale is None and clip_norm is None:
        return gradients, None
    norm = tf.linalg.global_norm(gradients)
    if clip_norm is not None:
        share = clip_norm / tf.maximum(norm, clip_norm)
        gradients = [_times(gradient, share) for gradient in gradients]
    return gradients, None if scale is None else tf.math.is_finite(norm)


def once(gradient: Any, dense: bool) -> Any:
    """The parts of each row of an embedding as one, their sum; XLA has it `dense`.

    Optimizers and norms take squares of what they are given, and that of a sum is another one.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if dense:
        return tf.convert_to_tensor(gradient)
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def _times(gradient: Any, factor: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
