"""Sums of gradients over the micro-batches of a step, on each replica for itself.

They are variables that no strategy keeps equal: what is in them is all-reduced once a step. None
are made for steps of one micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.model.runtime import tf
from penstock.train.strategies import Place
from penstock.train.undoing import own_variable


class Sums:
    """Of the gradients of `weights`, and of what pieces count (see `step`)."""

    def __init__(self, place: Place, weights: Sequence[Any]) -> None:
        with place.strategy.scope():
            self._gradients = [own_variable(each.shape) for each in weights]
            self._counts = own_variable((3,))

    def clear(self) -> None:
        """Before a step."""
        for total in (*self._gradients, self._counts):
            total.assign(tf.zeros(total.shape, total.dtype))

    def add(self, gradients: Sequence[Any], counts: Any, present: Sequence[bool]) -> None:
        """Of a piece; `present` says which of the weights have a gradient."""
        for total, gradient in zip(self._of(present), gradients, strict=True):
            total.assign_add(tf.cast(gradient, total.dtype))
        self._counts.assign_add(counts)

    def read(self, present: Sequence[bool]) -> tuple[list[Any], Any]:
        """Gradients and counts."""
        return [tf.identity(total) for total in self._of(present)], tf.identity(self._counts)

    def _of(self, present: Sequence[bool]) -> list[Any]:
        pairs = zip(self._gradients, present, strict=True)
        return [total for total, is_there in pairs if is_there]
