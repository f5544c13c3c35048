"""What is found out by trying: whether XLA is quicker, and how many rows fit at a time.

Both are tried on GPUs alone: on CPUs XLA seldom pays, and memory is not the limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from penstock.model.peak import memory_of
from penstock.model.runtime import keras, tf
from penstock.train.carry import state_of
from penstock.train.jit import Contest, Tried
from penstock.train.micro import largest_micro, peaks_of, room_of
from penstock.train.step import TrainStep
from penstock.train.strategies import Place
from penstock.train.tracing import traced


def compiled_at_first(model: Any, place: Place, asked: bool | str, deterministic: bool) -> Any:
    """True or False, or "auto" where that is to be tried."""
    if asked != "auto":
        return bool(asked)
    supported = all(layer.supports_jit for layer in model._flatten_layers())
    # Under a strategy Keras never compiles by itself, for all of its step would be: here a part is.
    refused = place.kind == "one" and not model.jit_compile
    if deterministic or refused or not supported or not place.on_gpu:
        return False
    return "auto"


def tried(ways: Callable[[bool], TrainStep], steps: int | None, model: Any) -> Tried:
    """A step that is compiled if that turns out to be quicker."""
    last = model.trainable_variables[-1]

    def wait(given: Any) -> object:
        return tf.reshape(tf.convert_to_tensor(last.value), (-1,))[0].numpy()

    return Tried(ways, Contest(steps), wait)


def micros_that_fit(
    make: Callable[[], TrainStep], model: Any, place: Place, feed: Any, batch_size: int
) -> int:
    """Micro-batches a step, for each to fit its device. `make` makes a step that has sums.

    The model is left as it was, but for what its metrics have counted.
    """
    rows = math.ceil(batch_size / (place.workers * place.local))
    memory = memory_of("GPU" if place.on_gpu else "CPU")
    if not place.on_gpu and not memory.limit():
        return 1
    example = _example(feed.dataset(0))
    before = [each.numpy() for each in state_of(model) if not each.trainable]
    probe = traced(make().probed, reduce_retracing=True)

    def run(size: int) -> None:
        x, y, weight, _ = keras().tree.map_structure(lambda part: _rows(part, size), example)
        for _ in range(2):
            probe(x, y, weight, tf.constant(size)).numpy()

    try:
        fitting = largest_micro(peaks_of(run, memory), rows, room_of(memory, tf))
    finally:
        unchanged = (each for each in state_of(model) if not each.trainable)
        for variable, value in zip(unchanged, before, strict=True):
            variable.assign(value)
    return math.ceil(rows / fitting)


def _example(dataset: Any) -> Any:
    """A row of zeros, and nothing is read: a generator gives each batch once. Where the shape or
    what text to expect is not known, the first element."""
    spec = dataset.element_spec
    parts = [part for part in keras().tree.flatten(spec) if isinstance(part, tf.TensorSpec)]
    if any(part.dtype == tf.string or None in part.shape[1:] for part in parts):
        return next(iter(dataset))
    return keras().tree.map_structure(
        lambda part: (
            tf.zeros([1, *part.shape[1:]][: part.shape.rank], part.dtype)
            if isinstance(part, tf.TensorSpec)
            else None
        ),
        spec,
    )


def _rows(part: Any, size: int) -> Any:
    """So many rows, the first ones again and again if need be."""
    if part is None or not part.shape.rank:
        return part
    times = -(-size // max(int(part.shape[0]), 1))
    return tf.repeat(part, times, axis=0)[:size] if times > 1 else part[:size]
