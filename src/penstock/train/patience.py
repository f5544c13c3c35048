"""An end to waiting for a cluster that does not answer.

TensorFlow waits for ever for a task that is stopped or cut off, deep in calls that cannot be
interrupted. `Patience` is a thread beside them: when nothing has happened for so long, it says who
is silent and ends the process. What the user's own code takes (`resting`) does not count.

Some of those calls even hold Python's lock, so that no thread of Python's runs. For them there is
faulthandler's, which needs no lock: a little later it shows where all threads are, and ends the
process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

_LOOK = 0.5
_MARGIN = 5.0  # seconds, so that whoever can raise an error comes first
_ARMED = 1.0  # seconds between two settings of the last resort


class Patience:
    """Used with `with`. `beat` says that things go on; `silent` names who does not answer."""

    def __init__(self, seconds: float, silent: Callable[[], list[str]]) -> None:
        self._seconds, self._silent = seconds, silent
        self._watching = True
        self._last = time.monotonic()
        self._armed = 0.0
        self._over = threading.Event()

    def __enter__(self) -> Patience:
        self.beat()
        threading.Thread(target=self._watch, name="penstock-patience", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        faulthandler.cancel_dump_traceback_later()

    def beat(self) -> None:
        """Things go on."""
        self._last = time.monotonic()
        if self._watching and self._last - self._armed > _ARMED:
            self._armed = self._last
            with contextlib.suppress(AttributeError, ValueError, OSError):  # stderr is no file
                faulthandler.dump_traceback_later(self._seconds + 2 * _MARGIN, exit=True)

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """Something that may take as long as it likes."""
        with self._as(False):
            yield

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """In the middle of that, something that may not."""
        with self._as(True):
            yield

    @contextlib.contextmanager
    def _as(self, watching: bool) -> Iterator[None]:
        before = self._watching
        self._turn(watching)
        try:
            yield
        finally:
            self._turn(before)

    def _turn(self, watching: bool) -> None:
        self._watching = watching
        if not watching:
            faulthandler.cancel_dump_traceback_later()
        self._armed = 0.0 if not watching else self._armed
        self.beat()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK):
            if self._watching and time.monotonic() - self._last > self._seconds + _MARGIN:
                gone = ", ".join(self._silent())
                told = f"nobody answers at {gone}" if gone else "a task must stand still"
                sys.stderr.write(
                    f"penstock: error: the cluster did nothing for {self._seconds:g} s; {told}\n"
                )
                sys.stderr.flush()
                os._exit(1)
