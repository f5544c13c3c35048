"""One function of tensors and variables with a backward pass of its own: `recomputed`.

There the function runs again, or what it left is used; and on the device that is named, for
TensorFlow places gradients where it likes. Written on `tf.custom_gradient`. What the function reads
of variables is handed to it, so that both runs see the same; what it assigns is caught, and
assigned once.

The second run must not begin early, and must not be merged with the first, as XLA and TensorFlow's
own optimizer merge what is computed alike. So its inputs hang on the gradient that arrives:
`_after`. That is a dependency of data: XLA drops control dependencies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.model.runtime import keras, tf


def recomputed(
    function: Callable[[list[Any]], list[Any]],
    inputs: Sequence[Any],
    variables: Sequence[Any],
    *,
    again: bool = True,
    device: str | None = None,
) -> tuple[list[Any], list[Any]]:
    """The function's tensors, and the losses that layers added in it.

    `variables` are those of Keras that it may read or assign. `again`: it runs again in the
    backward pass; else all that it computed is kept. `device`: where the backward pass runs.
    """
    surroundings = _Surroundings.now()
    weights = [one for one in variables if one.trainable]
    state = [one for one in variables if not one.trainable]
    values = [tf.convert_to_tensor(one._value) for one in weights]
    before = [tf.convert_to_tensor(one._value) for one in state]
    masks = [getattr(one, "_keras_mask", None) for one in inputs]
    first: list[_Run] = []

    def run(tensors: Sequence[Any], values: Sequence[Any]) -> _Run:
        for tensor, mask in zip(tensors, masks, strict=True):
            if mask is not None:
                tensor._keras_mask = mask
        known = [*zip(weights, values, strict=True), *zip(state, before, strict=True)]
        with surroundings.again(known) as scope:
            outputs = function(list(tensors))
        after = [scope.get_current_value(one) for one in state]
        return _Run(outputs, list(scope.losses), after)

    moving = [place for place, one in enumerate(inputs) if one.dtype.is_floating]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def forward(*given: Any) -> Any:
        tensors = list(inputs)
        for place, tensor in zip(moving, given, strict=False):
            tensors[place] = tensor

        def recorded(tensors: Sequence[Any]) -> tuple[_Run, Callable[[Sequence[Any]], Any]]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                copies = [tf.identity(value) for value in given[len(moving) :]]
                sources = [*(tensors[place] for place in moving), *copies]
                tape.watch(sources)
                done = run(tensors, copies)
            zero = tf.UnconnectedGradients.ZERO
            return done, lambda arrived: tape.gradient(
                done.differentiable(), sources, list(arrived), unconnected_gradients=zero
            )

        if again:
            with _unrecorded():
                first.append(run(tensors, given[len(moving) :]))
        else:
            done, gradient = recorded(tensors)
            first.append(done)

        def backward(*arrived: Any) -> Any:
            with tf.device(device):
                if again:
                    return recorded(_after(arrived, tensors))[1](arrived)
                return gradient(arrived)

        return first[0].differentiable(), backward

    flowing = iter(forward(*(inputs[place] for place in moving), *values))
    done = first[0]
    outputs = [next(flowing) if one.dtype.is_floating else one for one in done.outputs]
    for output, inner in zip(outputs, done.outputs, strict=True):
        if getattr(inner, "_keras_mask", None) is not None:
            output._keras_mask = inner._keras_mask
    for variable, old, new in zip(state, before, done.state, strict=True):
        if new is not old:
            variable.assign(new)
    return outputs, list(flowing)


@dataclass(frozen=True)
class _Run:
    outputs: list[Any]
    losses: list[Any]
    state: list[Any]

    def differentiable(self) -> list[Any]:
        return [one for one in self.outputs if one.dtype.is_floating] + self.losses


@dataclass(frozen=True)
class _Surroundings:
    """What Keras keeps beside the arguments of a call: the context (training), the precision."""

    context: Any
    autocast: Any

    @staticmethod
    def now() -> _Surroundings:
        scope = _variables_module().get_autocast_scope()
        return _Surroundings(
            _global_state().get_global_attribute("current_call_ctx"), scope and scope.dtype
        )

    @contextlib.contextmanager
    def again(self, known: Sequence[tuple[Any, Any]]) -> Iterator[Any]:
        """The same for a run, with values for variables; assignments stay in the scope."""
        autocast = _variables_module().AutocastScope
        with autocast(None):
            scope = keras().StatelessScope(known, collect_losses=True, initialize_variables=False)
        state = _global_state()
        others = state.get_global_attribute("current_call_ctx")
        state.set_global_attribute("current_call_ctx", self.context)
        try:
            with autocast(self.autocast), scope:
                yield scope
        finally:
            state.set_global_attribute("current_call_ctx", others)


def _after(arrived: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    """The same tensors, which cannot be had before the gradient; no optimizer sees through it.

    One element of the gradient, as a truth, equals itself: zero is added. (A float would not do:
    NaN does not equal itself.)
    """
    if tf.executing_eagerly():
        return [tf.identity(one) for one in tensors]
    element = tf.reduce_max(tf.reshape(arrived[0], [-1])[:1])
    truth = tf.cast(element, tf.bool)
    nothing = tf.where(tf.equal(truth, truth), 0.0, float("nan"))
    return [
        one & (nothing != 0.0) | one if one.dtype == tf.bool else one + tf.cast(nothing, one.dtype)
        for one in tensors
    ]


def _unrecorded() -> Any:
    from tensorflow.python.eager import record

    return record.stop_recording()


def _global_state() -> Any:
    import keras.src.backend.common.global_state as module

    return module


def _variables_module() -> Any:
    import keras.src.backend.common.variables as module

    return module
