"""Sums over all replicas: packed, one all-reduce for each dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.model.runtime import tf


def summed(values: Sequence[Any], options: Any) -> list[Any]:
    """The sums of all replicas' values; to be called in a replica. TensorFlow packs them, which it
    can do only with values of one dtype."""
    context = tf.distribute.get_replica_context()
    sums: list[Any] = list(values)
    for dtype in dict.fromkeys(value.dtype for value in values):
        places = [place for place, value in enumerate(values) if value.dtype == dtype]
        alike = [values[place] for place in places]
        found = context.all_reduce(tf.distribute.ReduceOp.SUM, alike, options=options)
        for place, total in zip(places, found, strict=True):
            sums[place] = total
    return sums
