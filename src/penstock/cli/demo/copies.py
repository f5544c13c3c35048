"""A network of one's own, as people have it today: `model.predict`, or a compiled function.

Only for the processes of the crowd that are to have TensorFlow. Its settings, threads among them,
are left as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.model.runtime import keras, tf

Array = np.ndarray[Any, Any]


class Predict:
    """`model.predict`, as in most examples."""

    def __init__(self, path: str) -> None:
        self._model = _load(path)

    def __call__(self, image: Array) -> Array:
        """Its answer to one image."""
        answer: Array = self._model.predict(image, verbose=0)
        return answer


class Compiled:
    """A `tf.function`, traced once for the one shape that it is asked for."""

    def __init__(self, path: str) -> None:
        model = _load(path)
        one = tf.TensorSpec((1, *model.input_shape[1:]), model.input_dtype)
        self._run = tf.function(lambda x: model(x, training=False), input_signature=[one])

    def __call__(self, image: Array) -> Array:
        """Its answer to one image, from array to array as the other ways."""
        answer: Array = self._run(tf.convert_to_tensor(image)).numpy()
        return answer


def _load(path: str) -> Any:
    return keras().models.load_model(path)
