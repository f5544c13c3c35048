"""Looks at a job as it runs: rate, device and CPU use, and the stage that limits now."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from penstock.client.client import Client
from penstock.errors import PenstockError
from penstock.offline.stages import limiting, since

_EVERY = 0.5
_MOST = 400  # samples that are kept; then every other one is dropped


@dataclass(frozen=True)
class Sample:
    """A moment: seconds since the start, rows so far, shares of the time since the last one."""

    at: float
    rows: int
    device: float
    cpu: float
    loaders: int
    limit: str


@dataclass(frozen=True)
class Progress:
    """How far a job is. `total`: 0 where nobody knows."""

    rows: int
    total: int
    failed: int
    rate: float
    left: float
    device: float
    limit: str


class Monitor:
    """Samples the engine and the machine, at most twice a second."""

    def __init__(self, client: Client, devices: int) -> None:
        self._client, self._devices = client, max(devices, 1)
        self._began = self._at = time.monotonic()
        self._stages: dict[str, float] = {}
        self._pids: set[int] = set()
        self._used: dict[int, float] = {}  # by process, those that have ended too
        self._cpu = self._cpu_seconds()
        self._first_cpu = self._cpu
        self._first_busy = self._busy = self._busy_seconds() or 0.0
        self._step = _EVERY
        self._kept = -_EVERY
        self.samples: list[Sample] = []
        self.device, self.limit = 0.0, ""

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began

    def look(self, rows: int, stages: dict[str, float], loaders: int, force: bool = False) -> bool:
        """Take a sample, if it is time; returns whether it was."""
        now = time.monotonic()
        passed = now - self._at
        if passed < _EVERY and not force:
            return False
        busy = self._busy_seconds()
        busy = self._busy if busy is None else busy
        cpu = self._cpu_seconds()
        if passed > 0:
            self.device = min(max((busy - self._busy) / passed / self._devices, 0.0), 1.0)
            share = min(max((cpu - self._cpu) / passed / cores(), 0.0), 1.0)
            self.limit = limiting(since(stages, self._stages), self.device) or self.limit
            sample = Sample(now - self._began, rows, self.device, share, loaders, self.limit)
            self._keep(sample, self._step / 2 if force else self._step)
        self._at, self._busy, self._cpu, self._stages = now, busy, cpu, dict(stages)
        return True

    def device_share(self) -> float:
        """Of the whole time."""
        return min((self._busy - self._first_busy) / max(self.seconds, 1e-9) / self._devices, 1.0)

    def cpu_share(self) -> float:
        """Of the whole time and all cores."""
        used = (self._cpu_seconds() - self._first_cpu) / max(self.seconds, 1e-9) / cores()
        return min(used, 1.0)

    def _keep(self, sample: Sample, apart: float) -> None:
        if sample.at - self._kept < apart:
            return
        self._kept = sample.at
        self.samples.append(sample)
        if len(self.samples) > _MOST:
            self.samples = self.samples[::2]
            self._step *= 2

    def _busy_seconds(self) -> float | None:
        try:
            workers = self._client.statistics().workers
        except PenstockError:
            return None  # the job will hear of it elsewhere
        self._pids = {worker.pid for worker in workers if worker.pid}
        return sum(worker.busy for worker in workers)

    def _cpu_seconds(self) -> float:
        """Of this process, all that it has started, and the workers."""
        for pid in {os.getpid(), *_started_by(os.getpid()), *self._pids}:
            if (told := _process(pid)) is not None:
                self._used[pid] = told[1]
        return sum(self._used.values())


def _started_by(root: int) -> set[int]:
    """The processes that descend from one."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (told := _process(int(name))) is not None:
            parents[int(name)] = told[0]
    found: set[int] = set()
    known = {root}
    while known:
        known = {pid for pid, parent in parents.items() if parent in known} - found
        found |= known
    return found


def _process(pid: int) -> tuple[int, float] | None:
    """The parent of a process and the seconds of CPU that it has used; `None`: it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
