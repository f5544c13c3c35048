"""Batches that are read by number: a `PyDataset`, or what can be read like one.

It is told of epochs as Keras tells it: `on_epoch_begin` before the first batch is read, in whatever
thread reads it, and `on_epoch_end` when the last one was trained on, or validated, before callbacks
hear of it. What one of them changes is seen by the other, and by the reading between them:

    begin(0) ─ on_epoch_begin ─ batches … ended(0) ─ on_epoch_end ─ begin(1) ─ on_epoch_begin ─ …

An epoch that is taken up in its middle is not begun again. One that a run is taken up at, or that
it is to start with, has those before it told of, without a batch: whatever the hooks change is then
what it would be. An epoch that nobody said was over (`ended`) is over when the next is begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.errors import InputError


class Indexed:
    """One way through `x`. With a seed its batches come in an order of each epoch's own."""

    def __init__(self, x: Any, seed: int | None) -> None:
        self._x, self._seed = x, seed
        self._over = 0  # epochs whose end was told
        self._within = False  # one whose beginning was told, and not its end

    @property
    def count(self) -> int:
        """How many batches there are; may be another number in another epoch."""
        if not _is_of_keras(self._x):
            return len(self._x)
        try:
            count = self._x.num_batches
        except NotImplementedError:
            raise InputError(
                f"expected a PyDataset that tells how many batches it has; {type(self._x).__name__}"
                " has neither num_batches nor __len__"
            ) from None
        if count is None:
            raise InputError(
                "expected a PyDataset that ends, as an epoch does; got one that is infinite: its "
                "num_batches is None"
            )
        return int(count)

    @property
    def first(self) -> Any:
        """An example; `None` where there is none."""
        return self._x[0] if self.count else None

    def begin(self, epoch: int) -> Iterator[Any]:
        """Its batches, one by one."""
        while self._over < epoch:
            self._begun()
            self.ended(self._over)
        self._begun()
        order: Any = range(self.count)
        if self._seed is not None:
            generator = np.random.Generator(np.random.PCG64([self._seed, epoch]))
            order = generator.permutation(self.count)
        for at in order:
            yield self._x[int(at)]

    def ended(self, epoch: int) -> None:
        """All of it was taken. Of no effect where it was not begun here."""
        if self._within:
            self._tell("on_epoch_end")
            self._within, self._over = False, epoch + 1

    def _begun(self) -> None:
        if not self._within:
            self._tell("on_epoch_begin")
            self._within = True

    def _tell(self, hook: str) -> None:
        getattr(self._x, hook, lambda: None)()


def indexed(x: Any, seed: int | None) -> Indexed | None:
    """`None` for what is gone through from its beginning."""
    is_read_so = hasattr(x, "__getitem__") and hasattr(x, "__len__")
    return Indexed(x, seed) if is_read_so or _is_of_keras(x) else None


def _is_of_keras(x: Any) -> bool:
    import keras

    return isinstance(x, keras.utils.PyDataset)
