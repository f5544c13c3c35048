"""A Keras 3 model that computes in another precision than it was saved in.

Mixed precisions are a matter of its layers' dtype policies: they are set while the model is traced
(or run uncompiled) and put back after that, so one model in memory serves all precisions, and its
variables stay as they are, float32 most often. Answers are cast to the dtypes that the saved model
answers with. Left alone are inputs, preprocessing layers (which have little to compute and much to
lose), layers of other dtypes (float64, integers) and, in a model that was saved in a mixed
precision, the layers that were held at float32 there.

For int8, a copy of the model has its weights quantized (Keras' `quantize`), in the layers that
Keras can do that for.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from penstock.errors import ModelLoadError
from penstock.model.runtime import keras

_HALF = ("mixed_float16", "mixed_bfloat16", "float16", "bfloat16")
_CHANGED = ("float32", *_HALF)
_lock = threading.RLock()


def refuse(precision: str, what: str, why: str) -> ModelLoadError:
    """The error for a model whose precision cannot be another one."""
    return ModelLoadError(f"{what}: precision={precision!r} cannot be had: {why}")


@contextlib.contextmanager
def computing(network: Any, precision: str) -> Iterator[None]:
    """While this lasts, the network computes in that precision."""
    with _lock:
        before = [(layer, layer.dtype_policy) for layer in _layers_to_change(network)]
        try:
            for layer, _ in before:
                layer.dtype_policy = precision
            yield
        finally:
            for layer, policy in before:
                layer.dtype_policy = policy


def _layers_to_change(network: Any) -> list[Any]:
    library = keras()
    found = [
        layer
        for layer in network._flatten_layers()
        if not isinstance(layer, library.layers.InputLayer)
        and not type(layer).__module__.startswith("keras.src.layers.preprocessing")
        and layer.dtype_policy.name in _CHANGED
    ]
    if any(layer.dtype_policy.name in _HALF for layer in found):
        found = [layer for layer in found if layer.dtype_policy.name in _HALF]
    return found


def quantized(network: Any, what: str) -> Any:
    """A copy of the network with its weights as int8, where Keras can. Raises why it cannot."""
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a line for each layer that cannot be quantized
        try:
            with computing(network, "float32"):
                copy = keras().models.clone_model(network)
            copy.set_weights(network.get_weights())
            copy.quantize("int8")
        except Exception as error:
            why = f"Keras cannot quantize it ({type(error).__name__}: {error})"
            raise refuse("int8", what, why[:500]) from error
    if not any("int8" in layer.dtype_policy.name for layer in copy._flatten_layers()):
        kinds = sorted({type(layer).__name__ for layer in network.layers})
        raise refuse(
            "int8",
            what,
            f"Keras quantizes Dense, EinsumDense and Embedding layers, and it has none "
            f"({', '.join(kinds)[:300]})",
        )
    return copy
