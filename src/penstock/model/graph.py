"""A TensorFlow model as a traceable function of tensors, before it is compiled.

Whatever a model's source was (a Keras file, a SavedModel, a function of the user's), loading makes
a `Graph` of it; `compiled.Compiled` then makes something to run of the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ModelLoadError
from penstock.spec import Signature

if TYPE_CHECKING:
    import tensorflow as tf


def _not_to_be_had(precision: str) -> Graph:
    raise ModelLoadError(
        f"precision={precision!r} cannot be had: only a Keras 3 model can be given another one"
    )


@dataclass(frozen=True)
class Graph:
    """A TensorFlow model as a traceable function of tensors, before it is compiled.

    `call` takes and returns lists of tensors in the order of `inputs` and `outputs`; it can be
    traced by `tf.function` (what needs AutoGraph is a `tf.function` inside it already), runs in
    inference mode and includes preprocess and postprocess.
    """

    call: Callable[[list[tf.Tensor]], list[tf.Tensor]]
    inputs: Signature  # of rows; None where a size is open; "" for one bare array without a name
    outputs: Signature  # "" for one bare array; else the names of a dict
    keep: object  # whatever must stay alive while `call` is used: the model, its variables
    key: str  # a hash of what was loaded; "" where that cannot be known: then nothing is cached
    stateful: str  # "", or the reason why rows must not be batched
    at: Callable[[str], Graph] = _not_to_be_had  # the same model in another precision
