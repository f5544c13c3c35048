"""Threads that can be joined whatever a Ctrl-C has done to their start.

`Thread.start` waits until its thread runs. A Ctrl-C in it leaves one that runs, or never will, and
`join` refuses both: whoever tidies up then would end with that instead of with the interrupt.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from penstock.client.whole import interrupts_as_such

_SOON = 1.0  # seconds until a thread that was begun runs


class Thread(threading.Thread):
    """A daemon; `join` returns at once if it never ran."""

    def __init__(self, target: Callable[..., None], name: str, *arguments: Any) -> None:
        super().__init__(target=target, args=arguments, name=f"penstock-{name}", daemon=True)
        self._runs = threading.Event()

    def start(self) -> None:
        try:
            with interrupts_as_such():
                super().start()
        except KeyboardInterrupt:
            self._runs.wait(_SOON)
            raise

    def run(self) -> None:
        self._runs.set()
        super().run()

    def join(self, timeout: float | None = None) -> None:
        with contextlib.suppress(RuntimeError):  # it was not started
            super().join(timeout)
