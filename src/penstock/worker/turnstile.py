"""So many at a time, whoever came first.

A semaphore of Python's lets a thread that has just left in again, before those who have been
waiting: a batch could be overtaken for as long as others come. Here a place is handed over.
"""

from __future__ import annotations

import threading
from collections import deque


class Turnstile:
    """A context that at most `places` threads are in."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._change = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._change:
            if self._free:
                self._free -= 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        turn.acquire()  # until somebody leaves

    def __exit__(self, *exception: object) -> None:
        with self._change:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1
