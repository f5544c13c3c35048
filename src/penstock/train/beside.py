"""What a model was told, or has learnt, that is neither in its config nor among its weights.

- which single variables are frozen: a config knows only of whole layers
- in which precision it computes, which the config of a functional or sequential model leaves out
- the vocabularies of lookups that were adapted: tables, not variables
- what `exclude_from_weight_decay` was told; which variables the optimizer was built for

    beside = beside_of(model)    # plain values, as what `carry` packs
    beside.hand(again)           # before it is compiled: its optimizer depends on this
    beside.hand_optimizer(again)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.model.runtime import keras


@dataclass(frozen=True)
class Beside:
    """As plain values; variables by their place among `weights`."""

    policies: tuple[Any, ...]  # of each layer
    vocabularies: tuple[
        tuple[Any, Any], ...
    ]  # of each lookup: tokens, and what each of them weighs
    trainable: tuple[bool, ...]
    optimized: tuple[int, ...] | None  # those that the optimizer was built for
    undecayed: tuple[Any, tuple[int, ...]]  # a pattern of names, and which of the weights

    def hand(self, model: Any, weights: Sequence[Any]) -> None:
        """A model that was made again, and is not compiled yet, gets what belongs to its layers."""
        for layer, policy in zip(model._flatten_layers(), self.policies, strict=False):
            if layer.dtype_policy.name != policy.name and _is_plain(policy, layer.dtype_policy):
                layer.dtype_policy = policy
        give_vocabularies(model, self.vocabularies)
        for variable, trainable in zip(weights, self.trainable, strict=False):
            if variable.trainable != trainable:
                variable.trainable = trainable

    def hand_optimizer(self, model: Any, weights: Sequence[Any]) -> None:
        """Its optimizer is built for the same variables, and spares the same ones from decay."""
        if self.optimized is not None:
            wanted = [weights[place] for place in self.optimized]
            has = _inner(model.optimizer)._trainable_variables
            made = model.optimizer
            if made.built and [id(each) for each in has] != [id(each) for each in wanted]:
                model.optimizer = type(made).from_config(made.get_config())
            if not model.optimizer.built:
                model.optimizer.build(wanted)
        if any(self.undecayed):
            _exclude(model.optimizer, weights, *self.undecayed)


def beside_of(model: Any, weights: Sequence[Any]) -> Beside:
    """What a model has beside its config and its weights."""
    optimizer = model.optimizer if model.compiled else None
    return Beside(
        tuple(layer.dtype_policy for layer in model._flatten_layers()),
        vocabularies_of(model),
        tuple(bool(each.trainable) for each in weights),
        _optimized(optimizer, weights),
        _undecayed(optimizer, weights),
    )


def vocabularies_of(model: Any) -> tuple[tuple[Any, Any], ...]:
    """Of each lookup what it knows; of one that was told nothing yet, no tokens."""
    found = []
    for layer in _lookups(model):
        tokens = layer.get_vocabulary() if int(layer.lookup_table.size()) else []
        weighs = getattr(layer, "idf_weights_const", None)
        found.append((tokens, None if weighs is None else weighs.numpy()[: len(tokens)]))
    return tuple(found)


def give_vocabularies(model: Any, known: Sequence[tuple[Any, Any]], lost: bool = False) -> None:
    """Its lookups know the same; `lost`: their tables are."""
    for layer, (tokens, weighs) in zip(_lookups(model), known, strict=True):
        if len(tokens) and (lost or layer.input_vocabulary is None):
            layer.set_vocabulary(tokens, weighs)


def _lookups(model: Any) -> list[Any]:
    kinds = (keras().layers.StringLookup, keras().layers.IntegerLookup)
    return [layer for layer in model._flatten_layers() if isinstance(layer, kinds)]


def _is_plain(*policies: Any) -> bool:
    """Neither quantized nor a map: layers have those in their configs."""
    kinds = keras().dtype_policies
    return not any(
        isinstance(each, kinds.DTypePolicyMap) or each.quantization_mode is not None
        for each in policies
    )


def _optimized(optimizer: Any, weights: Sequence[Any]) -> tuple[int, ...] | None:
    if optimizer is None or not optimizer.built:
        return None
    places = {id(each): place for place, each in enumerate(weights)}
    found = [places.get(id(each)) for each in _inner(optimizer)._trainable_variables]
    return tuple(place for place in found if place is not None) if None not in found else None


def _undecayed(optimizer: Any, weights: Sequence[Any]) -> tuple[Any, tuple[int, ...]]:
    """What `exclude_from_weight_decay` was told, which is not in an optimizer's config."""
    inner = _inner(optimizer)
    excluded: set[Any] = getattr(inner, "_exclude_from_weight_decay", set())
    which = (place for place, each in enumerate(weights) if inner._var_key(each) in excluded)
    return getattr(inner, "_exclude_from_weight_decay_pattern", None), (
        tuple(which) if excluded else ()
    )


def _exclude(optimizer: Any, weights: Sequence[Any], pattern: Any, which: Sequence[int]) -> None:
    """Keras' own method refuses optimizers that are built, as those made from a config are."""
    inner = _inner(optimizer)
    inner._exclude_from_weight_decay = {inner._var_key(weights[place]) for place in which}
    inner._exclude_from_weight_decay_pattern = pattern
    inner._exclude_from_weight_decay_cache = {}


def _inner(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)
