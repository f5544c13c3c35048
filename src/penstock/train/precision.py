"""A model that trains in mixed precision: float32 weights, 16-bit arithmetic.

Its layers' policies are set before it is traced, and put back when training ends. Inputs,
preprocessing and layers of other dtypes are left alone (`model/precision`), and so are the layers
that make the outputs: a softmax and its loss in 16 bits lose what the gradients live on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from penstock.model.precision import computing


@contextlib.contextmanager
def training_in(model: Any, precision: str | None) -> Iterator[None]:
    """While this lasts, the model computes in that precision."""
    if precision is None:
        yield
        return
    with computing(model, precision):
        for layer in _last(model):
            if layer.dtype_policy.name == precision:
                layer.dtype_policy = "float32"
        yield


def _last(model: Any) -> list[Any]:
    """The layers that make a model's outputs, where it says which those are."""
    tensors = getattr(model, "outputs", None) or []
    makers = [getattr(tensor, "_keras_history", None) for tensor in tensors]
    found = [maker.operation for maker in makers if maker is not None]
    return [layer for layer in found if hasattr(layer, "dtype_policy")]
