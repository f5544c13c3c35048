"""How the rows of a step reach its worker, with parameter servers, where the chief has them.

Arrays are sent to every worker once (`Shipped`), as a data set of TensorFlow's that lies there: a
step carries the numbers of its rows, and its worker gathers them. A worker that is lost and comes
back is sent them again. What only the chief can read is read there, and travels with each step
(`Carried`). Whatever workers can read themselves, they do: see `sharing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.model.runtime import tf
from penstock.train.feed.arrays import RowsFeed
from penstock.train.feed.tree import packed

Change = Callable[[list[Any]], Any]  # takes a step, with its pieces

_LARGEST = 1 << 30  # bytes of an array that TensorFlow sends in one message


class Carried:
    """Rows that travel with each step."""

    policy = "chief"

    def __init__(self, feed: Any) -> None:
        self._feed = feed

    def begin(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """What `arguments` takes, for each piece from a step on."""
        return iter(self._feed.dataset(epoch, start))

    def arguments(self, pieces: list[Any]) -> tuple[Any, ...]:
        """What a function on a worker is called with, for some pieces."""
        return (pieces,)

    def run(self, change: Change, pieces: list[Any]) -> Any:
        """There: take a step on `(x, y, sample_weight, count)` of each."""
        return change(pieces)


class Shipped:
    """Rows that every worker has. Lies there as long as this does."""

    policy = "rows"

    def __init__(self, feed: RowsFeed, arrays: list[Any], coordinator: Any) -> None:
        self._feed = feed
        self._arrays = tuple(tf.constant(array) for array in arrays)
        made = coordinator.create_per_worker_dataset(
            lambda: tf.data.Dataset.from_tensors(self._arrays).repeat()
        )
        self._iterator = iter(made)

    def begin(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The numbers of the rows of each piece, and how many of them count."""
        for numbers, count in self._feed.numbers(epoch, start):
            yield tf.constant(numbers, tf.int64), tf.constant(count, tf.int32)

    def arguments(self, pieces: list[Any]) -> tuple[Any, ...]:
        """The worker's own arrays, and which rows of them."""
        return self._iterator, pieces

    def run(self, change: Change, iterator: Any, pieces: list[Any]) -> Any:
        """Gathered there, from memory: on a GPU, all rows would have to be there first."""
        with tf.device("CPU:0"):
            arrays = next(iterator)
            gathered = [
                (
                    *packed(self._feed.example, iter([tf.gather(one, numbers) for one in arrays])),
                    count,
                )
                for numbers, count in pieces
            ]
        return change(gathered)


def shipped(feed: Any, coordinator: Any) -> Shipped | None:
    """Arrays, if they can be sent whole."""
    if isinstance(feed, RowsFeed) and feed.in_memory:
        arrays = feed.gather(slice(0, feed.count))
        if all(array.nbytes <= _LARGEST for array in arrays):
            return Shipped(feed, arrays, coordinator)
    return None
