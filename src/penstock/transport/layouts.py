"""Short numbers for long descriptions, in a bounded table that both ends keep alike.

A layout (tensors' names, dtypes and shapes) is sent once and then named by a number. Numbers are
reused, the least recently used first, so that neither side grows without limit when shapes keep
changing. That is safe because messages arrive in the order in which they were sent: whoever sends
the new meaning of a number has sent everything that used the old one before, and whoever reads a
number looks at once what it means, not when it has use for that.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

CAPACITY = 1024

Key = TypeVar("Key")


class LayoutNumbers(Generic[Key]):
    """The sender's side: which number stands for which layout now. 0 is never used."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._numbers: OrderedDict[Key, int] = OrderedDict()

    def number(self, layout: Key) -> tuple[int, bool]:
        """Its number, and whether the other side must be told first."""
        known = self._numbers.get(layout)
        if known is not None:
            self._numbers.move_to_end(layout)
            return known, False
        if len(self._numbers) < self._capacity:
            number = len(self._numbers) + 1
        else:
            number = self._numbers.popitem(last=False)[1]
        self._numbers[layout] = number
        return number, True
