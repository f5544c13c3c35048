"""Signals as whoever starts a process leaves them to it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def ignored(*numbers: signal.Signals) -> Iterator[None]:
    """What is started in the block ignores these, as under `nohup`, or in a shell's background."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
