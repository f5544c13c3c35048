"""Signals to a real engine's processes, and the functions that its workers run."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import errors
from penstock.testing import (
    LocalEngine,
    continue_worker,
    kill_engine,
    kill_worker,
    models,
    running,
    stop_worker,
    wait_healthy,
)

PID = "penstock.testing.models:worker_pid"


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_killed_worker_is_gone_and_replaced():
    with running(PID) as engine:
        old = int(engine.predict(np.zeros(1))[0])
        assert kill_worker(engine) == old
        with pytest.raises(ProcessLookupError):
            os.kill(old, 0)
        statistics = wait_healthy(engine)
        assert statistics.deaths == 1
        assert int(engine.predict(np.zeros(1))[0]) == statistics.workers[0].pid != old


def test_one_of_two_workers_is_killed():
    with running(PID, workers=2) as engine:
        before = [worker.pid for worker in engine.statistics().workers]
        assert kill_worker(engine, 1) == before[1]
        after = [worker.pid for worker in wait_healthy(engine).workers]
        assert after[0] == before[0]
        assert after[1] != before[1]


def test_a_stopped_worker_stands_still_until_it_continues():
    with running(PID) as engine:
        pid = stop_worker(engine)
        assert state_of(pid) == "T"
        future = engine.submit(np.zeros(1))
        assert continue_worker(engine) == pid
        assert future.result(20).tolist() == [pid]


def test_a_worker_that_stays_stopped_is_replaced():
    with running(PID) as engine:
        pid = stop_worker(engine)
        statistics = wait_healthy(engine, without=pid)
        assert engine.predict(np.zeros(1)).tolist() == [statistics.workers[0].pid]


def test_a_killed_engine_is_gone():
    with running(PID) as engine, penstock.connect(str(engine.address), wait=0.1) as client:
        pid = kill_engine(client)
        assert state_of(pid) == "Z"
        with pytest.raises(errors.EngineClosed):
            client.predict(np.zeros(1))


def test_signals_go_through_a_client_too():
    with running(PID) as engine, penstock.connect(str(engine.address)) as client:
        old = kill_worker(client)
        assert wait_healthy(client).workers[0].pid != old


def test_waiting_for_health_has_an_end():
    with running(PID, workers=1) as engine:
        pid = engine.statistics().workers[0].pid
        with pytest.raises(TimeoutError, match=r"0\.05 s"):
            wait_healthy(engine, 0.05, without=pid)


def test_nothing_of_a_running_engine_is_left():
    with running(PID) as engine:
        folder = engine.address.parent
        pids = [engine.statistics().pid, engine.statistics().workers[0].pid]
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_file_lets_a_held_row_go(tmp_path):
    with running("penstock.testing.models:hold_until_file") as engine:
        future = engine.submit(np.array([str(tmp_path / "go")]))
        with pytest.raises(TimeoutError):
            future.result(0.05)
        (tmp_path / "go").touch()
        assert future.result(20).tolist() == [os.fsencode(tmp_path / "go")]


def test_checksums_are_those_of_the_rows():
    x = np.arange(12, dtype=np.int16).reshape(3, 4)
    expected = [zlib.crc32(row.tobytes()) for row in x]
    assert models.checksum(x[:, ::1]).tolist() == expected
    assert LocalEngine(models.checksum).predict(x).tolist() == expected


def test_a_model_that_would_end_the_test_does_not():
    with pytest.raises(errors.ModelError, match="the test itself"):
        LocalEngine(models.exit_on_13).predict(np.array([13.0]))


def test_public_names_are_there():
    import penstock.testing as testing

    assert all(getattr(testing, name) is not None for name in testing.__all__)
    assert dir(testing) == sorted(testing.__all__)
    with pytest.raises(AttributeError):
        _ = testing.nothing_of_that_name
