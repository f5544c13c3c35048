"""Models get ready for what may come later, in a thread beside the loop that already serves.

The thread does not touch the channel, which is the loop's: it leaves a model's facts here and wakes
the loop through an eventfd.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from penstock.model.function import Runnable
from penstock.transport import messages as m
from penstock.transport import wire

_log = logging.getLogger(__name__)


class Ready(NamedTuple):
    """A model that is loaded, and how long that took."""

    runnable: Runnable
    seconds: float = 0.0

    def facts(self, number: int) -> bytes:
        """What is known of it, as a message."""
        facts = {**self.runnable.facts(), "seconds": round(self.seconds, 3)}
        return wire.encode(m.ModelFacts(number, json.dumps(facts).encode()))


class WarmUp:
    """One model after the other. The owner polls `fileno`, and calls `close` at the end."""

    def __init__(self, models: Sequence[Ready]) -> None:
        self._models = models
        self._news: deque[bytes] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="penstock-warm-up", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable when there are news."""
        return self._wake

    def news(self) -> list[bytes]:
        """Messages about models that have become warm since the last time."""
        os.eventfd_read(self._wake)
        return [self._news.popleft() for _ in range(len(self._news))]

    def close(self, patience: float) -> bool:
        """No more models; returns whether the one being warmed was finished in time."""
        with self._lock:
            self._closing.set()
        self._thread.join(patience)
        os.close(self._wake)
        return not self._thread.is_alive()

    def _run(self) -> None:
        for number, model in enumerate(self._models):
            if self._closing.is_set():
                return
            try:
                changed = model.runnable.warm_up()
            except Exception:
                _log.exception("a model could not be warmed up any further")
                continue
            if changed:
                self._tell(model.facts(number))
        self._tell(wire.encode(m.Warm(os.getpid())))

    def _tell(self, message: bytes) -> None:
        with self._lock:
            if not self._closing.is_set():
                self._news.append(message)
                os.eventfd_write(self._wake, 1)
