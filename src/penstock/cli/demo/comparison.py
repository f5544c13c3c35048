"""Trains the network, then has eight processes ask it in three ways, one after the other.

1. each with a copy of its own and `model.predict`
2. each with a copy of its own, compiled
3. through Penstock: an engine has the one copy, those who ask have no TensorFlow

The same processes ask for the same images, each with one request outstanding, for as long. The
engine starts with an empty cache, so its start is a first one. All of it runs on CPUs: a GPU's
memory would go to the first of eight processes.
"""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.cli.demo.child import Child, end_all, hear
from penstock.cli.demo.crowd import Crowd, Task
from penstock.cli.demo.machine import Need, available, cores, fitting
from penstock.cli.demo.progress import Progress
from penstock.cli.demo.records import (
    COMPILED,
    PENSTOCK,
    PREDICT,
    TOLERANCE,
    Comparison,
    Machine,
    Network,
    Sharing,
    Way,
    Work,
)
from penstock.cli.quantities import size
from penstock.config import Model
from penstock.engine.owner import Engine
from penstock.statistics import Statistics

_EPOCHS = 10
_TRAINING_LIMIT = 600.0


def compare(processes: int, seconds: float, progress: Progress) -> Comparison:
    """Measure the three ways, `seconds` each."""
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-demo-") as name,
        environment(
            CUDA_VISIBLE_DEVICES="-1",
            KERAS_BACKEND="tensorflow",
            PENSTOCK_CACHE=f"{name}/cache",
            TMPDIR=name,  # TensorFlow leaves files in it
        ),
    ):
        folder = Path(name)
        told = _train(folder, progress)
        network = Network(**told["network"])
        fit, note = _how_many(processes, Need(*told["need"]))
        if note:
            progress.say(note)
        task = Task(fit, seconds, folder / "digits.npz", network.held_out, folder)
        path = folder / "network.keras"
        predict = _own_copies(task, "predict", PREDICT, path, progress)
        compiled = _own_copies(task, "compiled", COMPILED, path, progress)
        penstock, sharing = _through_penstock(task, path, progress)
    return Comparison(
        machine=Machine(
            cores=cores(),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            python=platform.python_version(),
            **told["versions"],
        ),
        network=network,
        work=Work(fit, processes, 1, seconds, TOLERANCE, note),
        ways=(predict, compiled, penstock),
        sharing=sharing,
        seconds=time.monotonic() - began,
    )


def _train(folder: Path, progress: Progress) -> dict[str, Any]:
    progress.begin("training a small network on digits", _EPOCHS, "epochs")
    settings = {
        "network": str(folder / "network.keras"),
        "digits": str(folder / "digits.npz"),
        "epochs": _EPOCHS,
    }
    trainer = Child("penstock.cli.demo.training", settings, folder / "training.log")
    try:
        for _, told in hear([trainer], _TRAINING_LIMIT):
            if "network" in told:
                return dict(told)
            progress.advance(told["epoch"])
    finally:
        end_all([trainer])
    raise AssertionError("hear ends by an error")


def _how_many(wanted: int, need: Need) -> tuple[int, str]:
    """As many processes as have room, and a note when these are fewer than wanted."""
    free = available()
    fit = fitting(wanted, need, free)
    if fit == wanted:
        return wanted, ""
    total = need.shared + wanted * need.own
    return fit, (
        f"{fit} processes in place of {wanted}: so many with TensorFlow would take about "
        f"{size(total)}, and {size(free)} of memory are free"
    )


def _own_copies(task: Task, way: str, name: str, path: Path, progress: Progress) -> Way:
    progress.begin(f"{name}: {task.processes} processes start", task.processes, "ready")
    with Crowd(task, way, str(path)) as crowd:
        start = crowd.wait_ready(progress.advance)
        progress.begin(f"{name}: they ask", task.seconds, "s")
        return crowd.measure(name, start, [], progress.advance)


def _through_penstock(task: Task, path: Path, progress: Progress) -> tuple[Way, Sharing]:
    progress.begin(f"{PENSTOCK}: an engine and {task.processes} start", task.processes, "ready")
    engine = Engine(Model(str(path), name="digits"), name="demo", folder=str(task.folder / "run"))
    with Crowd(task, "penstock", str(engine.address)) as crowd, engine:
        start = crowd.wait_ready(progress.advance)
        before = engine.statistics()
        others = [before.pid, *(worker.pid for worker in before.workers)]
        progress.begin(f"{PENSTOCK}: they ask", task.seconds, "s")
        way = crowd.measure(PENSTOCK, start, others, progress.advance)
        return way, _sharing(before, engine.statistics())


def _sharing(before: Statistics, after: Statistics) -> Sharing:
    rows = after.batches.rows - before.batches.rows
    batches = after.batches.count - before.batches.count
    facts = after.models[0].facts
    return Sharing(
        mean_batch=rows / max(1, batches),
        mode=facts["mode"],
        load_seconds=facts["seconds"],
        milliseconds_by_batch={int(n): time / 1e6 for n, time in facts["latency"].items()},
    )


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Processes that are started meanwhile get these variables."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
