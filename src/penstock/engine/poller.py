"""Waiting for many descriptors at once, with a time limit finer than a millisecond.

Python's epoll rounds time-outs up to whole milliseconds, longer than many batches take. An epoll
is itself a descriptor, so short waits go through `select`, which takes microseconds.
"""

from __future__ import annotations

import select
from collections.abc import Callable

Handler = Callable[[int], None]
READ, WRITE = select.EPOLLIN, select.EPOLLOUT
_SHORT = 0.02


class Poller:
    """Descriptors and what to call when they are ready."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}

    def add(self, descriptor: int, handler: Handler) -> None:
        """Call `handler(events)` whenever this can be read."""
        self._handlers[descriptor] = handler
        self._epoll.register(descriptor, READ)

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
        if seconds < _SHORT:
            ready = self._epoll.poll(0)
            if not ready and seconds > 0:
                select.select([self._epoll], [], [], seconds)
                ready = self._epoll.poll(0)
        else:
            ready = self._epoll.poll(seconds)
        for descriptor, events in ready:
            handler = self._handlers.get(descriptor)
            if handler is not None:
                handler(events)
        return len(ready)

    def close(self) -> None:
        """Close the epoll."""
        self._epoll.close()
