"""A feed's elements on their way to the replicas' devices, ahead of the steps that need them.

What is copied to a GPU ahead must be plain tensors: components that are `None` are left out on the
way, and put back in the step; text, and whatever is no plain tensor, is copied by the step itself.
"""

from __future__ import annotations

import functools
from typing import Any

from penstock.model.runtime import keras, tf
from penstock.train.strategies import Place

_AHEAD = 2


def iterator_of(feed: Any, place: Place, epoch: int, start: int = 0) -> Any:
    """From a step of an epoch on; `taken` takes an element of it."""
    dataset = feed.dataset(epoch, start)
    if place.kind == "one":
        if _goes_ahead(place, dataset.element_spec):
            flat = dataset.map(lambda *parts: _present(parts), deterministic=True)
            ahead = tf.data.experimental.prefetch_to_device(place.ahead, _AHEAD)
            return iter(flat.apply(ahead))
        return iter(dataset)
    options = _options(not place.on_gpu or _is_plain(dataset.element_spec))
    return iter(place.strategy.distribute_datasets_from_function(lambda _: dataset, options))


def taken(iterator: Any, place: Place, spec: Any) -> Any:
    """The next `(x, y, sample_weight, count)`; `spec` is that of the feed's data set."""
    element = iterator.get_next()
    if not _goes_ahead(place, spec):
        return element
    present = iter(element)
    return keras().tree.map_structure(
        lambda part: None if is_none(part) else next(present), tuple(spec)
    )


@functools.cache  # iterators with other options would have a step traced anew
def _options(ahead: bool) -> Any:
    return tf.distribute.InputOptions(experimental_fetch_to_device=ahead)


def _goes_ahead(place: Place, spec: Any) -> bool:
    return place.kind == "one" and place.ahead is not None and _is_plain(spec)


def _present(parts: Any) -> tuple[Any, ...]:
    return tuple(part for part in keras().tree.flatten(parts) if part is not None)


def _is_plain(spec: Any) -> bool:
    """Whether all that is there are tensors that a GPU takes."""
    return all(
        is_none(part) or (isinstance(part, tf.TensorSpec) and part.dtype != tf.string)
        for part in keras().tree.flatten(spec)
    )


def is_none(part: Any) -> bool:
    """Whether a part of an element, or of its spec, does not exist."""
    return part is None or type(part).__name__ == "NoneTensorSpec"
