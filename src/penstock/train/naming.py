"""The caller's own classes and functions in a model, each under a name that no other has.

Keras writes a class or a function into a config as its name, and looks it up again by that. Two
losses out of one closure have one name, and so may two classes: all would be the last of them.
While a config is written, Keras is told names here that are given once each::

    with naming(model) as names:
        config = serialize_keras_object(model)
    names.own()               # what each name stands for, for who makes the model again

What loses its arguments on the way all the same is found in `forgetting`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

_LAMBDA = "<lambda>"
_LIBRARIES = ("keras", "builtins", "tensorflow")


class Names(dict[Any, str]):
    """Stands in for Keras' table of registered names: who asks for an own thing's is given one."""

    def __init__(self, registered: dict[Any, str]) -> None:
        super().__init__(registered)
        self._given: dict[int, tuple[str, Any]] = {}
        self._usual: dict[str, list[Any]] = {}  # what else it could be looked up by

    def __contains__(self, thing: object) -> bool:
        self.note(thing)
        return is_own(thing) or super().__contains__(thing)

    def __getitem__(self, thing: Any) -> str:
        if not is_own(thing):
            return super().__getitem__(thing)
        number = len(self._given)
        return self._given.setdefault(
            id(thing), (f"penstock>{number}_{thing.__name__.strip('<>')}", thing)
        )[0]

    def note(self, thing: Any) -> None:
        """It is part of the model."""
        for name in {getattr(thing, "__name__", ""), self.get(thing, "")} - {"", _LAMBDA}:
            known = self._usual.setdefault(name, [])
            if all(each is not thing for each in known):
                known.append(thing)

    def own(self) -> dict[str, Any]:
        """What the names stand for; a usual one, too, where it can only mean one thing."""
        found = {
            name: things[0]
            for name, things in self._usual.items()
            if len(things) == 1 and is_own(things[0])
        }
        return found | dict(self._given.values())


def is_own(thing: Any) -> bool:
    """Whether a class or function is the caller's, not the libraries'."""
    home = getattr(thing, "__module__", None) or "builtins"
    return hasattr(thing, "__name__") and home.partition(".")[0] not in _LIBRARIES


@contextlib.contextmanager
def naming(model: Any) -> Iterator[Names]:
    """While this lasts, Keras writes what is the caller's own by names that are given once."""
    from keras.src.saving import object_registration as registration

    things = parts(model)
    # Keras keeps a lambda's code, without the globals that it knows; of a function, the name.
    nameless = [each for each in things if getattr(each, "__name__", "") == _LAMBDA]
    theirs = registration.GLOBAL_CUSTOM_NAMES
    names = Names(theirs)
    for each in things:
        names.note(each if inspect.isfunction(each) else type(each))
    registration.GLOBAL_CUSTOM_NAMES = names
    for each in nameless:
        each.__name__ = "penstock_lambda"
    try:
        yield names
    finally:
        registration.GLOBAL_CUSTOM_NAMES = theirs
        for each in nameless:
            each.__name__ = _LAMBDA


def parts(model: Any) -> list[Any]:
    """What a model is made of: layers, losses, metrics, and what they are given: functions, too."""
    waiting: list[Any] = [model, *model._flatten_layers()]
    if model.compiled:
        waiting += _flat([*_compiled(model), model.optimizer])
    found: dict[int, Any] = {}
    while waiting:
        thing = waiting.pop()
        if id(thing) in found or thing is None:
            continue
        found[id(thing)] = thing
        if not inspect.isfunction(thing):
            waiting += [each for each in _flat(getattr(thing, "__dict__", {})) if _is_part(each)]
    return list(found.values())


def _compiled(model: Any) -> list[Any]:
    config = model._compile_config.config if model._compile_config else {}
    return [config.get(key) for key in ("loss", "metrics", "weighted_metrics")]


def _is_part(thing: Any) -> bool:
    return inspect.isfunction(thing) or (
        hasattr(thing, "get_config") and not inspect.isclass(thing)
    )


def _flat(thing: Any) -> list[Any]:
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, list | tuple | set):
        return [part for each in thing for part in _flat(each)]
    return [thing]
