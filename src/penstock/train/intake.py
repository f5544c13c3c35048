"""A feed's elements on their way to the replicas' devices, ahead of the steps that need them.

What is copied to a GPU ahead must be plain tensors: components that are `None` are left out on the
way, and put back in the step; text, and whatever is no plain tensor, is copied by the step itself.

An iterator takes its time to be made, and to have its first elements ready. `Ahead` begins that of
the next epoch while the device is busy with the end of this one.
"""

from __future__ import annotations

import functools
from typing import Any

from penstock.model.runtime import keras, tf
from penstock.train.feed.feed import untuned
from penstock.train.strategies import Place

_AHEAD = 2


def iterator_of(feed: Any, place: Place, epoch: int, start: int = 0) -> Any:
    """From a step of an epoch on; `taken` takes an element of it."""
    dataset = feed.dataset(epoch, start)
    if place.kind == "one":
        if _goes_ahead(place, dataset.element_spec):
            flat = dataset.map(lambda *parts: _present(parts), deterministic=True)
            ahead = tf.data.experimental.prefetch_to_device(place.ahead, _AHEAD)
            return iter(flat.apply(ahead).with_options(untuned()))
        return iter(dataset)
    options = _options(not place.on_gpu or _is_plain(dataset.element_spec))
    return iter(place.strategy.distribute_datasets_from_function(lambda _: dataset, options))


class Ahead:
    """The iterator of an epoch that is still to come, where feeds allow for that.

    It holds a few pieces, some of them on the device: it is begun at the end of the epoch before,
    when that one's own is gone. `taken` gives it away; whoever does without calls `drop`.
    """

    def __init__(self) -> None:
        self._begun: tuple[Any, int, Any] | None = None

    def begin(self, feed: Any, place: Place, epoch: int) -> None:
        """Of a feed that has the same rows whenever it is begun; of others nothing."""
        self.drop()
        if feed.begins_ahead:
            self._begun = feed, epoch, iterator_of(feed, place, epoch)

    def taken(self, feed: Any, epoch: int, start: int) -> Any:
        """What was begun, if it is of this feed, this epoch and its first step; else `None`."""
        begun, self._begun = self._begun, None
        if begun is None or begun[0] is not feed or (epoch, start) != (begun[1], 0):
            return None
        return begun[2]

    def drop(self) -> None:
        """Nobody will take it."""
        self._begun = None


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
