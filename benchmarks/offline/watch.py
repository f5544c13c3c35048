"""The most memory that a process and all that it has started held, looked at now and then."""

import contextlib
import threading
from typing import Any

import psutil

from benchmarks.core.memory import held_by

_EVERY = 0.25


class Watch:
    """Adds up what each holds, with shared pages divided among their users."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self.peak = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_EVERY):
            held = 0
            with contextlib.suppress(psutil.Error):
                for process in [self._root, *self._root.children(recursive=True)]:
                    with contextlib.suppress(OSError):
                        held += held_by(process.pid).pss
            self.peak = max(self.peak, held)
