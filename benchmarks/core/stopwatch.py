"""When a load runs, and which of its requests count.

All times are seconds or nanoseconds of CLOCK_MONOTONIC, which every process of a machine shares.

    start ── warm-up ── measure_from ── counted ── until ── the outstanding ones are awaited
"""

import base64
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class Schedule:
    """The common times of all clients of a load, in seconds.

    `outstanding`: how many requests each has under way, if fewer than it may; 0: all.
    """

    start: float
    measure_from: float
    until: float
    outstanding: int = 0

    def wait_for_start(self) -> None:
        time.sleep(max(0.0, self.start - time.monotonic()))


class Recorder:
    """Counts the requests of one client whose answers came within the counted time."""

    def __init__(self, schedule: Schedule) -> None:
        self.outstanding = schedule.outstanding
        self._from = int(schedule.measure_from * NANOSECONDS)
        self._until = int(schedule.until * NANOSECONDS)
        self._latencies: list[int] = []
        self._cpu_at_start: float | None = None

    def finished(self, sent_at: int, now: int) -> bool:
        """Take down one answered request; false once the load is over."""
        if now >= self._until:
            return False
        if now >= self._from:
            if self._cpu_at_start is None:
                self._cpu_at_start = time.process_time()
            self._latencies.append(now - sent_at)
        return True

    def report(self) -> dict[str, Any]:
        began = self._cpu_at_start
        cpu = 0.0 if began is None else time.process_time() - began
        latencies = np.array(self._latencies, np.int64)
        return {"cpu_s": cpu, "latencies_ns": base64.b64encode(latencies.tobytes()).decode()}


def latencies_of(report: dict[str, Any]) -> npt.NDArray[np.int64]:
    """The latencies, in nanoseconds, of a recorder's report."""
    return np.frombuffer(base64.b64decode(report["latencies_ns"]), np.int64)
