"""A real engine for a test: its own folder, gone afterwards."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from penstock.client.client import Client
from penstock.engine.owner import Engine
from penstock.errors import EngineClosed
from penstock.statistics import Statistics

_PAUSE = 0.01


@contextlib.contextmanager
def running(models: Any, **settings: Any) -> Iterator[Engine]:
    """A running `Engine` in a temporary folder of its own, so that tests do not meet.

    Other processes find it with `penstock.connect(str(engine.address))`.
    """
    settings.setdefault("name", "test")
    with (
        tempfile.TemporaryDirectory(prefix="penstock-test-") as folder,
        Engine(models, folder=folder, **settings) as engine,
    ):
        yield engine


def wait_healthy(
    engine: Engine | Client, timeout: float = 30.0, *, without: int | None = None
) -> Statistics:
    """Wait until every worker is ready, none of them the process `without`; the statistics then.

    Raises `TimeoutError` when that takes longer than `timeout` seconds.
    """
    until = time.monotonic() + timeout
    statistics: Statistics | None = None
    while time.monotonic() < until:
        with contextlib.suppress(EngineClosed):
            statistics = engine.statistics()
            pids = {worker.pid for worker in statistics.workers}
            if statistics.healthy and without not in pids:
                return statistics
        time.sleep(_PAUSE)
    states = [f"{w.index}: {w.state}" for w in statistics.workers] if statistics else "no engine"
    raise TimeoutError(f"the engine was not healthy within {timeout:g} s; its workers: {states}")
