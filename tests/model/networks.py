"""Small networks of every kind, and what Penstock makes of them. Only where TensorFlow is."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.config import Model
from penstock.model.graph import Graph
from penstock.spec import TensorSpec

Array = np.ndarray[Any, Any]


def network(kind: str, layers: Any = None) -> Any:
    """A network of this kind, of Keras 3 or, with its `layers`, of `tf_keras`."""
    import keras

    keras.utils.set_random_seed(7)
    library = keras if layers is None else layers
    make = {
        "dense": _dense,
        "conv": _conv,
        "recurrent": _recurrent,
        "attention": _attention,
        "two": _two,
    }
    return make[kind](library)


def rows_for(kind: str, rows: int = 5) -> dict[str, Array]:
    """What a network of this kind takes."""
    random = np.random.default_rng(3)
    shapes = {
        "dense": {"vector": (4,)},
        "conv": {"image": (12, 12, 3)},
        "recurrent": {"sequence": (7, 5)},
        "attention": {"sequence": (7, 8)},
        "two": {"left": (4,), "right": (3,)},
    }
    return {
        name: random.normal(size=(rows, *shape)).astype(np.float32)
        for name, shape in shapes[kind].items()
    }


def _dense(k: Any) -> Any:
    layers = [k.Input((4,), name="vector"), k.layers.Dense(6, "relu"), k.layers.Dense(3)]
    return k.Sequential(layers)


def _conv(k: Any) -> Any:
    x = image = k.Input((12, 12, 3), name="image")
    x = k.layers.Conv2D(4, 3, activation="relu")(x)
    x = k.layers.BatchNormalization()(x)
    x = k.layers.Dropout(0.5)(x)
    x = k.layers.GlobalAveragePooling2D()(x)
    return k.Model(image, k.layers.Dense(3, activation="softmax")(x))


def _recurrent(k: Any) -> Any:
    x = sequence = k.Input((None, 5), name="sequence")
    x = k.layers.LSTM(4, return_sequences=True)(x)
    return k.Model(sequence, k.layers.Bidirectional(k.layers.GRU(3))(x))


def _attention(k: Any) -> Any:
    x = sequence = k.Input((7, 8), name="sequence")
    x = k.layers.Add()([k.layers.MultiHeadAttention(2, 4)(x, x), x])
    return k.Model(sequence, k.layers.LayerNormalization()(x))


def _two(k: Any) -> Any:
    left, right = k.Input((4,), name="left"), k.Input((3,), name="right")
    both = k.layers.Concatenate()([left, right])
    outputs = {"sum": k.layers.Dense(2)(both), "label": k.layers.Dense(1)(right)}
    return k.Model({"left": left, "right": right}, outputs)


def graph_of(model: Model) -> Graph:
    """What Penstock makes of a model's source, up to where it would be compiled."""
    from penstock.model.assemble import assemble
    from penstock.model.load import _made
    from penstock.model.source import check_place, is_path, resolve

    source = model.source
    if isinstance(source, str) and is_path(source):
        check_place(source)
    elif isinstance(source, str):
        source = _made(resolve(source))
    return assemble(model, source)


def answers(graph: Graph, inputs: Any, rows: int | None = None) -> Any:
    """What the graph answers, traced with a known or (`rows` given) an open number of rows."""
    import tensorflow as tf

    if not isinstance(inputs, dict):
        inputs = {graph.inputs[0].name: inputs}
    tensors = [
        tf.constant(inputs[spec.name], tf.as_dtype(spec.dtype), name=None) for spec in graph.inputs
    ]
    specs = [tf.TensorSpec([rows, *t.shape[1:]], t.dtype) for t in tensors]
    call = tf.function(lambda *given: graph.call(list(given))).get_concrete_function(*specs)
    arrays = [tensor.numpy() for tensor in call(*tensors)]
    for spec, array in zip(graph.outputs, arrays, strict=True):
        assert _admits(spec, array), (spec, array.shape, array.dtype)
    if [spec.name for spec in graph.outputs] == [""]:
        return arrays[0]
    return {spec.name: array for spec, array in zip(graph.outputs, arrays, strict=True)}


def _admits(spec: TensorSpec, array: Array) -> bool:
    if spec.dtype == "string":
        return array.dtype == object
    sizes = zip(spec.shape, array.shape[1:], strict=True)
    return str(array.dtype) == spec.dtype and all(a is None or a == b for a, b in sizes)


def close(got: Any, wanted: Any) -> None:
    """Equal, up to what another order of float32 sums makes of values near 1."""
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
