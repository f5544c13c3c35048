"""Tensors in dicts, lists and tuples: their names, and how functions are called with them.

Names are what callers see. A dict's keys are names; in a list or tuple, a tensor is `output_0` and
so on; what lies deeper has a path. Knows no TensorFlow: leaves may be anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def flatten(structure: Any, path: str = "") -> list[tuple[str, Any]]:
    """The leaves of a structure with their names; a lone leaf's name is empty."""
    if isinstance(structure, Mapping):
        items = [(str(key), value) for key, value in structure.items()]
    elif isinstance(structure, (list, tuple)):
        prefix = "" if path else "output_"
        items = [(f"{prefix}{number}", value) for number, value in enumerate(structure)]
    else:
        return [(path, structure)]
    return [
        leaf for name, value in items for leaf in flatten(value, f"{path}/{name}" if path else name)
    ]


def pack(structure: Any, leaves: Iterator[Any]) -> Any:
    """A structure like this one with these leaves, in the order of `flatten`."""
    if isinstance(structure, Mapping):
        return {key: pack(value, leaves) for key, value in structure.items()}
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(pack(value, leaves) for value in structure))
    if isinstance(structure, (list, tuple)):
        return type(structure)([pack(value, leaves) for value in structure])
    return next(leaves)


def leaves_of(structure: Any) -> list[Any]:
    """The leaves alone."""
    return [leaf for _, leaf in flatten(structure)]


def output_names(structure: Any) -> list[str]:
    """What outputs are called: one that is alone in a list needs no name."""
    names = [name for name, _ in flatten(structure)]
    return [""] if names == ["output_0"] and not isinstance(structure, Mapping) else names


def passing(
    function: Callable[..., Any], names: Sequence[str], like: Callable[..., Any] | None = None
) -> Callable[[list[Any]], Any]:
    """How this function is called with a list of tensors of these names.

    A single tensor without a name is passed as it is; others as keywords, where the function (or
    the one that it is `like`) has parameters of these names, else as one dict.
    """
    if list(names) == [""]:
        return lambda tensors: function(tensors[0])
    if set(names) <= _parameters(like or function):
        return lambda tensors: function(**dict(zip(names, tensors, strict=True)))
    return lambda tensors: function(dict(zip(names, tensors, strict=True)))


def _parameters(function: Callable[..., Any]) -> set[str]:
    try:
        parameters = inspect.signature(getattr(function, "python_function", function)).parameters
    except (TypeError, ValueError):
        return set()
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name, parameter in parameters.items() if parameter.kind in by_keyword}


def needs_arguments(function: Callable[..., Any]) -> bool:
    """Whether a function takes something: rows, most likely. One that does not makes a model."""
    try:
        signature = inspect.signature(function)
        signature.bind()
    except (TypeError, ValueError):
        return True
    return any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in signature.parameters.values())
