"""Both ways to share a model between eight processes, measured one after the other.

The same processes ask for the same images, each with one request outstanding. With a copy each,
the cores are divided between them (BLAS threads: cores / 8, at least 1); with one copy for all, its
worker leaves a core to those who ask (cores - 1, at least 1). More threads than cores that are free
make matrix products wait for each other, and either way slower.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.cli.demo.crowd import PROCESSES, Crowd, environment, memory_of, threads
from penstock.cli.demo.network import LAYERS, PARAMETERS, WEIGHTS_VARIABLE, write_weights
from penstock.engine.owner import Engine

OWN_COPY = "a copy in each process"
PENSTOCK = "Penstock, one copy"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Way:
    """What was measured of one way."""

    name: str
    answers_per_second: float
    p50_ms: float
    p99_ms: float
    start_seconds: float
    memory_bytes: int
    processes: int
    blas_threads: int
    answers: int
    mean_batch: float


@dataclass(frozen=True)
class Agreement:
    """How the two ways' answers to the same images compare."""

    compared: int
    same_class: int
    largest_difference: float

    @property
    def good(self) -> bool:
        """Equal up to rounding: sums of a matrix product come in another order in a batch."""
        return self.largest_difference < 1e-3


@dataclass(frozen=True)
class Comparison:
    """The demo's result."""

    machine: dict[str, Any]
    work: dict[str, Any]
    ways: tuple[Way, ...]
    agreement: Agreement


def compare(seconds: float, tell: Tell) -> Comparison:
    """Measure both ways, `seconds` each. `tell` is told what begins."""
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        weights = Path(folder) / "weights.npz"
        tell("writing the weights")
        write_weights(weights)
        with environment(**{WEIGHTS_VARIABLE: str(weights)}):
            own, own_answers = _own_copies(seconds, max(1, cores // PROCESSES), tell)
            shared, shared_answers = _through_penstock(
                seconds, max(1, cores - 1), Path(folder), tell
            )
    return Comparison(
        machine={
            "cores": cores,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        },
        work={
            "processes": PROCESSES,
            "outstanding_per_process": 1,
            "seconds": seconds,
            "layers": LAYERS,
            "weights": PARAMETERS,
            "weight_bytes": 4 * PARAMETERS,
        },
        ways=(own, shared),
        agreement=_agreement(own_answers, shared_answers),
    )


def _own_copies(seconds: float, blas: int, tell: Tell) -> tuple[Way, Any]:
    tell(f"{PROCESSES} processes load a copy each")
    with environment(**threads(blas)), Crowd("", seconds) as crowd:
        start = crowd.wait_ready()
        return _measured(crowd, OWN_COPY, start, crowd.pids, blas, tell, lambda: 1.0)


def _through_penstock(seconds: float, blas: int, folder: Path, tell: Tell) -> tuple[Way, Any]:
    tell("an engine loads one copy, the processes connect")
    engine = Engine("penstock.cli.demo.network:Network", name="demo", folder=str(folder / "engine"))
    with Crowd(str(engine.address), seconds) as crowd, environment(**threads(blas)), engine:
        start = crowd.wait_ready()
        before = engine.statistics()
        pids = [*crowd.pids, before.pid, *(worker.pid for worker in before.workers)]

        def mean_batch() -> float:
            after = engine.statistics()
            rows = after.batches.rows - before.batches.rows
            return rows / max(1, after.batches.count - before.batches.count)

        return _measured(crowd, PENSTOCK, start, pids, blas, tell, mean_batch)


def _measured(
    crowd: Crowd,
    name: str,
    start: float,
    pids: list[int],
    blas: int,
    tell: Tell,
    mean_batch: Callable[[], float],
) -> tuple[Way, Any]:
    tell(f"{PROCESSES} processes ask for {crowd.seconds:g} s: {name}")
    crowd.go()
    time.sleep(crowd.seconds * 0.5)
    memory = memory_of(pids)
    results = crowd.results()
    latencies = np.concatenate([result["latencies"] for result in results]) * 1e3
    way = Way(
        name=name,
        answers_per_second=len(latencies) / crowd.seconds,
        p50_ms=float(np.percentile(latencies, 50)),
        p99_ms=float(np.percentile(latencies, 99)),
        start_seconds=start,
        memory_bytes=memory,
        processes=len(pids),
        blas_threads=blas,
        answers=len(latencies),
        mean_batch=mean_batch(),
    )
    return way, np.array([result["answers"] for result in results])


def _agreement(first: Any, second: Any) -> Agreement:
    same = first.argmax(axis=-1) == second.argmax(axis=-1)
    return Agreement(
        compared=int(same.size),
        same_class=int(same.sum()),
        largest_difference=float(np.abs(first - second).max()),
    )
