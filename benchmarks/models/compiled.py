"""The ways to compile the network, each as a function from an array to an array.

function     `tf.function`
frozen       the same with its variables turned into constants
xla          `tf.function(jit_compile=True)`
frozen-xla   the frozen function, compiled by XLA

Each is traced for exactly one batch size. Arrays are handed over as they lie, without a copy
(DLPack), and answers are read where they are. Nothing of Penstock is used here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from benchmarks.models.images import NETWORK, SHAPE, Floats

Function = Callable[[Floats], Floats]


class Network:
    """The network as Keras loads it, to be compiled."""

    def __init__(self, folder: Path) -> None:
        self._model = keras.models.load_model(folder / NETWORK)
        self._known: dict[tuple[str, int], Any] = {}

    def compiled(self, mode: str, size: int) -> Function:
        """The network in this mode, for batches of this size; kept for the next time."""
        if (mode, size) not in self._known:
            self._known[mode, size] = self._compile(mode, size)
        call = self._known[mode, size]

        def run(batch: Floats) -> Floats:
            tensor = tf.experimental.dlpack.from_dlpack(batch.__dlpack__())
            return np.asarray(call(tensor))

        return run

    def _compile(self, mode: str, size: int) -> Any:
        model = self._model
        spec = tf.TensorSpec((size, *SHAPE), tf.float32)
        traced = tf.function(
            lambda batch: model(batch, training=False), jit_compile=(mode == "xla") or None
        )
        if mode in ("function", "xla"):
            return traced.get_concrete_function(spec)
        frozen = convert_variables_to_constants_v2(traced.get_concrete_function(spec))

        def first(batch: Any) -> Any:
            return frozen(batch)[0]

        if mode == "frozen":
            return first
        return tf.function(first, jit_compile=True).get_concrete_function(spec)
