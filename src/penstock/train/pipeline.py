"""A model in stages, each on a device of its own: for one that outgrows a GPU.

`stages(model, devices)` moves every variable to the device of its stage, and is a model with
these variables. A batch passes through in micro-batches. All of a step is one graph, so while a
stage has the second micro-batch, the next one has the first:

    GPU 0   1  2  3  4  .  .  .  .  4' 3' 2' 1'          n forward, n' backward
    GPU 1   .  1  2  3  4  .  .  4' 3' 2' 1' .
    GPU 2   .  .  1  2  3  44'3' 2' 1' .  .  .

The loss is that of the whole batch: the weights become those of training on one device. Batch
normalization has the statistics of each micro-batch, as it has in any pipeline.

What there is besides: `keras.distribution` (ModelParallel, LayoutMap) shards single variables. In
Keras 3 that works with the JAX backend. With TensorFlow it is taken and does nothing (3.15, as
tested): every variable stays whole on the first device. So stages are placed by `tf.device`. They
are devices of one process. XLA compiles for one device: stages are not compiled by it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from penstock.errors import ConfigError
from penstock.model.runtime import keras, tf
from penstock.train.cuts import balanced
from penstock.train.recompute import recomputed
from penstock.train.remat import Same
from penstock.train.segments import Chain, Segment, chain_of, graph_of
from penstock.train.weighing import stateful

_COPIES = 4  # of a weight: itself, its gradient, and what optimizers keep for it
_ROWS = 32  # whose activations weigh against weights, where stages are balanced


def stages(
    model: Any,
    devices: Sequence[str] | None = None,
    *,
    micro_batches: int = 4,
    ends: Sequence[str] | None = None,
    remat: bool = False,
) -> Any:
    """The model, to be compiled, with its layers on several devices.

    `devices`: names such as "GPU:0"; all GPUs where none are named. `ends`: the last layer of each
    stage but the last; stages of like memory where none are named. `remat`: what a stage computed
    is computed again in the backward pass, and only what passes between stages is kept.
    """
    chain = chain_of(model)
    if chain is None:
        raise ConfigError(
            "stages are cut from a functional or sequential model that is built; "
            f"{model.name!r} is a {type(model).__name__}"
        )
    if getattr(getattr(model, "optimizer", None), "built", False):
        raise ConfigError("stages: the model's optimizer has state already; make stages before")
    if micro_batches < 1:
        raise ConfigError(f"micro_batches must be at least 1, not {micro_batches}")
    going = stateful(model)
    if going and micro_batches > 1:
        raise ConfigError(
            f"{' and '.join(map(repr, going))}: stateful=True would hand the states of a "
            "micro-batch's rows to those of the next one: use micro_batches=1"
        )
    names = list(devices) if devices is not None else _gpus()
    cuts = _after_layers(chain, ends) if ends is not None else _balanced(chain, len(names))
    if len(cuts) + 1 != len(names):
        raise ConfigError(f"expected {len(names)} stages, one a device; got {len(cuts) + 1}")
    places = list(zip(names, chain.segments(cuts), strict=True))
    _move(places)
    return Staged(model, chain, places, micro_batches, remat)


class Staged(Same):
    """A model whose segments run on devices; `model` is the one that it was made of."""

    def __init__(
        self,
        model: Any,
        chain: Chain,
        places: Sequence[tuple[str, Segment]],
        micro_batches: int,
        remat: bool,
    ) -> None:
        super().__init__(model)
        self._hidden = (chain, tuple(places), micro_batches, remat)

    def compile(self, *args: Any, jit_compile: bool | str = "auto", **kwargs: Any) -> None:
        """As of any model, without XLA."""
        if jit_compile is True:
            raise ConfigError("XLA compiles for one device: stages need jit_compile=False")
        super().compile(*args, jit_compile=False, **kwargs)
        if self.optimizer is not None:
            _place(getattr(self.optimizer, "inner_optimizer", self.optimizer))
            self.optimizer.build(self.trainable_variables)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        chain, places, micro_batches, _ = self._hidden
        graph = graph_of(self.model)
        assert graph is not None
        flat = graph._standardize_inputs(inputs)
        rows, pieces = _cut(flat, micro_batches)
        done = [self._piece(dict(zip(chain.inputs, one, strict=True)), training) for one in pieces]
        with tf.device(places[-1][0]):
            outputs = [_joined(parts, rows) for parts in zip(*done, strict=True)]
        packed = keras().tree.pack_sequence_as(graph._outputs_struct, outputs)
        return outputs[0] if isinstance(packed, list | tuple) and len(packed) == 1 else packed

    def devices(self) -> dict[str, list[str]]:
        """The layers of each stage."""
        return {
            name: [getattr(call.operation, "name", "") for call in segment.calls]
            for name, segment in self._hidden[1]
        }

    def _piece(self, tensors: dict[int, Any], training: bool | None) -> list[Any]:
        """A micro-batch through all stages."""
        chain, places, _, _ = self._hidden
        for device, segment in places:
            with tf.device(device):
                if training:
                    tensors |= self._trained(device, segment, tensors)
                else:
                    tensors |= segment.run(tensors, False)
        return [tensors[number] for number in chain.outputs]

    def _trained(self, device: str, segment: Segment, tensors: dict[int, Any]) -> dict[int, Any]:
        _, _, micro_batches, remat = self._hidden

        def function(taken: list[Any]) -> list[Any]:
            known = dict(zip(segment.takes, taken, strict=True))
            return list(segment.run(known, True).values())

        taken = [tensors[number] for number in segment.takes]
        given, losses = recomputed(function, taken, segment.variables(), again=remat, device=device)
        if losses and micro_batches > 1:
            raise ConfigError(
                "a layer adds a loss of its own (add_loss, activity_regularizer), whose weight in "
                "micro-batches is not known: use micro_batches=1"
            )
        for loss in losses:
            keras().layers.Layer.add_loss(self.model, loss)
        return dict(zip(segment.gives, given, strict=True))


def _cut(flat: Sequence[Any], pieces: int) -> tuple[Any, list[list[Any]]]:
    """The rows, and the inputs of each micro-batch. None is without rows: the first one is lent."""
    rows = tf.shape(flat[0])[0]
    lent = tf.maximum(pieces - rows, 0)
    whole = [tf.concat([one, tf.repeat(one[:1], lent, axis=0)], 0) for one in flat]
    total = rows + lent
    edges = [total * number // pieces for number in range(pieces + 1)]
    return rows, [[one[start:end] for one in whole] for start, end in itertools.pairwise(edges)]


def _joined(parts: Sequence[Any], rows: Any) -> Any:
    """An output of all micro-batches, with its mask: losses and metrics look at that."""
    joined = tf.concat(parts, 0)[:rows]
    masks = [getattr(part, "_keras_mask", None) for part in parts]
    if masks[0] is not None:
        joined._keras_mask = tf.concat(masks, 0)[:rows]
    return joined


def _gpus() -> list[str]:
    found = [device.name for device in tf.config.list_logical_devices("GPU")]
    if len(found) < 2:
        raise ConfigError(f"stages need several devices; TensorFlow sees {len(found)} GPUs")
    return found


def _after_layers(chain: Chain, ends: Sequence[str]) -> list[int]:
    places = {
        getattr(call.operation, "name", ""): place
        for place, call in enumerate(chain.calls, start=1)
    }
    missing = [name for name in ends if name not in places]
    if missing:
        raise ConfigError(f"ends: expected names of layers, got {', '.join(map(repr, missing))}")
    cuts = [places[name] for name in ends]
    if cuts != sorted(set(cuts) - {len(chain.calls)}):
        raise ConfigError(f"ends: expected layers in the order of the model, got {list(ends)}")
    return cuts


def _balanced(chain: Chain, parts: int) -> list[int]:
    seen: set[int] = set()
    costs = []
    for call, given in zip(chain.calls, chain.given(), strict=True):
        fresh = {id(one): one for one in call.variables() if id(one) not in seen}
        seen |= set(fresh)
        costs.append(_COPIES * sum(map(_bytes, fresh.values())) + _ROWS * given)
    return balanced(costs, chain.narrow(), parts)


def _bytes(variable: Any) -> int:
    return int(tf.TensorShape(variable.shape).num_elements() * tf.as_dtype(variable.dtype).size)


def _place(optimizer: Any) -> None:
    """What an optimizer keeps and computes for a weight lies where the weight does."""
    added, updated = optimizer.add_variable_from_reference, optimizer.update_step

    def add_variable_from_reference(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        with tf.device(reference_variable._value.device):
            return added(reference_variable, *args, **kwargs)

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> Any:
        with tf.device(getattr(variable, "_value", variable).device):
            return updated(gradient, variable, learning_rate)

    optimizer.add_variable_from_reference = add_variable_from_reference
    optimizer.update_step = update_step


def _move(places: Sequence[tuple[str, Segment]]) -> None:
    """Each variable to the device of the first stage that uses it."""
    moved: set[int] = set()
    for device, segment in places:
        for variable in segment.variables():
            if id(variable) not in moved:
                moved.add(id(variable))
                with tf.device(device):
                    variable._initialize(variable.numpy())
