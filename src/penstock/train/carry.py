"""A Keras model into the scope of a strategy, with all that it has learnt.

A model's variables belong to the scope in which they were made. So the model is made a second
time there, from its config and its compile settings, and gets the first one's weights, random
seeds and optimizer state. When training ends, the caller's own model is given all that back.

    packed = pack(model)      # plain values: survives TensorFlow's being told of its peers
    model = unpack(packed)    # in the scope
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError
from penstock.model.runtime import keras, tf
from penstock.train.scaling import note, noted

_LAMBDA = "<lambda>"
_ADVICE = (
    "pass a function without arguments that makes and compiles it: fit(build, …) calls it in the "
    "scope of the strategy"
)


@dataclass(frozen=True)
class Packed:
    """A model as plain values."""

    name: str
    config: Any
    own: dict[str, Any]  # classes and functions of the caller, by name
    weights: tuple[Any, ...]
    optimizer: tuple[Any, ...]
    scale: Any  # of its losses, where the optimizer keeps none itself
    undecayed: tuple[Any, tuple[int, ...]]  # a pattern of names, and which of the weights


def pack(model: Any) -> Packed:
    """What makes up a model."""
    library = keras()
    try:
        with _named_lambdas(model):
            config = library.saving.serialize_keras_object(model)
            own = dict(_own_things(model))
    except Exception as error:
        raise _cannot(model, error) from error
    optimizer = model.optimizer if model.compiled else None
    return Packed(
        model.name,
        config,
        own,
        tuple(_value(each) for each in state_of(model)) if model.built else (),
        tuple(_value(each) for each in optimizer.variables)
        if optimizer is not None and optimizer.built
        else (),
        noted(optimizer) if optimizer is not None else None,
        _undecayed(optimizer, state_of(model)),
    )


def unpack(packed: Packed) -> Any:
    """The model again, in the scope that this is called in."""
    library = keras()
    try:
        model = library.saving.deserialize_keras_object(
            packed.config, custom_objects=packed.own, safe_mode=False
        )
    except Exception as error:
        raise _cannot(packed, error) from error
    if packed.weights:
        _fill(state_of(model), packed.weights, packed.name)
        _settle(model)
    if any(packed.undecayed) and model.optimizer is not None:
        _exclude(model.optimizer, state_of(model), *packed.undecayed)
    if packed.optimizer and model.optimizer is not None:
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        _fill(model.optimizer.variables, packed.optimizer, f"{packed.name}'s optimizer")
        note(model.optimizer, packed.scale)
    return model


def built(function: Callable[[], Any]) -> Any:
    """What a function without arguments makes: a compiled model."""
    if not callable(function):
        raise ConfigError(
            "model must be a Keras model, or a function without arguments that makes one; "
            f"got {type(function).__name__}"
        )
    required = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if required:
        raise ConfigError(
            "model must be a Keras model, or a function without arguments that makes one; "
            f"{getattr(function, '__name__', function)!r} wants {', '.join(required)}"
        )
    return function()


def state_of(model: Any) -> list[Any]:
    """A model's weights and random seeds, without what its metrics have counted."""
    counted = {id(each) for each in model.metrics_variables}
    return [each for each in model.variables if id(each) not in counted]


def check_home(model: Any, strategy: Any) -> None:
    """Refuse what was made outside of a strategy's scope: its replicas would all change the same.

    Metrics, most of all, that a script keeps in a list beside the function that compiles with them.
    """
    for each in (*model.variables, *model.metrics_variables, *model.optimizer.variables):
        value = each.value
        if not isinstance(value, tf.distribute.DistributedValues):
            raise ConfigError(
                f"the variable {each.path!r} was made outside of the strategy's scope, and would "
                f"be shared by {strategy.num_replicas_in_sync} replicas: make layers, metrics and "
                "the optimizer within the function that is given to fit"
            )


