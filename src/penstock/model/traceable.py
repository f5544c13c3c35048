"""TensorFlow's own callables as parts of a graph: `tf.function`, concrete functions, modules.

What a function takes is in its `input_signature`, or is declared (`Model(inputs=…)`). A SavedModel,
and whatever else has `signatures`, is asked for one of them by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.errors import ModelLoadError
from penstock.model.parts import Part, Specs, Tensors, named_specs, trace
from penstock.model.runtime import tf
from penstock.model.structure import flatten, leaves_of, output_names, pack

_DEFAULT = "serving_default"


def is_traceable(found: Any, declared: bool) -> bool:
    """Whether this is a function of TensorFlow's, or an object that has one.

    A `tf.Module` without one can be traced all the same when it is declared what it takes.
    """
    return (
        _is_function(found)
        or bool(_signatures(found))
        or _is_function(getattr(found, "__call__", None))  # noqa: B004 (a tf.function, or not?)
        or (declared and isinstance(found, tf.Module))
    )


def traceable_part(found: Any, signature: str, declared: Specs | None, what: str) -> Part:
    """The function itself, or the one that an object has under the name `signature`."""
    if _is_function(found):
        if signature:
            raise ModelLoadError(f"{what} is a function: it has no signature {signature!r}")
        return function_part(found, declared, what)
    signatures = _signatures(found)
    wanted = signature
    if not signature:
        wanted = next(iter(signatures)) if len(signatures) == 1 else _DEFAULT
    if wanted in signatures:
        part = function_part(signatures[wanted], declared, what, in_dict=False)
    elif signature and _is_function(getattr(found, signature, None)):
        part = function_part(getattr(found, signature), declared, what)
    elif not signatures and not signature and callable(found):
        call = found.__call__ if _is_function(found.__call__) else tf.function(found)
        part = function_part(call, declared, what)
    else:
        raise ModelLoadError(
            f"{what} has no signature {wanted!r}; it has "
            f"{', '.join(map(repr, sorted(signatures))) or 'none'} (choose: Model(…, signature=…))"
        )
    return replace(part, keep=(found, part.keep))


def _signatures(found: Any) -> dict[str, Any]:
    signatures = getattr(found, "signatures", None)
    if not isinstance(signatures, Mapping):
        return {}
    return {name: function for name, function in signatures.items() if _is_function(function)}


def function_part(function: Any, declared: Specs | None, what: str, in_dict: bool = True) -> Part:
    """A function that says what it takes, or takes what is declared.

    Signatures return a dict even of a single output; without `in_dict`, that one has no name.
    """
    if isinstance(function, tf.types.experimental.ConcreteFunction):
        concrete = function
    elif getattr(function, "input_signature", None) is not None:
        concrete = function.get_concrete_function()
    elif declared is None:
        raise ModelLoadError(
            f"{what} does not say what it takes: give it an input_signature, or declare it, "
            "for example Model(…, inputs=('float32', (224, 224, 3)))"
        )
    else:
        return trace(function, declared, what)
    arguments, keywords = concrete.structured_input_signature
    structure = (tuple(arguments), dict(keywords))
    inputs = named_specs(_input_names(arguments, keywords), what)

    def call(tensors: Tensors) -> Tensors:
        args, kwargs = pack(structure, iter(tensors))
        return leaves_of(function(*args, **kwargs))

    returned = concrete.structured_outputs
    names = output_names(returned)
    if not in_dict and len(names) == 1:
        names = [""]
    outputs = named_specs(zip(names, leaves_of(returned), strict=True), what)
    if not outputs:
        raise ModelLoadError(f"{what} returns no tensors")
    return Part(call, inputs, outputs, what, function)


def _input_names(arguments: Any, keywords: Any) -> list[tuple[str, Any]]:
    """The tensors of a structured signature, named by keyword, dict key or parameter."""
    named: list[tuple[str, Any]] = []
    alone = len(arguments) == 1 and not keywords
    for argument in arguments:
        for path, spec in flatten(argument):
            own = str(getattr(spec, "name", None) or path)
            named.append((path if alone and isinstance(argument, Mapping) else own, spec))
    return named + flatten(keywords)


def _is_function(found: Any) -> bool:
    kinds = tf.types.experimental
    return isinstance(found, (kinds.PolymorphicFunction, kinds.ConcreteFunction))
