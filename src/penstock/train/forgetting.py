"""A class of the caller's that forgets its arguments when it is made again from its config.

`get_config` of Keras' losses, metrics, constraints and most layers knows the arguments of Keras'
own `__init__`. A class that has further ones, and leaves it at that, is made again with their
defaults: a model that trains otherwise, and nobody is told. So it is made again here, and the two
are compared::

    for each in parts(model):
        lost = forgotten(each)    # names of what differs: empty where all of it comes again

What has its defaults comes again as it is, and so do arguments that Keras' class takes itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.model.runtime import keras
from penstock.train.naming import is_own

_OTHER = "an object"


def forgotten(thing: Any) -> list[str]:
    """What of a thing is another when it is made again; where that is not to be had, nothing."""
    kind = type(thing)
    if inspect.isfunction(thing) or not is_own(kind):
        return []
    try:
        config = thing.get_config()
        arguments = _unwritten(kind, config)
        again = kind.from_config(config) if arguments else thing
    except Exception:
        return []  # the model cannot be made again either, and who tries says why
    before, after = vars(thing), vars(again)
    return sorted(
        name.lstrip("_")
        for name in _telling(thing, arguments)
        if name in before and name in after and _told(before[name]) != _told(after[name])
    )


def _unwritten(kind: type, config: dict[str, Any]) -> set[str]:
    """Arguments of the caller's `__init__` that are not in the config, nor Keras' own."""
    own = {name for each in kind.__mro__ if is_own(each) for name in _arguments(each)}
    theirs = {name for each in kind.__mro__ if not is_own(each) for name in _arguments(each)}
    return own - theirs - set(config)


def _arguments(kind: type) -> Iterator[str]:
    made = vars(kind).get("__init__")
    if not inspect.isfunction(made):
        return
    for parameter in list(inspect.signature(made).parameters.values())[1:]:
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            yield parameter.name


def _telling(thing: Any, arguments: set[str]) -> set[str]:
    """Attributes that tell of arguments. A layer has more that it got when it was built."""
    if not isinstance(thing, keras().layers.Layer):
        return set(vars(thing)) - {"name", "_name"}  # which may be counted on
    makers = (vars(each).get("__init__") for each in type(thing).__mro__ if is_own(each))
    mentioned = {
        name
        for made in makers
        if inspect.isfunction(made)
        for name in inspect.unwrap(made).__code__.co_names
    }
    return mentioned | arguments | {f"_{name}" for name in arguments}


def _told(value: Any) -> Any:
    """What can be compared of a value: of variables and whatever else has one, the shape."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if inspect.isfunction(value) or inspect.isclass(value):
        return id(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.shape, value.tobytes()
    if isinstance(value, dict):
        return {str(key): _told(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_told(each) for each in value]
    if hasattr(value, "shape"):
        tensor = hasattr(value, "numpy") and not hasattr(value, "assign")
        return _told(value.numpy()) if tensor else tuple(value.shape)
    return _OTHER, type(value).__name__
