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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError
from penstock.model.runtime import keras, tf
from penstock.train.beside import Beside, beside_of, give_vocabularies, vocabularies_of
from penstock.train.forgetting import forgotten
from penstock.train.naming import naming, parts
from penstock.train.scaling import note, noted

_ADVICE = (
    "pass a function without arguments that makes and compiles it: fit(build, …) calls it in the "
    "scope of the strategy"
)


@dataclass(frozen=True)
class Packed:
    """A model as plain values."""

    name: str
    config: Any
    compiled: Any  # what it was compiled with
    own: dict[str, Any]  # classes and functions of the caller, by name
    weights: tuple[Any, ...]
    beside: Beside
    optimizer: tuple[Any, ...]
    kind: Any  # the class of the optimizer
    scale: Any  # of its losses, where the optimizer keeps none itself


def pack(model: Any) -> Packed:
    """What makes up a model."""
    library = keras()
    try:
        with naming(model) as names:
            config = library.saving.serialize_keras_object(model)
        own = names.own()
        with library.saving.custom_object_scope(own):
            _check_remembered(model)
        optimizer: Any = model.optimizer if model.compiled else None
        weights = state_of(model)
        beside = beside_of(model, weights)
    except Exception as error:
        raise _cannot(model, error) from error
    return Packed(
        model.name,
        config,
        config.pop("compile_config", None),
        own,
        tuple(_value(each) for each in weights) if model.built else (),
        beside,
        tuple(_value(each) for each in optimizer.variables)
        if optimizer is not None and optimizer.built
        else (),
        type(optimizer),
        noted(optimizer) if optimizer is not None else None,
    )


def unpack(packed: Packed) -> Any:
    """The model again, in the scope that this is called in."""
    from keras.src.saving.serialization_lib import SafeModeScope

    library = keras()
    with library.saving.custom_object_scope(packed.own), SafeModeScope(False):
        try:
            model = library.saving.deserialize_keras_object(packed.config, safe_mode=False)
            packed.beside.hand(model, state_of(model))
        except Exception as error:
            raise _cannot(packed, error) from error
        if packed.weights:
            _fill(state_of(model), packed.weights, packed.name)
            _settle(model)
        try:
            if packed.compiled:
                model.compile_from_config(packed.compiled)
        except Exception as error:
            raise _cannot(packed, error) from error
        if getattr(model, "optimizer", None) is not None:
            _refill_optimizer(model, packed)
    return model


def _refill_optimizer(model: Any, packed: Packed) -> None:
    if type(model.optimizer) is not packed.kind:
        got = type(model.optimizer).__name__
        raise ConfigError(
            f"the optimizer of {packed.name!r} is a {got} when it is made again from its config, "
            f"not a {packed.kind.__name__}: {_ADVICE}"
        )
    packed.beside.hand_optimizer(model, state_of(model))
    if packed.optimizer:
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        _fill(model.optimizer.variables, packed.optimizer, f"{packed.name}'s optimizer")
        note(model.optimizer, packed.scale)


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


def is_whole(model: Any) -> bool:
    """Whether all layers have their weights: `build` marks some models built that have none."""
    return all(each.built for each in model._flatten_layers())


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
        give_vocabularies(to, vocabularies_of(trained), lost)
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


def _settle(model: Any) -> None:
    """An adapted layer computes with constants that it has made of its weights: make them anew."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras().layers.Normalization):
            layer.finalize_state()


def _check_remembered(model: Any) -> None:
    for each in parts(model):
        lost = forgotten(each)
        if lost:
            raise TypeError(
                f"{type(each).__name__} has a get_config that leaves out {', '.join(lost)}, and "
                "would be made again with another value"
            )


def _cannot(model: Any, error: Exception) -> ConfigError:
    why = f"{type(error).__name__}: {error}"[:600]
    return ConfigError(
        f"the model {model.name!r} cannot be moved into the scope of a strategy ({why}); {_ADVICE}"
    )
