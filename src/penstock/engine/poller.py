"""Waiting for many descriptors at once, with a time limit finer than a millisecond.

Python's epoll rounds time-outs up to whole milliseconds, longer than many batches take. An epoll
is itself a descriptor, so short waits go through `select`, which takes microseconds. Before it
sleeps it stays awake for a moment, if that has helped lately (`transport.vigil`).
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from penstock.transport.vigil import Vigil

Handler = Callable[[int], None]
READ, WRITE = select.EPOLLIN, select.EPOLLOUT
_SHORT = 0.02
_AWAKE = 500_000  # nanoseconds


class Poller:
    """Descriptors and what to call when they are ready."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._vigil = Vigil(_AWAKE)

    def add(self, descriptor: int, handler: Handler) -> None:
        """Call `handler(events)` whenever this can be read."""
        self._epoll.register(descriptor, READ)
        self._handlers[descriptor] = handler

    def watch_write(self, descriptor: int, on: bool) -> None:
        """Whether to call it also when there is room to write."""
        if descriptor in self._handlers:
            self._epoll.modify(descriptor, READ | WRITE if on else READ)

    def remove(self, descriptor: int) -> None:
        """Forget it, before it is closed."""
        if self._handlers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def wait(self, seconds: float) -> int:
        """Wait at most that long, call the handlers of what is ready; returns how many."""
        ready = self._ready(seconds)
        for descriptor, events in ready:
            handler = self._handlers.get(descriptor)
            if handler is not None:
                handler(events)
        return len(ready)

    def _ready(self, seconds: float) -> list[tuple[int, int]]:
        look = self._epoll.poll
        if seconds >= _SHORT:
            return self._vigil.keep(look) or look(seconds)
        if seconds <= 0:
            return look(0)
        until = time.monotonic_ns() + int(seconds * 1e9)
        ready = self._vigil.keep(look, int(seconds * 1e9))
        if not ready:
            left = until - time.monotonic_ns()
            if left > 0:
                select.select([self._epoll], [], [], left / 1e9)
            ready = look(0)
        return ready

    def close(self) -> None:
        """Close the epoll."""
        self._epoll.close()
