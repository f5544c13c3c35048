"""What a run leaves behind, and what its processes use.

Every process of a run carries a mark in its environment, so that those are found too that have left
their session or lost their parent.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import psutil

MARK = "PENSTOCK_SOAK"


def marked(mark: str) -> list[str]:
    """The processes of a run that are still there, but this one."""
    found: list[str] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(f"{process.pid}: {' '.join(process.cmdline())}")
    return found


def descriptors() -> int:
    """How many descriptors this process has."""
    return psutil.Process().num_fds()


def megabytes(pid: int) -> float:
    """What a process holds in memory of its own, in megabytes; 0 when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


def wait_for_none(mark: str, seconds: float) -> list[str]:
    """The processes that are left when all had time to end."""
    until = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    return left
