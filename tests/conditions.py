"""Waiting for what must happen, and counting what a process holds."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def until(condition: Callable[[], Any], limit: float = 20.0) -> Any:
    """The first true value of the condition; fails when there is none within the limit."""
    deadline = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"did not become true within {limit} s: {condition}"
        time.sleep(0.002)


def descriptors(pid: int | str = "self") -> int:
    """How many descriptors a process has open; in this one, garbage does not count."""
    if pid == "self":
        gc.collect()
    return len(os.listdir(f"/proc/{pid}/fd"))


def opened(path: Path) -> int:
    """How many descriptors of this process are of one file or folder."""
    found = 0
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(entry.path) == str(path)
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False
