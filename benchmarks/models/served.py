"""Penstock's own processes from outside: their start, what they did, what they used."""

import os
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.core.processes import Child, ChildFailed, Workspace
from benchmarks.models.cores import cpu_seconds
from benchmarks.models.findings import Served, Start

_READY_WITHIN = 240.0
_TELLS_WITHIN = 30.0
_LEAVES_WITHIN = 20.0
_serial = count()


@dataclass(frozen=True)
class Reading:
    """The model's counters and the CPU seconds of both kinds of processes, at one moment."""

    model: dict[str, Any]
    engine_s: float
    worker_s: float


class EngineProcess:
    """An engine with an owner's process, started now. `start` tells how that went."""

    def __init__(self, folder: Path, cache: Path, workspace: Workspace) -> None:
        self.endpoint = f"bench-models-{os.getpid()}-{next(_serial)}"
        command = ["benchmarks.models.engine", self.endpoint, str(folder), str(cache)]
        self._child = Child(command, workspace)
        try:
            told = self._child.hear(time.monotonic() + _READY_WITHIN)
            self.facts = self._statistics()["models"][0]["facts"]
        except BaseException:
            self.close()
            raise
        self.start = Start(
            ready_s=round(told["ready_s"], 3),
            answered_s=round(told["answered_s"], 3),
            cached=self.facts["cached"],
            mode=self.facts["mode"],
        )

    def pids(self) -> list[int]:
        """The owner, the engine and its workers."""
        now = self._statistics()
        return [self._child.pid, now["pid"], *(worker["pid"] for worker in now["workers"])]

    def read(self) -> Reading:
        """What has been counted so far."""
        now = self._statistics()
        self.facts = now["models"][0]["facts"]
        return Reading(
            model=now["models"][0],
            engine_s=cpu_seconds(now["pid"]),
            worker_s=sum(cpu_seconds(worker["pid"]) for worker in now["workers"]),
        )

    def close(self) -> None:
        self._child.dismiss()
        self._child.close(time.monotonic() + _LEAVES_WITHIN)

    def _statistics(self) -> dict[str, Any]:
        self._child.say({})
        return self._child.hear(time.monotonic() + _TELLS_WITHIN)


def between(before: Reading, after: Reading, clients_us: float) -> Served:
    """What the engine did from one reading to the next."""
    rows = after.model["rows"] - before.model["rows"]
    if not rows:
        raise ChildFailed("the engine has run no batches")
    return Served(
        batches=after.model["batches"] - before.model["batches"],
        rows=rows,
        sizes=_grown(before.model["sizes"], after.model["sizes"]),
        closed=_grown(before.model["closed"], after.model["closed"]),
        times=after.model["times"],
        worker_us=round(1e6 * (after.worker_s - before.worker_s) / rows, 1),
        engine_us=round(1e6 * (after.engine_s - before.engine_s) / rows, 1),
        clients_us=clients_us,
    )


def _grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    grown = {name: number - before.get(name, 0) for name, number in after.items()}
    return {name: number for name, number in grown.items() if number}
