"""Activations that are recomputed in the backward pass in place of being kept (checkpointing).

`remat(model, which)` is a model with the same variables. In training it runs segments of the
graph, each a pure function of its inputs and its variables' values, and keeps only these. The
backward pass runs a segment again, then differentiates it:

    forward     x ──▶ [segment] ──▶ y ──▶ [segment] ──▶ z        kept: x, y
    backward          [segment] ◀── dy ◀── [segment] ◀── dz      insides: one segment at a time

The last segment is not run again: its insides are needed at once.

State is read once, before the first run, and given to both: a dropout has the same mask twice.
What the first run assigns (BatchNorm's statistics, seeds) is assigned after it; what the second
would assign is dropped. A model of Python code has no graph to cut: its layers are recomputed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.errors import ConfigError
from penstock.model.runtime import keras, tf
from penstock.train.cuts import cheapest
from penstock.train.recompute import recomputed
from penstock.train.segments import Chain, Segment, chain_of, graph_of

_Model: Any = keras().Model


def remat(model: Any, which: bool | str | Sequence[str] = "auto") -> Any:
    """The model with parts of it recomputed: those that save most (True, "auto"), or named layers.

    Plain layers that are named and follow one another are recomputed together; a layer that is
    made of layers (a block, a nested model) on its own.
    """
    if which is False:
        return model
    names = _names(model, which)
    chain = chain_of(model)
    if chain is None:
        return Rewrapped(model, _chosen_layers(model, names))
    plan = _best(chain) if names is None else _named(chain, names)
    return Replayed(model, chain, plan)


class Same(_Model):  # type: ignore[misc]
    """A model with another's variables. Where nothing is trained it is the other one."""

    def __init__(self, model: Any) -> None:
        super().__init__(name=model.name, dtype=model.dtype_policy, autocast=False)
        self.model = model
        self.built = True

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if not training:
            return self._as_it_is(inputs, training, mask)
        return self.train(inputs, mask)

    def _as_it_is(self, inputs: Any, training: bool | None, mask: Any) -> Any:
        """The model itself."""
        masked = {} if mask is None else {"mask": mask}  # not every model takes one
        return self.model(inputs, training=training, **masked)

    def train(self, inputs: Any, mask: Any) -> Any:
        raise NotImplementedError

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        return None


class Replayed(Same):
    """A functional model as segments; `plan` says which of them run again."""

    def __init__(self, model: Any, chain: Chain, plan: Sequence[tuple[Segment, bool]]) -> None:
        super().__init__(model)
        self._hidden = (chain, tuple(plan))  # a tuple of plain objects: nothing for Keras to track

    def train(self, inputs: Any, mask: Any) -> Any:
        chain, plan = self._hidden
        graph = graph_of(self.model)
        assert graph is not None
        flat = graph._standardize_inputs(inputs)
        for tensor, its in zip(flat, keras().tree.flatten(mask) if mask else (), strict=False):
            tensor._keras_mask = its
        tensors = dict(zip(chain.inputs, flat, strict=True))
        for segment, again in plan:
            tensors |= self._run(segment, tensors) if again else segment.run(tensors, True)
        outputs = [tensors[number] for number in chain.outputs]
        packed = keras().tree.pack_sequence_as(graph._outputs_struct, outputs)
        return outputs[0] if isinstance(packed, list | tuple) and len(packed) == 1 else packed

    def _run(self, segment: Segment, tensors: dict[int, Any]) -> dict[int, Any]:
        def function(taken: list[Any]) -> list[Any]:
            known = dict(zip(segment.takes, taken, strict=True))
            return list(segment.run(known, True).values())

        taken = [tensors[number] for number in segment.takes]
        given, losses = recomputed(function, taken, segment.variables())
        for loss in losses:
            keras().layers.Layer.add_loss(self.model, loss)
        return dict(zip(segment.gives, given, strict=True))


class Rewrapped(Same):
    """A model of Python code, with some layers' calls replaced while it trains."""

    def __init__(self, model: Any, layers: Sequence[Any]) -> None:
        super().__init__(model)
        self._hidden = tuple(layers)

    def train(self, inputs: Any, mask: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for layer in self._hidden:
                stack.enter_context(_replaced(layer))
            return self._as_it_is(inputs, True, mask)


@contextlib.contextmanager
def _replaced(layer: Any) -> Iterator[None]:
    """Its call is one that recomputes."""
    original = layer.call

    def call(*args: Any, **kwargs: Any) -> Any:
        flat = keras().tree.flatten((args, kwargs))
        places = [place for place, one in enumerate(flat) if tf.is_tensor(one)]
        shape: list[Any] = []

        def function(taken: list[Any]) -> list[Any]:
            filled = list(flat)
            for place, tensor in zip(places, taken, strict=True):
                filled[place] = tensor
            again, words = keras().tree.pack_sequence_as((args, kwargs), filled)
            outputs = original(*again, **words)
            shape[:] = [outputs]
            return list(keras().tree.flatten(outputs))

        taken = [flat[place] for place in places]
        given, losses = recomputed(function, taken, list(layer.variables))
        for loss in losses:
            keras().layers.Layer.add_loss(layer, loss)
        return keras().tree.pack_sequence_as(shape[0], given)

    object.__setattr__(layer, "call", call)
    try:
        yield
    finally:
        object.__delattr__(layer, "call")


def _best(chain: Chain) -> list[tuple[Segment, bool]]:
    positions = chain.narrow()
    segments = chain.segments(cheapest(chain.kept(positions), chain.given(), positions))
    return [(segment, segment is not segments[-1]) for segment in segments]


def _named(chain: Chain, names: set[str]) -> list[tuple[Segment, bool]]:
    """Runs of named layers; inside a nested model that is named, all of it."""
    groups = [_group(chain, call_at, names) for call_at in range(len(chain.calls))]
    cuts = [at for at in range(1, len(groups)) if groups[at] != groups[at - 1]]
    starts = [0, *cuts]
    segments = chain.segments(cuts)
    return [(one, groups[at] is not None) for one, at in zip(segments, starts, strict=True)]


def _group(chain: Chain, at: int, names: set[str]) -> Any:
    """What a call is recomputed with; None where it is not."""
    call = chain.calls[at]
    for model in call.within:
        if model.name in names:
            return model
    name = getattr(call.operation, "name", None)
    if name not in names:
        return None
    return call if _is_composite(call.operation) else "plain"


def _is_composite(layer: Any) -> bool:
    return bool(getattr(layer, "_layers", None))


def _chosen_layers(model: Any, names: set[str] | None) -> list[Any]:
    """Of a model without a graph: the named ones, or blocks at its top, or all that is there."""
    if names is not None:
        return [layer for layer in model._flatten_layers() if layer.name in names]
    layers = list(model.layers)
    return [layer for layer in layers if _is_composite(layer)] or layers


def _names(model: Any, which: Any) -> set[str] | None:
    """The names that were asked for, all of which there are; None for the best."""
    if which is True or which == "auto":
        return None
    if not isinstance(which, list | tuple) or not all(isinstance(name, str) for name in which):
        raise ConfigError(f'remat: expected True, False, "auto" or names of layers, got {which!r}')
    known = {layer.name for layer in model._flatten_layers(include_self=False)}
    missing = [name for name in which if name not in known]
    if missing or not which:
        raise ConfigError(
            f"remat: expected names of layers of {model.name!r}, got "
            f"{', '.join(map(repr, missing)) or 'none at all'}"
        )
    return set(which)
