"""A model for which the second worker's device has less memory than the first one's."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

AT_LOAD = 8  # rows that fit there
HUNGRY = 13.0  # of rows that begin with this, only
AT_WORK = 4
_TOO_MUCH = 1 << 44  # numbers: more than a process can ask for


def build() -> Any:
    """Doubles its rows."""
    cramped = os.environ.get("PENSTOCK_WORKER") == "1"

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")])
    def double(x: Any) -> Any:
        if not cramped:
            return {"y": x + x}
        rows = tf.shape(x)[0]
        hungry = tf.reduce_any(x[:, 0] == HUNGRY)
        fits = rows <= tf.where(hungry, AT_WORK, AT_LOAD)
        wanted = tf.where(fits, tf.constant(1, tf.int64), tf.constant(_TOO_MUCH, tf.int64))
        return {"y": x + x + 0.0 * tf.reduce_sum(tf.fill([wanted], 0.0))}

    return double
