"""The network without Penstock: loaded, at a precision, compiled. TensorFlow takes what it needs.

Imported only by processes that are one network each: it sets up TensorFlow for the whole process.
"""

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2


def versions() -> dict[str, Any]:
    """Of what was used, and of the CUDA that TensorFlow was built for."""
    built = tf.sysconfig.get_build_info()
    return {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "cuda_of_tensorflow": built.get("cuda_version"),
        "cudnn_of_tensorflow": built.get("cudnn_version"),
        "devices": [device.name for device in tf.config.list_physical_devices()],
    }


def load(path: Path, precision: str) -> Any:
    """The model of a file. In half precision the scaling of its bytes is still float32."""
    model = keras.models.load_model(path, compile=False)
    if precision != "float32":
        kept = (keras.layers.InputLayer, keras.layers.Rescaling)
        for layer in model.layers:
            if not isinstance(layer, kept):
                layer.dtype_policy = keras.dtype_policies.get(precision)
    return model


def compiled(model: Any, mode: str, shape: tuple[int, ...]) -> Any:
    """The model as a function of one batch of bytes, in one mode, traced for one shape.

    It answers in float32, whatever it computes with.
    """

    def answer(batch: Any) -> Any:
        return tf.cast(model(batch, training=False), tf.float32)

    spec = tf.TensorSpec(shape, tf.uint8)
    traced = tf.function(answer, jit_compile=mode == "xla").get_concrete_function(spec)
    if not mode.startswith("frozen"):
        return lambda batch: traced(tf.convert_to_tensor(batch))
    frozen = convert_variables_to_constants_v2(traced)
    again = tf.function(lambda batch: frozen(batch)[0], jit_compile=mode == "frozen-xla")
    constant = again.get_concrete_function(spec)
    return lambda batch: constant(tf.convert_to_tensor(batch))


def on_device(array: Any) -> Any:
    """The array as a tensor where the network runs."""
    gpus = tf.config.list_logical_devices("GPU")
    with tf.device(gpus[0].name if gpus else "/CPU:0"):
        return tf.identity(tf.constant(array))
