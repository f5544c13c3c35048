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
    """A model whose peak grows by 64 MB with each row."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None, 4096], tf.float32)])  # type: ignore[misc]
    def run(x: Any) -> Any:
        grid = x[:, :, None] * x[:, None, :]
        return tf.reduce_sum(tf.sort(grid, axis=2), axis=2)[:, :8]

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
