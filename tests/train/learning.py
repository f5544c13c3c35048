"""Small models and data that training is tested on, and two CPUs to train them on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.model import tensorflow_process

ROWS, WIDTH, CLASSES = 37, 8, 3


_shared: list[Any] = []  # the process in which all of these tests run


@contextlib.contextmanager
def process_of_two_cpus() -> Iterator[None]:
    """Tests in here run in one process, which none without `two_cpus` has used before."""
    if tensorflow_process._pool not in _shared:
        tensorflow_process.end()
    yield
    _shared[:] = [tensorflow_process._pool]


def two_cpus() -> None:
    """Two logical CPUs; to be called before TensorFlow has computed anything in this process."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is None:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
    assert len(tf.config.list_logical_devices("CPU")) == 2


def rows(count: int = ROWS, seed: int = 3) -> tuple[Any, Any]:
    """Rows and their classes."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(count, WIDTH)).astype("float32")
    return x, draw.integers(0, CLASSES, count)


def optimizer(name: str) -> Any:
    import keras

    made = {
        "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "adam": lambda: keras.optimizers.Adam(0.01),
        "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    }
    return made[name]()


def network(by: str = "sgd", *middle: Callable[[], Any], loss: Any = None, **compiled: Any) -> Any:
    """A classifier with the same weights each time. `middle`: functions that make layers."""
    import keras

    keras.utils.set_random_seed(11)
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(16, "relu"),
            *(make() for make in middle),
            keras.layers.Dense(CLASSES, "softmax"),
        ]
    )
    settings = {"metrics": ["accuracy"], **compiled}
    model.compile(optimizer(by), loss or "sparse_categorical_crossentropy", **settings)
    return model


def furthest(model: Any, other: Any) -> float:
    """The largest difference between the weights of two models."""
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return max(float(np.abs(one - two).max()) for one, two in pairs)