def give_back(trained: Any, to: Any, lost: bool) -> None:
    """The caller's own model gets what was learnt; `lost`: its variables were lost."""
    if to.built:
        _copy(state_of(trained), state_of(to), lost)
        _settle(to)
    if lost:
        for counter in to.metrics_variables:
            _replace(counter, tf.zeros(counter.shape, counter.dtype))
    if to.built and to.compiled and to.optimizer is not None and trained.optimizer.built:
        if not to.optimizer.built:
            home = to._distribute_strategy
            with contextlib.nullcontext() if home is None else home.scope():
                to.optimizer.build(to.trainable_variables)
        _copy(trained.optimizer.variables, to.optimizer.variables, lost)
        note(to.optimizer, noted(trained.optimizer))


def _copy(new: Sequence[Any], old: Sequence[Any], lost: bool) -> None:
    for source, target in zip(new, old, strict=True):
        if lost:
            _replace(target, _value(source))
        else:
            target.assign(_value(source))


def _replace(variable: Any, value: Any) -> None:
    """Another variable of TensorFlow's in Keras' own."""
    variable._value = tf.Variable(value, trainable=variable.trainable, name=variable.name)


def _value(variable: Any) -> Any:
    return variable.numpy()


def _fill(variables: Sequence[Any], values: Sequence[Any], what: str) -> None:
    shapes = [tuple(each.shape) for each in variables]
    wanted = [tuple(value.shape) for value in values]
    if shapes != wanted:
        raise ConfigError(
            f"{what} has other variables when it is made again from its config "
            f"(expected shapes {wanted[:6]}…, got {shapes[:6]}…): {_ADVICE}"
        )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _undecayed(optimizer: Any, weights: Sequence[Any]) -> tuple[Any, tuple[int, ...]]:
    """What `exclude_from_weight_decay` was told, which is not in an optimizer's config."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    excluded: set[Any] = getattr(inner, "_exclude_from_weight_decay", set())
    which = (place for place, each in enumerate(weights) if inner._var_key(each) in excluded)
    return getattr(inner, "_exclude_from_weight_decay_pattern", None), (
        tuple(which) if excluded else ()
    )


def _exclude(optimizer: Any, weights: Sequence[Any], pattern: Any, which: Sequence[int]) -> None:
    """Keras' own method refuses optimizers that are built, as those made from a config are."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    inner._exclude_from_weight_decay = {inner._var_key(weights[place]) for place in which}
    inner._exclude_from_weight_decay_pattern = pattern
    inner._exclude_from_weight_decay_cache = {}


def _settle(model: Any) -> None:
    """An adapted layer computes with constants that it has made of its weights: make them anew."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras().layers.Normalization):
            layer.finalize_state()


@contextlib.contextmanager
def _named_lambdas(model: Any) -> Iterator[None]:
    """Keras keeps a lambda's code, without the globals that it knows; of a function, the name."""
    nameless = [each for each in _things(model) if getattr(each, "__name__", "") == _LAMBDA]
    for number, each in enumerate(nameless):
        each.__name__ = f"penstock_lambda_{number}"
    try:
        yield
    finally:
        for each in nameless:
            each.__name__ = _LAMBDA


def _things(model: Any) -> list[Any]:
    """What a model is made of: layers, losses, metrics, and the functions that they are given."""
    library = keras()
    things: list[Any] = [model, *model._flatten_layers()]
    things += [
        part for layer in things for part in vars(layer).values() if inspect.isfunction(part)
    ]
    if model.compiled:
        config = model._compile_config.config if model._compile_config else {}
        things += library.tree.flatten([config.get(key) for key in ("loss", "metrics")])
        things += library.tree.flatten(config.get("weighted_metrics"))
        things.append(model.optimizer)
    return things


def _own_things(model: Any) -> Iterator[tuple[str, Any]]:
    """The caller's classes, which Keras finds by name only where they are registered."""
    registered = keras().saving.get_registered_name
    for thing in _things(model):
        home = thing if inspect.isfunction(thing) else type(thing)
        if home.__module__.partition(".")[0] not in ("keras", "builtins", "tensorflow"):
            yield registered(home), home
            yield home.__name__, home


def _cannot(model: Any, error: Exception) -> ConfigError:
    why = f"{type(error).__name__}: {error}"[:600]
    return ConfigError(
        f"the model {model.name!r} cannot be moved into the scope of a strategy ({why}); {_ADVICE}"
    )
