"""Who had the cores during a load: the processes of the way that was measured, or others.

Two cores that somebody else uses too are fewer than two. What others took stands beside each
figure, so that a run on a busy machine is known for one.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from benchmarks.core.processes import ChildFailed


@dataclass(frozen=True)
class Use:
    """Cores that were busy, on average: with the way's own processes, and with anything else."""

    own: float
    others: float


class Meter:
    """Reads the clocks of processes and of the machine, from when it is made until `use`."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._began = time.monotonic()
        self._own = self._own_seconds()
        self._all = _busy_seconds()

    def use(self) -> Use:
        seconds = time.monotonic() - self._began
        own = self._own_seconds() - self._own
        everybody = _busy_seconds() - self._all
        return Use(
            own=round(own / seconds, 3), others=round(max(0.0, everybody - own) / seconds, 3)
        )

    def _own_seconds(self) -> float:
        return sum(cpu_seconds(pid) for pid in self._pids)


def cpu_seconds(pid: int) -> float:
    """What a process has used so far; ChildFailed if it is gone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error as error:
        raise ChildFailed(f"process {pid} is gone") from error
    return float(times.user + times.system)


def _busy_seconds() -> float:
    """Of all cores together; time that the host took away (steal) is somebody else's."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)
