"""Models that take a fixed number of rows, such as a SavedModel exported for a batch of 8."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.errors import ModelLoadError
from penstock.model.parts import Part, Tensors
from penstock.model.runtime import tf


def in_chunks(part: Part) -> Part:
    """A part that takes any number of rows, of one that may take a fixed number only.

    Runs it on as many rows at a time as it takes; the last row is repeated to fill up.
    """
    fixed = {spec.shape[0] for spec in part.inputs if spec.shape.rank} - {None}
    if not fixed:
        return part
    if len(fixed) > 1:
        raise ModelLoadError(f"{part.what}: its inputs have {sorted(fixed)} rows, not one number")
    size: int = fixed.pop()
    returned = tuple(tf.TensorSpec(spec.shape, spec.dtype) for spec in part.outputs)

    def call(tensors: Tensors) -> Tensors:
        if all(tensor.shape[0] == size for tensor in tensors):
            return part.call(tensors)
        rows = tf.shape(tensors[0])[0]
        count = -(-rows // size)
        which = tf.minimum(tf.range(count * size), rows - 1)
        chunks = tuple(_split(tf.gather(tensor, which), count, size) for tensor in tensors)
        made = tf.map_fn(
            lambda chunk: tuple(part.call(list(chunk))), chunks, fn_output_signature=returned
        )
        return [_merged(tensor, spec)[:rows] for tensor, spec in zip(made, returned, strict=True)]

    return replace(
        part,
        call=call,
        inputs=tuple(_open(spec, size) for spec in part.inputs),
        outputs=tuple(_open(spec, size) for spec in part.outputs),
    )


def _split(tensor: Any, count: Any, size: int) -> Any:
    sizes = tf.concat([[count, size], tf.shape(tensor)[1:]], 0)
    return tf.ensure_shape(tf.reshape(tensor, sizes), [None, size, *tensor.shape[1:]])


def _merged(tensor: Any, spec: Any) -> Any:
    sizes = tf.shape(tensor)
    merged = tf.reshape(tensor, tf.concat([[sizes[0] * sizes[1]], sizes[2:]], 0))
    return tf.ensure_shape(merged, [None, *spec.shape[1:]]) if spec.shape.rank else merged


def _open(spec: Any, size: int) -> Any:
    if not spec.shape.rank or spec.shape[0] != size:
        return spec
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype, spec.name)
