"""What processes take of the machine: processor time since the last look, memory, their GPUs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from penstock.devices.cards import Card, survey
from penstock.statistics import WorkerStatistics


@dataclass(frozen=True)
class Usage:
    """A process: the share of a core that it used (`None` at the first look), bytes of memory."""

    cpu: float | None
    memory: int | None


NOT_SEEN = Usage(None, None)


def cards_of(workers: Iterable[WorkerStatistics]) -> dict[str, Card]:
    """The cards that workers are on, by the names of their devices; NVML is asked only then."""
    names = {worker.device for worker in workers if worker.device.startswith("gpu:")}
    if not names:
        return {}
    return {f"{card.label} {card.name}": card for card in survey().cards}


class Meter:
    """Looks at processes by their numbers. One that is new, or a new one of an old number, has no
    share of a core yet; one that is gone, or cannot be seen, is left out."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[psutil.Process, float, float]] = {}

    def look(self, pids: Iterable[int]) -> dict[int, Usage]:
        """What these processes use."""
        before, self._seen = self._seen, {}
        return {pid: usage for pid in pids if (usage := self._look(pid, before.get(pid)))}

    def _look(self, pid: int, known: tuple[psutil.Process, float, float] | None) -> Usage | None:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                memory = process.memory_info().rss
        except (psutil.Error, ValueError):
            return None
        now, used = time.monotonic(), times.user + times.system
        self._seen[pid] = (process, now, used)
        if known is None or known[0] != process or now <= known[1]:
            return Usage(None, memory)
        return Usage((used - known[2]) / (now - known[1]), memory)
