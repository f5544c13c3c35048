"""All that findings about a model depend on: if one of these changes, they are made anew."""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
from typing import Any

from penstock.config import Model
from penstock.model import machine
from penstock.model.runtime import tf
from penstock.model.source import resolve


def device_kind() -> str:
    """What TensorFlow runs on here: "CPU" or "GPU"."""
    return "GPU" if tf.config.list_logical_devices("GPU") else "CPU"


def circumstances(content: str, model: Model) -> dict[str, Any]:
    """The key under which findings are remembered; `{}` when the model's content is not known."""
    if not content:
        return {}
    return {
        "content": content,
        "settings": [
            model.compile,
            model.precision,
            model.max_batch,
            model.batched,
            list(model.ladder),
            model.tolerance,
            _source_hash(model.sample),
        ],
        "device": _device(),
        "versions": [
            machine.version("penstock"),
            tf.__version__,
            machine.version("keras"),
            machine.version("tf_keras"),
            machine.version("keras_hub"),
            platform.python_version(),
        ],
    }


def _device() -> list[str]:
    names = [machine.processor(), str(len(os.sched_getaffinity(0)))]
    for gpu in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        names.append(str(details.get("device_name", gpu.name)))
    return names


def _source_hash(source: str) -> str:
    """The sample's function by name and text, as far as Python can show it."""
    if not source:
        return ""
    try:
        text = inspect.getsource(resolve(source))
    except Exception:
        text = ""
    return f"{source} {hashlib.sha256(text.encode()).hexdigest()[:16]}"
