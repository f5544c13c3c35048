"""The limit: the network compiled in the best way and size, on rows that lie in memory.

Nothing is read, decoded, sent or written while it is measured. Imports no Penstock.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.offline.rows import ARRAY, NETWORK, SIDE

_MODES = ("function", "frozen")  # XLA loses on CPUs (see the models benchmark)
_SIZES = (16, 32, 64)
_TRIAL = 1.0


def compiled(folder: Path, mode: str, size: int) -> Callable[[Any], Any]:
    """The network as one concrete function for batches of this size."""
    import keras
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import (
        convert_variables_to_constants_v2,
    )

    model = keras.models.load_model(folder / NETWORK)
    spec = tf.TensorSpec((size, SIDE, SIDE, 3), tf.uint8)
    traced = tf.function(lambda batch: model(batch, training=False)).get_concrete_function(spec)
    if mode == "function":
        return lambda batch: np.asarray(traced(tf.convert_to_tensor(batch)))
    frozen = convert_variables_to_constants_v2(traced)
    return lambda batch: np.asarray(frozen(tf.convert_to_tensor(batch))[0])


def limit(folder: Path, rows: int) -> dict[str, Any]:
    """Rows a second of the best of all, and which that was."""
    images = np.load(folder / ARRAY)[:rows]
    trials: dict[str, float] = {}
    best: tuple[float, str, int, Any] = (0.0, "", 0, None)
    for mode in _MODES:
        for size in _SIZES:
            function = compiled(folder, mode, size)
            rate = _rate(function, images, size, _TRIAL)
            trials[f"{mode} {size}"] = rate
            if rate > best[0]:
                best = (rate, mode, size, function)
    _, mode, size, function = best
    began = time.perf_counter()
    for start in range(0, rows - size + 1, size):
        function(images[start : start + size])
    seconds = time.perf_counter() - began
    return {
        "rows": rows // size * size,
        "seconds": seconds,
        "note": f"{mode}, batches of {size}",
        "trials": trials,
    }


def _rate(function: Callable[[Any], Any], images: Any, size: int, seconds: float) -> float:
    function(images[:size])
    began, calls = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        start = calls * size % (len(images) - size + 1)
        function(images[start : start + size])
        calls += 1
    return calls * size / (time.perf_counter() - began)
