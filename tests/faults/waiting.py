"""Waiting for what must come, with a limit: never a sleep that hopes to be long enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def eventually(condition: Callable[[], Any], seconds: float = 10.0, what: str = "") -> Any:
    """Wait until `condition()` is true and return what it returned; fail after `seconds`."""
    until = time.monotonic() + seconds
    pause = 0.001
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= until:
            raise AssertionError(f"not within {seconds:g} s: {what or condition}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
