"""The machine's memory: what is free, what processes take, how many fit; and who has TensorFlow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import psutil

_GROUP = Path("/sys/fs/cgroup")
_USABLE = 0.8  # of what is free: others use the machine too


class Need(NamedTuple):
    """Bytes that a process takes for itself, and those that it shares with others like it."""

    own: int
    shared: int


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def need_of(pid: int) -> Need:
    """What a process takes now. Libraries and other files are shared with others like it."""
    sizes = _sizes(pid)
    own = sizes["Anonymous"]
    return Need(own, max(0, sizes["Rss"] - own))


def taken_by(pids: Iterable[int]) -> int:
    """Bytes that these processes take together: shared pages are counted once (PSS)."""
    return sum(_sizes(pid)["Pss"] for pid in pids)


def have_tensorflow(pids: Iterable[int]) -> int:
    """How many of these processes have loaded TensorFlow's libraries."""
    return sum("/tensorflow/" in Path(f"/proc/{pid}/maps").read_text() for pid in pids)


def available() -> int:
    """Bytes that new processes may take, in this container or on the machine."""
    free: int = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError, KeyError):
        limit = int((_GROUP / "memory.max").read_text())
        used = int((_GROUP / "memory.current").read_text())
        pairs = (line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        droppable = int(dict(pairs)["inactive_file"])
        free = min(free, limit - used + droppable)
    return free


def fitting(wanted: int, need: Need, free: int) -> int:
    """How many of the wanted processes fit into the free memory; at least one is tried."""
    room = int(free * _USABLE) - need.shared
    return max(1, min(wanted, room // max(1, need.own)))


def _sizes(pid: int) -> dict[str, int]:
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        sizes[name] = int(value.split()[0]) * 1024
    return sizes
