"""Calls by the time at which they fail. Bookkeeping only: the session holds its lock around it."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.call import Call


class Deadlines:
    """The calls of a session that have a deadline; those that are over are forgotten in time."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Call]] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, call: Call, open_calls: int) -> bool:
        """Watch this call, too; returns whether it is the first to expire."""
        if len(self._heap) > 256 and len(self._heap) > 4 * open_calls:
            heap = [entry for entry in self._heap if not entry[2].over]
            heapq.heapify(heap)
            self._heap = heap
        heapq.heappush(self._heap, (call.deadline, id(call), call))
        return self._heap[0][2] is call

    def first(self) -> int | None:
        """When the next one expires, or would if it were not over."""
        return self._heap[0][0] if self._heap else None

    def pop_late(self, now: int) -> list[Call]:
        """Those that have expired, or are over; they are watched no more."""
        late: list[Call] = []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].over):
            late.append(heapq.heappop(self._heap)[2])
        return late
