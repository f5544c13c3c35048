"""The sizes that batches are run at: a ladder, what of it is warm, and how much of it fits.

A batch is padded to the next size that is warm. Where none is named as warm, any number of rows is
run as it is. Several threads run batches and warm sizes up at a time; what is warm is one list that
is replaced, so whoever reads it needs no lock.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence

ANY = 1 << 31  # rows


def ladder(max_batch: int) -> tuple[int, ...]:
    """The sizes that are compiled by default: 1, 2, 4, and so on, and the largest."""
    sizes = [1 << power for power in range(max_batch.bit_length()) if 1 << power < max_batch]
    return (*sizes, max_batch)


class Rungs:
    """A ladder; `most` are the rows that fit into the device's memory, as far as is known."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self.begin(())

    def begin(self, sizes: Sequence[int]) -> None:
        """A ladder of which nothing is warm yet, and nothing known not to fit."""
        self.sizes = tuple(sizes)
        self.warm: list[int] = []
        self.most = ANY

    def padded(self, rows: int) -> int:
        """The next size that is warm; the rows themselves where any size can be run."""
        warm = self.warm
        if not warm or rows == 0 or rows > self.most:
            return rows
        for sizes in (warm, self.sizes):  # the second: when what was warm did not fit after all
            at = bisect_left(sizes, rows)
            if at < len(sizes):
                return sizes[at]
        return rows

    def warmed(self, size: int) -> None:
        """From now on batches may be padded to this size, if they are padded at all."""
        with self._changing:
            if self.warm and size <= self.most:
                self.warm = sorted({*self.warm, size})

    def shorten(self, size: int) -> None:
        """A batch of this size did not fit: from now on only smaller ones."""
        with self._changing:
            most = max(size // 2, 1)
            if self.warm:
                self.warm = [warm for warm in self.warm if warm < size] or self.warm[:1]
                most = max((rung for rung in self.sizes if rung < size), default=self.warm[0])
            self.most = min(self.most, most)

    def drop_largest(self) -> None:
        """The largest size does not fit, and the next smaller one is to be tried."""
        self.sizes = self.sizes[:-1]
        self.most = ANY  # that one may be more than half of it

    @property
    def largest(self) -> int:
        """The rows of the largest batch that fits, as far as is known."""
        return min(self.sizes[-1], self.most)
