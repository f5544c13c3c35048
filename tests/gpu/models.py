"""Models for the tests on a GPU, made in the worker's process."""

from __future__ import annotations

from typing import Any


def checksum() -> Any:
    """Bytes of a row in, two sums over them out: one plain, one that knows their places."""
    import tensorflow as tf

    places = tf.constant([float(place % 97 + 1) for place in range(4096)], tf.float32)

    @tf.function(input_signature=[tf.TensorSpec([None, 4096], tf.uint8)])  # type: ignore[misc]
    def sums(x: Any) -> Any:
        values = tf.cast(x, tf.float32)
        plain = tf.reduce_sum(values, axis=1)
        placed = tf.reduce_sum(values * places, axis=1)
        return tf.stack([plain, placed], axis=1)

    return sums


def hungry() -> Any:
    """A model that takes as much memory as its rows ask for: no measurement tells beforehand."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32)])  # type: ignore[misc]
    def run(x: Any) -> Any:
        wanted = tf.cast(tf.maximum(tf.reduce_max(x[:, 0]), 1.0), tf.int32)
        ones = tf.fill([tf.shape(x)[0], wanted * (1 << 20)], 1.0)
        return tf.reduce_sum(x, axis=1) + tf.reduce_min(tf.cumsum(ones, axis=1), axis=1) - 1.0

    return run


def mixed() -> Any:
    """Inputs of kinds that a GPU has, and of kinds that stay on the host."""
    import tensorflow as tf

    @tf.function(  # type: ignore[misc]
        input_signature=[
            tf.TensorSpec([None, 3], tf.float32, name="a"),
            tf.TensorSpec([None], tf.int32, name="b"),
            tf.TensorSpec([None, 2], tf.int64, name="c"),
        ]
    )
    def run(a: Any, b: Any, c: Any) -> Any:
        total = tf.reduce_sum(a, axis=1) + tf.cast(b, tf.float32)
        return {"total": total, "c": c * 2, "b": b + 1}

    return run
