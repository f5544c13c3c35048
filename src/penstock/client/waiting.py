"""Waiting for another thread, in ways that an exception out of nowhere (Ctrl-C) cannot spoil.

Python raises one after any call, at the start of any function and wherever it waits. A plain lock
is safe all the same: `with lock:` takes it and enters the block in one step. `threading.Condition`
is not, since it takes its lock in a Python function: an exception inside that leaves the lock taken
for good, and whoever wants to answer waits for ever. Hence these two.

Whoever waits looks up at least every `LOOK_UP` seconds at what it waits for. So a wake-up call that
a second interrupt has swallowed costs a moment, not the call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import attrgetter

LOOK_UP = 1.0


class Condition(threading.Condition):
    """As Python's, but `with` takes its lock in one step."""

    __enter__ = property(attrgetter("_lock.__enter__"))
    __exit__ = property(attrgetter("_lock.__exit__"))


class Latch:
    """Shut until `open`, then open for good. Nothing is held while one waits.

    Who waits for something else meanwhile (an event loop) has itself told, by `tell`.
    """

    __slots__ = ("_listeners", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._listeners: list[Callable[[], object]] = []

    def wait(self, seconds: float | None) -> None:
        """Until it is open, or the time is up, or one should look up."""
        limit = LOOK_UP if seconds is None else min(max(0.0, seconds), LOOK_UP)
        if self._lock.acquire(timeout=limit):
            self.open()  # for the next in line

    def tell(self, listener: Callable[[], object]) -> None:
        """Call this when it is open, which may be now; perhaps more than once."""
        self._listeners.append(listener)
        if not self._lock.locked():
            listener()

    def open(self) -> None:
        """Let everybody through, now and later."""
        try:
            self._lock.release()
        except RuntimeError:
            return  # it was open already
        for listener in self._listeners:
            listener()
