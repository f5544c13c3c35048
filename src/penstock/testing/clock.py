"""The time that a `LocalEngine` goes by: the machine's, or one that a test moves by hand."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """What an engine in a test asks of a clock. Times are nanoseconds since some beginning."""

    def now_ns(self) -> int:
        """The time."""

    def sleep(self, seconds: float) -> None:
        """Let so much time pass."""

    def call_at(self, when: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back at that time; returns what calls it off."""


class SystemClock:
    """The machine's monotonic clock. Callbacks come in threads of their own."""

    def now_ns(self) -> int:
        """The time."""
        return time.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def call_at(self, when: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back from a timer's thread."""
        timer = threading.Timer(max(0, when - self.now_ns()) / 1e9, callback)
        timer.daemon = True
        timer.start()
        return timer.cancel


class ManualClock:
    """A clock that stands still until a test moves it. Safe to share between threads.

    >>> clock = ManualClock()
    >>> clock.advance(1.5)
    >>> clock.now()
    1.5
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = _nanoseconds(start)
        self._alarms: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def now(self) -> float:
        """The time in seconds."""
        return self.now_ns() / 1e9

    def now_ns(self) -> int:
        """The time in nanoseconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on. What was due by then happens in order, before this returns."""
        if seconds < 0:
            raise ValueError(f"a clock does not go back: {seconds} s")
        target = self._now + _nanoseconds(seconds)
        while (callback := self._next_due(target)) is not None:
            callback()

    def sleep(self, seconds: float) -> None:
        """What sleeps by this clock does not wait: it moves the clock."""
        self.advance(seconds)

    def call_at(self, when: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back from the `advance` that reaches that time."""
        alarm = (when, next(self._numbers), callback)
        with self._lock:
            heapq.heappush(self._alarms, alarm)

        def call_off() -> None:
            with self._lock:
                if alarm in self._alarms:
                    self._alarms.remove(alarm)
                    heapq.heapify(self._alarms)

        return call_off

    def _next_due(self, target: int) -> Callable[[], None] | None:
        with self._lock:
            if self._alarms and self._alarms[0][0] <= target:
                when, _, callback = heapq.heappop(self._alarms)
                self._now = max(self._now, when)
                return callback
            self._now = max(self._now, target)
            return None


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
