"""What a worker without rows takes part with, while others still have some."""

from __future__ import annotations

from typing import Any


def then_padding(dataset: Any) -> Any:
    """Behind the last element, a row of it for ever, with count 0.

    A real row, as zeros may be what a model cannot stand; zeros, where there was none.
    """
    import tensorflow as tf

    spec = dataset.element_spec[:3]
    is_there = [isinstance(part, tf.TensorSpec) for part in tf.nest.flatten(spec)]
    kinds = [part for part in tf.nest.flatten(spec) if isinstance(part, tf.TensorSpec)]
    last = tuple(tf.zeros([1, *(n or 1 for n in kind.shape[1:])], kind.dtype) for kind in kinds)
    none = tuple(tf.zeros([0, *(n or 0 for n in kind.shape[1:])], kind.dtype) for kind in kinds)

    def flat(*element: Any) -> Any:
        parts = tf.nest.flatten(element[:3])
        return tuple(part for part in parts if part is not None), element[3]

    def kept(last: Any, element: Any) -> Any:
        parts, count = element
        rows = tf.cond(count < 0, lambda: last, lambda: parts)
        return tuple(row[:1] for row in rows), (rows, tf.maximum(count, 0))

    def nested(rows: Any, count: Any) -> Any:
        left = iter(rows)
        places = [next(left) if there else None for there in is_there]
        return (*tf.nest.pack_sequence_as(spec, places), count)

    ends = tf.data.Dataset.from_tensors((none, tf.constant(-1, tf.int32))).repeat()
    return dataset.map(flat).concatenate(ends).scan(last, kept).map(nested)
