"""TensorFlow, Keras and tf_keras, imported once, and only when a model needs them.

Modules that cannot do without TensorFlow take `tf` from here, and are imported late themselves.
"""

from __future__ import annotations

import importlib
from typing import Any

from penstock.errors import ModelLoadError
from penstock.model.haste import without_collecting

try:
    with without_collecting():
        import tensorflow as tf
except ModuleNotFoundError as _error:
    if _error.name != "tensorflow":
        raise
    raise ModelLoadError(
        "the model needs TensorFlow, which is not installed: "
        "pip install 'penstock[cpu]', or 'penstock[gpu]' for GPUs"
    ) from _error

__all__ = ["find_keras2", "keras", "tf"]


def keras() -> Any:
    """Keras 3, on TensorFlow."""
    found: Any = importlib.import_module("keras")
    if found.backend.backend() != "tensorflow":
        raise ModelLoadError(
            f"Keras runs on {found.backend.backend()} in this process; "
            "Penstock needs it on TensorFlow: set KERAS_BACKEND=tensorflow before it is imported"
        )
    return found


def find_keras2() -> Any | None:
    """Keras 2, which lives on as `tf_keras`, or `None` where it is not installed."""
    try:
        return importlib.import_module("tf_keras")
    except ModuleNotFoundError as error:
        if error.name != "tf_keras":
            raise
        return None
