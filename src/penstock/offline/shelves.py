"""Who gets which part: those that are read together go to one loader, if they can.

The rows of a Parquet file are decoded a row group at a time. If the parts of a group went around,
every loader would decode and hold every group. So a loader has a shelf with the parts of a run, and
takes from it; at the end, one that has nothing left takes from the fullest shelf of another.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterator

Shelf = collections.deque[int]


class Shelves:
    """Parts that were taken from `todo`, and are not handed out yet. `run`: parts of one run."""

    def __init__(self, run: int = 1) -> None:
        self._run = run
        self._shelves: dict[Hashable, Shelf] = collections.defaultdict(collections.deque)
        self._first: Shelf = collections.deque()  # before all others, for anybody
        self._ahead: int | None = None

    def take(self, owner: Hashable, todo: Iterator[int]) -> int | None:
        """The next part for one; `None`: there is nothing left."""
        if self._first:
            return self._first.popleft()
        mine = self._shelves[owner]
        if not mine:
            self._fetch(mine, todo)
        if mine:
            return mine.popleft()
        fullest = max(self._shelves.values(), key=len)
        return fullest.pop() if fullest else None

    def give_back(self, owner: Hashable, parts: list[int]) -> None:
        """One is gone: what it had is to be done first, what lay on its shelf next."""
        self._first.extend([*parts, *self._shelves.pop(owner, ())])

    def _fetch(self, shelf: Shelf, todo: Iterator[int]) -> None:
        """The rest of a run."""
        part = self._ahead if self._ahead is not None else next(todo, None)
        self._ahead = None
        while part is not None:
            if shelf and part // self._run != shelf[0] // self._run:
                self._ahead = part
                return
            shelf.append(part)
            if len(shelf) == self._run:
                return
            part = next(todo, None)


def run_of(together: int, part: int, parts: int | None, loaders: int) -> int:
    """Parts that are read together, where that leaves enough for all loaders."""
    if parts is None:
        return 1
    return max(min(-(-together // part), parts // max(loaders, 1)), 1)
