"""N client processes with M outstanding requests each, against one system that is being served."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.core.processes import Child, ChildFailed, Workspace, children
from benchmarks.core.stopwatch import Schedule, latencies_of
from benchmarks.core.systems.interface import Load, System

_READY_WITHIN = 120.0
_DRAIN_WITHIN = 15.0


@dataclass(frozen=True)
class Timing:
    """How long a load warms up and how long it is counted, in seconds."""

    warm_up: float
    measure: float


@dataclass(frozen=True)
class Sample:
    """What one load on one system came to."""

    load: str
    seconds: float
    requests: int
    rows_per_s: float
    p50_us: float
    p99_us: float
    client_cpu_us_per_row: float


class Crowd:
    """The connected clients of a load."""

    def __init__(self, load: Load, members: list[Child]) -> None:
        self._load = load
        self._members = members

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_WITHIN
        for member in self._members:
            member.hear(deadline)

    def measure(self, timing: Timing, outstanding: int = 0) -> Sample:
        """Let all clients run one load from a common start.

        With `outstanding`, each client of Penstock has only so many requests under way.
        """
        load = Load(self._load.clients, outstanding or self._load.outstanding)
        start = time.monotonic() + 0.1 + 0.002 * self._load.clients
        measure_from = start + timing.warm_up
        schedule = Schedule(start, measure_from, measure_from + timing.measure, outstanding)
        for member in self._members:
            member.say(asdict(schedule))
        deadline = schedule.until + _DRAIN_WITHIN
        reports = [
            report for member in self._members for report in member.hear(deadline)["results"]
        ]
        latencies = np.concatenate([latencies_of(report) for report in reports])
        if latencies.size == 0:
            raise ChildFailed(f"no request was answered within {timing.measure} s")
        p50, p99 = np.percentile(latencies, [50, 99]) / 1000
        cpu = sum(report["cpu_s"] for report in reports)
        return Sample(
            load=load.label,
            seconds=timing.measure,
            requests=int(latencies.size),
            rows_per_s=round(latencies.size / timing.measure, 1),
            p50_us=round(float(p50), 1),
            p99_us=round(float(p99), 1),
            client_cpu_us_per_row=round(1e6 * cpu / latencies.size, 1),
        )


@contextlib.contextmanager
def crowd(system: System, endpoint: str, load: Load, workspace: Workspace) -> Iterator[Crowd]:
    """Start the clients of a load and wait until each is connected; they leave with the block."""
    with children(system.client_commands(endpoint, load), workspace) as members:
        clients = Crowd(load, members)
        clients.wait_until_ready()
        yield clients


def measure(
    system: System, endpoint: str, load: Load, timing: Timing, workspace: Workspace
) -> Sample:
    """One load on one system, from the start of its clients to their end."""
    with crowd(system, endpoint, load, workspace) as clients:
        return clients.measure(timing)
