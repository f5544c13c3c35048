"""Models for tests that are TensorFlow's, found by workers as "…/tensors.py:name"."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

_ROW = tf.TensorSpec([None, 3], tf.float32, "x")


def build() -> Any:
    """A Keras model, made when it is asked for."""
    keras.utils.set_random_seed(5)
    return keras.Sequential([keras.Input((3,), name="x"), keras.layers.Dense(2, name="made")])


def build_sized(units: int = 4) -> Any:
    """The same with a choice that has a default."""
    return keras.Sequential([keras.Input((3,), name="x"), keras.layers.Dense(units)])


built = build()


class Subclassed(keras.Model):
    """A model that does not know what it takes until it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2, kernel_initializer="ones")

    def call(self, x: Any) -> Any:
        """Rows of three, answered by name."""
        return {"y": self.dense(x), "z": x[:, 0] > 0}


class TwoArguments(keras.Model):
    """A model whose inputs are arguments, in other modes for training and not."""

    def call(self, left: Any, right: Any, training: Any = None) -> Any:
        """The sum, or something else in training."""
        return left - right if training else left + right


@tf.function
def polymorphic(x: Any) -> Any:
    """Takes whatever it is given."""
    return x * 2


@tf.function(input_signature=[_ROW])
def signed(x: Any) -> Any:
    """Says what it takes."""
    return x + 1.0, x - 1.0


@tf.function(input_signature=[{"b": _ROW, "a": tf.TensorSpec([None], tf.int32)}])
def signed_dict(rows: Any) -> Any:
    """Takes a dict."""
    return {"sum": tf.reduce_sum(rows["b"], axis=1) + tf.cast(rows["a"], tf.float32)}


@tf.function(input_signature=[_ROW, tf.TensorSpec([None], tf.int32, "n")])
def signed_pair(x: Any, n: Any) -> Any:
    """Takes two arguments."""
    return x + tf.cast(n[:, None], tf.float32)


concrete = signed.get_concrete_function()


def make_function() -> Any:
    """A tf.function, made when it is asked for."""
    factor = tf.Variable(3.0)
    return tf.function(lambda x: x * factor, input_signature=[_ROW])


def make_plain() -> Any:
    """A closure on numpy arrays, made when it is asked for."""
    table = np.arange(10.0)
    return lambda x: table[x]


class Module(tf.Module):
    """A module whose call says what it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = tf.Variable([1.0, 2.0, 3.0])

    @tf.function(input_signature=[_ROW])
    def __call__(self, x: Any) -> Any:
        """Biased."""
        return x + self.bias


class PlainModule(tf.Module):
    """A module that is called as plain Python."""

    def __call__(self, x: Any) -> Any:
        """Twice, whatever it is."""
        return x * 2


def plain(x: Any) -> Any:
    """Rows in, rows out, on numpy arrays."""
    assert isinstance(x, np.ndarray)
    return x + x


def anything(*arrays: Any) -> Any:
    """No parameter is required, and yet it takes rows."""
    return arrays[0] * 2


# ── steps before and after ─────────────────────────────────────────────────────────────────────


def decode(images: Any) -> Any:
    """Encoded images of any size, as pixels of one size."""
    return tf.map_fn(
        _decode_one, images, fn_output_signature=tf.TensorSpec([12, 12, 3], tf.float32)
    )


def _decode_one(data: Any) -> Any:
    image = tf.io.decode_image(data, channels=3, expand_animations=False)
    return tf.image.resize(tf.cast(image, tf.float32), [12, 12])


def scale(x: Any) -> Any:
    """Bytes to fractions, with a branch that only AutoGraph understands."""
    x = tf.cast(x, tf.float32)
    if tf.reduce_max(x) > 1.0:
        x = x / 255.0
    return x


@tf.function(input_signature=[tf.TensorSpec([None, 3], tf.uint8, "pixels")])
def scale_signed(pixels: Any) -> Any:
    """Says itself what callers send."""
    return tf.cast(pixels, tf.float32) / 255.0


def split(left_right: Any) -> Any:
    """One array as the two inputs of a model."""
    return {"left": left_right[:, :4], "right": left_right[:, 4:]}


def split_in_order(left_right: Any) -> Any:
    """The same, in order."""
    return left_right[:, :4], left_right[:, 4:]


def merge(left: Any, right: Any) -> Any:
    """Two tensors that callers send, as keywords."""
    return tf.concat([left, right], axis=1)


def merge_dict(both: Any) -> Any:
    """The same in a dict."""
    return tf.concat([both["left"], both["right"]], axis=1)


def best(scores: Any) -> Any:
    """The best class and its score."""
    return {"label": tf.argmax(scores, axis=1), "score": tf.reduce_max(scores, axis=1)}


def first_only(outputs: Any) -> Any:
    """One of several outputs."""
    return outputs["sum"]


def total(sum: Any, label: Any) -> Any:
    """Several outputs, as keywords."""
    return tf.reduce_sum(sum, axis=1) + label[:, 0]


def no_tensor(x: Any) -> Any:
    """Returns what cannot be sent."""
    return object()


def wrong(x: Any) -> Any:
    """Cannot be traced with most shapes."""
    return tf.reshape(x, [-1, 1000]) + tf.zeros([7, 7])
