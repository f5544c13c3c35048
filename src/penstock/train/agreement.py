"""What all workers must have the same of: the first weights, the order of data, where to go on.

Each worker starts on its own and may have drawn other weights; those of the chief count. They
travel by the same all-reduce as gradients: the chief contributes what it has, the others zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.errors import ConfigError
from penstock.model.runtime import tf
from penstock.train.reducing import summed
from penstock.train.strategies import Place
from penstock.train.tracing import traced


def level(place: Place, variables: Sequence[Any]) -> None:
    """Give the variables the chief's values, on all workers."""
    if place.workers > 1 and variables:
        values = [tf.convert_to_tensor(each.value) for each in variables]
        for variable, value in zip(variables, _of_chief(place, values), strict=True):
            variable.assign(tf.cast(value, variable.dtype))


def agreed(place: Place, number: int) -> int:
    """The chief's number."""
    if place.workers == 1:
        return number
    return int(_of_chief(place, [tf.constant(number, tf.int64)])[0])


def largest(place: Place, number: int) -> int:
    """The largest of all workers' numbers."""
    if place.workers == 1:
        return number
    own = [number if worker == place.worker else 0 for worker in range(place.workers)]
    return int(tf.reduce_max(_sum(place, [tf.constant(own, tf.int64)], once=True)[0]))


def added_up(place: Place, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The sum of all workers' arrays, which have the same shape."""
    if place.workers == 1:
        return array
    return np.asarray(_sum(place, [tf.constant(array)], once=True)[0])


def check_same(place: Place, number: int, what: str) -> None:
    """Refuse where workers have different numbers."""
    chiefs = agreed(place, number)
    differ = int(chiefs != number)
    if place.workers > 1:
        differ = int(_sum(place, [tf.constant(differ, tf.int64)])[0])
    if differ:
        raise ConfigError(f"{what}: the chief has {chiefs}, worker {place.worker} has {number}")


def _of_chief(place: Place, values: Sequence[Any]) -> list[Any]:
    own = [value if place.is_chief else tf.zeros_like(value) for value in values]
    return _sum(place, own, once=True)


def _sum(place: Place, values: Sequence[Any], once: bool = False) -> list[Any]:
    """Over all replicas; `once`: each worker's first replica alone contributes."""
    wide = [value if value.dtype.is_floating else tf.cast(value, tf.int64) for value in values]
    sums = _adder(place.strategy, place.local, place.options, once)(wide)
    return [place.strategy.experimental_local_results(each)[0] for each in sums]


@functools.lru_cache(maxsize=4)  # of one that is made anew for each call, TensorFlow warns
def _adder(strategy: Any, local: int, options: Any, once: bool) -> Any:
    def add(values: Any) -> Any:
        context = tf.distribute.get_replica_context()
        first = context.replica_id_in_sync_group % local == 0
        given = [tf.where(first, value, tf.zeros_like(value)) for value in values]
        # What a function was given is on no device yet, and a sum wants to know where it is.
        own = given if once else [tf.identity(value) for value in values]
        return summed(own, options)

    return traced(lambda values: strategy.run(add, args=(values,)))
