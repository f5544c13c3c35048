"""Calls that go on at the same time, or one that has the device to itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Traffic:
    """Many, or one alone. Whoever wants to be alone waits for the others, and they for it."""

    def __init__(self) -> None:
        self._change = threading.Condition(threading.Lock())
        self._going = 0
        self._waiting = 0

    @contextlib.contextmanager
    def among_others(self) -> Iterator[None]:
        """While nobody is alone, or waits to be."""
        with self._change:
            while self._going < 0 or self._waiting:
                self._change.wait()
            self._going += 1
        try:
            yield
        finally:
            with self._change:
                self._going -= 1
                self._change.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """When all others are done."""
        with self._change:
            self._waiting += 1
            while self._going:
                self._change.wait()
            self._waiting -= 1
            self._going = -1
        try:
            yield
        finally:
            with self._change:
                self._going = 0
                self._change.notify_all()
