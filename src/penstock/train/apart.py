"""The step of one of several workers: what it computes alone, apart from what all do together.

    _take ─▶ _piece of each micro-batch, (sums) ─▶ │ ─▶ _together: all-reduce, apply
              alone, in a function of its own      │    all workers, or none

A worker that runs out of memory on the left has kept nobody waiting in the middle of a collective:
the others stand before theirs, and wait. It puts back what the piece has changed, takes the same
rows in smaller parts, and comes to the same all-reduce with the same sums. Nothing has to be agreed
upon, for a sum does not tell of how many parts it is.

It costs two calls more a step, and is done only where some worker's memory can run out with an
error that can be met (`may_run_out`). A CPU's does not: its process is killed.

What fails on the right cannot be taken again: others may have the sums already, or weights may have
changed. Nor can a piece that itself talks to other workers (synchronized batch normalization).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.model.runtime import keras, tf
from penstock.train.micro import is_out_of_memory, one_row_does_not_fit
from penstock.train.step import TrainStep
from penstock.train.tracing import traced

_HALF = 2  # bytes; gradients of so few are summed in float32


def may_run_out() -> bool:
    """Whether this worker has a device that refuses memory rather than ends the process."""
    return bool(tf.config.list_logical_devices("GPU"))


@dataclass
class Parts:
    """In how many parts a worker takes each micro-batch; `tell` is called when they are more."""

    tell: Callable[[int], None]
    count: int = 1

    def halve(self) -> None:
        """Twice as many."""
        self.count *= 2
        self.tell(self.count)


class WorkersStep(TrainStep):
    """A `TrainStep` that goes on in more `parts` where memory does not suffice."""

    def __init__(self, *arguments: Any, parts: Parts, **settings: Any) -> None:
        self._parts = parts
        self._talks = False  # to other workers, in the middle of a piece
        super().__init__(*arguments, **settings)

    def __call__(self, iterator: Any) -> Any:
        """Take a step, as all workers do at the same time."""
        with self._plainly():
            total = None
            for _ in range(self._micros):
                total = self._computed(self._take(iterator), total)
            return self._together(total)

    def probed(self, x: Any, y: Any, weight: Any, count: Any) -> Any:
        """What a step of several micro-batches does with one, for its memory to be measured."""
        found = self._found(x, y, weight, count)
        return self._place.strategy.experimental_local_results(self._added_up(found, found)[1])[0]

    def _prepare(self) -> None:
        def function(body: Callable[..., Any]) -> Any:
            return traced(body, reduce_retracing=True)

        self._take, self._note = function(self._taken_and_noted), function(self._noted)
        self._whole_piece, self._part = function(self._found), function(self._found_in_part)
        self._add_up = function(self._added_up)
        self._together = function(self._done_together)

    def _computed(self, element: Any, total: Any) -> Any:
        """The sums with those of a micro-batch; in more parts, should it not fit."""
        at, parts = 0, self._parts
        while at < parts.count:
            try:
                if parts.count == 1:
                    found = self._whole_piece(*element)
                else:
                    found = self._part(*element, tf.constant(at), tf.constant(parts.count))
            except tf.errors.OpError as error:
                if not is_out_of_memory(error) or self._talks:
                    raise
                self._halve(element, error)
                at *= 2  # what was done before is not done again
            else:
                total = found if total is None else self._add_up(total, found)
                at += 1
            if parts.count > 1:
                self._note()
        return total

    def _halve(self, element: Any, error: Exception) -> None:
        local = self._place.strategy.experimental_local_results
        rows = max(int(each.shape[0]) for each in local(keras().tree.flatten(element)[0]))
        if self._parts.count >= rows:
            raise one_row_does_not_fit() from error
        self.undo()
        self._parts.halve()

    # In the functions

    def _taken_and_noted(self, iterator: Any) -> Any:
        self._noted()
        return self._taken(iterator)

    def _noted(self) -> None:
        self._place.strategy.run(lambda: self._before.note(tf.constant(0)))

    def _found(self, *element: Any) -> Any:
        return self._place.strategy.run(self._alone, args=element)

    def _found_in_part(self, *element: Any) -> Any:
        return self._place.strategy.run(self._alone_in_part, args=element)

    def _added_up(self, total: Any, found: Any) -> Any:
        return self._place.strategy.run(_plus, args=(total, found))

    def _done_together(self, total: Any) -> Any:
        return self._ended(self._place.strategy.run(self._reduced_here, args=total))

    # In a replica

    def _alone(self, x: Any, y: Any, weight: Any, count: Any) -> Any:
        """Gradients, counts, and what statistics were before."""
        before = self._before.statistics()
        gradients, counts = self._piece(x, y, weight, count)
        wide = [
            tf.cast(each, tf.float32) if each.dtype.size <= _HALF else each for each in gradients
        ]
        if self._micros > 1:
            self._keep_from_padding(before, count)
        return wide, counts, before

    def _alone_in_part(self, x: Any, y: Any, weight: Any, count: Any, at: Any, parts: Any) -> Any:
        """The same of some of the rows; where there are none, of one that does not count."""
        rows = tf.shape(keras().tree.flatten(x)[0])[0]
        start, stop = rows * at // parts, rows * (at + 1) // parts
        some = stop > start
        count = tf.where(tf.logical_and(some, count > 0), stop - start, 0)
        start, stop = tf.where(some, start, 0), tf.where(some, stop, 1)
        x, y, weight = keras().tree.map_structure(
            lambda each: None if each is None else each[start:stop], (x, y, weight)
        )
        found = self._alone(x, y, weight, count)
        self._keep_from_padding(found[2], count)
        return found

    def _reduced_here(self, *total: Any) -> Any:
        """What a function was given is on no device yet, and a sum wants to know where it is."""
        return self._reduced(*keras().tree.map_structure(tf.identity, total))

    def _differentiated(self, *arguments: Any) -> Any:
        found = super()._differentiated(*arguments)
        graph = tf.compat.v1.get_default_graph()
        self._talks |= any(each.type.startswith("Collective") for each in graph.get_operations())
        return found


def _plus(total: Any, found: Any) -> Any:
    """Two pieces as one: statistics were before the first."""
    gradients = [one + other for one, other in zip(total[0], found[0], strict=True)]
    return gradients, total[1] + found[1], total[2]
