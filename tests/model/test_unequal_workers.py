"""Two real workers of which one has less memory: one queue, and batches that fit each of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from penstock.config import Model
from penstock.engine.owner import Engine
from penstock.testing import running
from tests.conditions import until

_CRAMPED = Path(__file__).parents[1] / "models" / "cramped.py"
MOST, AT_LOAD, AT_WORK = 16, 8, 4
HUNGRY = 13.0


def _ask(engine: Engine, rows: np.ndarray) -> None:
    np.testing.assert_array_equal(engine.predict(rows)["y"], rows * 2)


def _flood(engine: Engine, rows: np.ndarray, over: threading.Event) -> None:
    while not over.is_set():
        _ask(engine, rows)


def _largest(engine: Engine, rows: np.ndarray) -> dict[int, int]:
    """While many ask for such rows: the largest batch that each worker ran."""
    over = threading.Event()
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(_flood, engine, rows, over) for _ in range(8)]
        try:
            trace = engine.client.trace(1.0)
        finally:
            over.set()
        for each in asking:
            each.result(60)
    largest: dict[int, int] = {}
    for batch in trace.batches:
        largest[batch.worker] = max(largest.get(batch.worker, 0), batch.rows)
    return largest


def test_batches_fit_each_worker_and_one_that_is_cut_cuts_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")  # asks for ten seconds until it gives in
    model = Model(f"{_CRAMPED}:build", max_batch=MOST, compile="frozen")
    plain = np.random.default_rng(5).random((3 * MOST, 3), np.float32)
    hungry = np.full((MOST, 3), HUNGRY, np.float32)
    with running(model, devices="cpu", workers=2) as engine:
        (told,) = engine.statistics().models
        assert (told.max_batch, told.limits) == (MOST, {0: MOST, 1: AT_LOAD})
        info = engine.client.model_info(None, plain)
        assert (info.max_batch, info.request_rows) == (MOST, AT_LOAD)
        assert _largest(engine, plain) == {0: MOST, 1: AT_LOAD}

        def is_cut() -> bool:
            """The second worker has met rows that need more than it has."""
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda _: _ask(engine, hungry), range(16)))
            return engine.statistics().models[0].limits[1] < AT_LOAD

        until(is_cut, 40.0)
        assert engine.statistics().models[0].limits == {0: MOST, 1: AT_WORK}
        assert _largest(engine, plain) == {0: MOST, 1: AT_WORK}  # pieces of 8 rows are cut there
        assert engine.statistics().deaths == 0
