"""A Keras model (of Keras 3, or of Keras 2 as `tf_keras`) as a part of a graph.

Functional and sequential models know what they take and return; of others, what they take is
declared, or was noted when they were built, and what they return is found by tracing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from penstock.errors import ModelLoadError
from penstock.model.parts import Part, Specs, Tensors, named_specs, trace
from penstock.model.precision import computing, quantized, refuse
from penstock.model.runtime import tf
from penstock.model.structure import flatten, leaves_of, output_names, pack

_OWN = ("keras", "tf_keras")


def network_part(model: Any, declared: Specs | None, what: str) -> Part:
    """The model in inference mode. `declared` is what it will be given, where that is known."""
    call = _inference(model)
    if _symbolic(model, "inputs") and _symbolic(model, "outputs"):
        part = _functional(model, call, what)
    else:
        inputs = declared or _as_built(model)
        if inputs is None:
            raise ModelLoadError(
                f"{what} does not know what it takes: declare it, for example "
                "Model(…, inputs=('float32', (224, 224, 3)))"
            )
        part = trace(call, inputs, what, like=model.call)
    return Part(part.call, part.inputs, part.outputs, what, model, _state(model))


def network_at(model: Any, declared: Specs | None, what: str, precision: str) -> Part:
    """The model in another precision ("": its own), with answers of the dtypes that it has."""
    own = network_part(model, declared, what)
    if not precision:
        return own
    if type(model).__module__.startswith("tf_keras") or not hasattr(model, "_flatten_layers"):
        raise refuse(precision, what, "it is a model of Keras 2, whose layers keep theirs")
    if precision == "int8":
        model, precision = quantized(model, what), "float32"
    with computing(model, precision):
        part = network_part(model, declared, what)

    def call(tensors: Tensors) -> Tensors:
        with computing(model, precision):
            made = part.call(tensors)
        pairs = zip(made, own.outputs, strict=True)
        return [tf.cast(x, spec.dtype) if x.dtype != spec.dtype else x for x, spec in pairs]

    return replace(part, call=call, inputs=own.inputs, outputs=own.outputs)


def _inference(model: Any) -> Any:
    mode = {"training": False} if "training" in inspect.signature(model.call).parameters else {}

    def call(*tensors: Any, **named: Any) -> Any:
        return model(*tensors, **named, **mode)

    classes = (type(part).__module__.partition(".")[0] for part in (model, *_layers(model)))
    if all(package in _OWN for package in classes):
        return call
    return tf.function(call)  # code of the user's, with branches on tensors perhaps


def _symbolic(model: Any, side: str) -> Any:
    try:
        return getattr(model, side)
    except (AttributeError, ValueError, RuntimeError):
        return None


def _functional(model: Any, call: Any, what: str) -> Part:
    structure = _structure(model, "input")
    leaves = flatten(structure)
    if isinstance(structure, dict) and not any("/" in name for name, _ in leaves):
        names = [name for name, _ in leaves]
    else:
        names = [tensor.name for _, tensor in leaves]
    inputs = named_specs(zip(names, leaves_of(structure), strict=True), what)

    def run(tensors: Tensors) -> Tensors:
        return leaves_of(call(pack(structure, iter(tensors))))

    returned = _structure(model, "output")
    names = output_names(returned)
    known = list(getattr(model, "output_names", None) or [])
    if isinstance(returned, (list, tuple)) and len(set(known)) == len(names) > 1:
        names = known
    outputs = named_specs(zip(names, leaves_of(returned), strict=True), what)
    return Part(run, _open_rows(inputs), _open_rows(outputs), what)


def _structure(model: Any, side: str) -> Any:
    flat = getattr(model, f"{side}s")
    if len(flat) == 1 and not isinstance(_symbolic(model, side), (dict, list, tuple)):
        return flat[0]
    return getattr(model, side)


def _open_rows(specs: Specs) -> Specs:
    """Keras notes the rows of the batch that a model was built with, and takes any number."""
    return tuple(
        tf.TensorSpec([None, *spec.shape[1:]], spec.dtype, spec.name) if spec.shape.rank else spec
        for spec in specs
    )


def _as_built(model: Any) -> Specs | None:
    """What a subclassed model was built for: one shape, or a dict of shapes by name."""
    config = getattr(model, "get_build_config", lambda: None)() or {}
    shapes = config.get("input_shape") or config.get("shapes_dict")
    if isinstance(shapes, (list, tuple)):
        shapes = {"": shapes}
    if not isinstance(shapes, dict) or not all(map(_is_shape, shapes.values())):
        return None
    dtype = getattr(model, "input_dtype", None) or getattr(model, "compute_dtype", "float32")
    return tuple(
        tf.TensorSpec([None, *shape[1:]], dtype, str(name).removesuffix("_shape"))
        for name, shape in shapes.items()
    )


def _is_shape(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        size is None or isinstance(size, int) for size in value
    )


def _state(model: Any) -> str:
    for layer in _layers(model):
        if getattr(layer, "stateful", False) is True:
            return f"its layer {layer.name!r} keeps its state from one call to the next"
    return ""


def _layers(model: Any) -> Iterator[Any]:
    for layer in getattr(model, "layers", ()):
        yield layer
        yield from _layers(layer)
