"""SIGTERM and SIGINT: the engine works off what it has, for as long as it may, and ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time

import numpy as np
import pytest

from penstock import Client, Engine, connect
from penstock.errors import EngineClosed, PenstockError, WorkerLost
from tests.faults import leftovers
from tests.faults.company import gone, outstanding, worker_pids
from tests.faults.files import let_go, source, started
from tests.faults.models import FOREVER, Verb, answer_to, row
from tests.faults.waiting import eventually

SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


def _exit_code(engine: Engine, seconds: float) -> int:
    assert engine._process is not None
    return engine._process.wait(seconds)


def _signal(engine: Engine, number: int) -> None:
    os.kill(engine.statistics().pid, number)


def _refuses(client: Client) -> EngineClosed:
    """Wait until new calls are refused, as they are once the engine has got its signal."""

    def refusal() -> EngineClosed | None:
        try:
            client.predict(row(Verb.ANSWER)[None], deadline=0.1)
        except EngineClosed as error:
            return error
        except TimeoutError:
            return None
        return None

    return eventually(refusal, 5)


@SIGNALS
def test_idle(start, run_folder, number):
    engine = start(workers=2)
    pids = worker_pids(engine)
    _signal(engine, number)
    assert _exit_code(engine, 3) == 0
    assert not any(map(leftovers.alive, pids)), "no worker outlives it"
    assert list(run_folder.iterdir()) == []


@SIGNALS
def test_busy_and_with_queued_work_everything_is_answered(start, client, number):
    engine = start(workers=1, max_batch=4)
    other = client(engine)
    running = engine.submit(row(Verb.WAIT, 1, 1)[None])
    started(1)
    asked = [row(Verb.ANSWER, 0, n)[None] for n in range(50)]
    queued = [(x, [engine, other][n % 2].submit(x)) for n, x in enumerate(asked)]
    eventually(lambda: engine.statistics().requests.admitted == 51)
    _signal(engine, number)
    _refuses(other)
    let_go(1)
    assert running.result(10)[0, 0] == 8
    for x, future in queued:
        assert future.result(10)[0, 0] == answer_to(x)[0]
    assert _exit_code(engine, 5) == 0


def test_what_comes_during_the_drain_is_refused(start):
    engine = start(workers=1)
    with connect(str(engine.address), wait=0.3) as other:
        running = engine.submit(row(Verb.WAIT, 1, 1)[None])
        started(1)
        _signal(engine, signal.SIGTERM)
        # Told by the engine, or found out by connecting anew.
        assert re.search("shutting down|does not answer|no engine", str(_refuses(other)))
        with pytest.raises(EngineClosed):
            connect(str(engine.address), wait=0.3)
        let_go(1)
        assert running.result(10)[0, 0] == 8


def test_a_large_call_that_is_under_way_is_not_lost_silently(start):
    """A call of many pieces: those that were not sent yet are refused, and the call says so."""
    engine = start(workers=1, max_batch=2)
    x = np.repeat(row(Verb.SLEEP, 5, 3)[None], 400, axis=0)
    outcome: list[object] = []

    def ask() -> None:
        try:
            outcome.append(engine.predict(x))
        except PenstockError as error:
            outcome.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: engine.statistics().requests.done > 5)
    _signal(engine, signal.SIGTERM)
    thread.join(15)
    (result,) = outcome
    assert isinstance(result, PenstockError)
    assert result.retryable


def test_a_drain_that_is_too_short(start, client):
    engine = start(workers=1, max_batch=1, drain_timeout=0.3)
    pids = worker_pids(engine)
    running = engine.submit(row(Verb.WAIT, 1, 1)[None])
    started(1)
    queued = [engine.submit(row(Verb.ANSWER)[None]) for _ in range(5)]
    began = time.monotonic()
    _signal(engine, signal.SIGTERM)
    for future in [running, *queued]:
        with pytest.raises(EngineClosed) as caught:
            future.result(5)
        assert caught.value.retryable
    assert _exit_code(engine, 8) == 0
    assert time.monotonic() - began < 8
    gone(*pids)


@SIGNALS
def test_while_it_is_loading(run_folder, number):
    engine = Engine(source("NeverLoadsWithChildren"), folder=str(run_folder))
    failure: list[BaseException] = []

    def start() -> None:
        try:
            engine.start()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    worker = started(0)
    parent = int(_stat(worker)[1])
    os.kill(parent, number)
    thread.join(15)
    assert isinstance(failure[0], EngineClosed)
    gone(worker, parent)


def _stat(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def test_twice_it_does_not_wait(start):
    engine = start(workers=1, drain_timeout=60)
    pids = worker_pids(engine)
    running = engine.submit(row(Verb.WAIT, 1, 1)[None])
    started(1)
    pid = engine.statistics().pid
    os.kill(pid, signal.SIGTERM)
    with pytest.raises(TimeoutError):
        running.result(0.3)
    os.kill(pid, signal.SIGTERM)
    assert isinstance(running.exception(3), EngineClosed)
    assert _exit_code(engine, 8) == 0
    gone(*pids)


def test_another_signal_that_somebody_handles_ends_nothing(
    start, monkeypatch, tmp_path_factory: pytest.TempPathFactory
):
    """As a profiler's timer does, which was set up for every Python process of a machine."""
    site = tmp_path_factory.mktemp("site")
    handled = site / "handled"
    (site / "sitecustomize.py").write_text(
        "import pathlib, signal\n"
        f"signal.signal(signal.SIGUSR1, lambda *_: pathlib.Path({str(handled)!r}).touch())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    engine = start(workers=1)
    _signal(engine, signal.SIGUSR1)
    eventually(handled.exists)
    x = row(Verb.ANSWER)[None]
    assert engine.predict(x, deadline=5)[0, 0] == answer_to(x)[0]


@pytest.mark.parametrize(
    ("verb", "argument"), [(Verb.SLEEP, FOREVER * 1000), (Verb.HOLD_GIL, 60_000)]
)
def test_a_worker_that_ignores_being_told_to_stop(start, verb, argument):
    engine = start(workers=2, drain_timeout=0.1)
    pids = worker_pids(engine)
    running = engine.submit(row(verb, argument)[None])
    eventually(lambda: any(worker.inflight for worker in engine.statistics().workers))
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 6
    assert not any(map(leftovers.alive, pids))
    assert isinstance(running.exception(1), EngineClosed)


def test_a_worker_that_dies_during_the_drain(start):
    """With no worker left, what waits ends, with an error or on a successor, before the limit."""
    engine = start(workers=1, max_batch=1, drain_timeout=15)
    running = engine.submit(row(Verb.WAIT, 1, 1)[None])
    victim = started(1)
    queued = [engine.submit(row(Verb.ANSWER, 0, n)[None]) for n in range(3)]
    began = time.monotonic()
    _signal(engine, signal.SIGTERM)
    with pytest.raises(TimeoutError):
        running.result(0.2)
    let_go(1)
    leftovers.kill(victim)
    for number, future in enumerate([running, *queued]):
        error = future.exception(12)
        if error is None:
            assert future.result()[0, 0] == (8 if number == 0 else (number - 1) * 7 + 1)
        else:
            assert isinstance(error, (EngineClosed, WorkerLost))
    assert _exit_code(engine, 5) == 0
    assert time.monotonic() - began < 10


def test_a_client_that_keeps_talking_loses_no_answer_to_the_shutdown(start, client):
    """Other threads' calls, which are refused, do not take the open ones down with them."""
    engine = start(workers=1, max_batch=4)
    other = client(engine, wait=0.2)
    running = other.submit(row(Verb.WAIT, 1, 1)[None])
    started(1)
    queued = [other.submit(row(Verb.ANSWER, 0, n)[None]) for n in range(40)]
    eventually(lambda: outstanding(engine) == 41)
    ends = threading.Event()

    def chatter() -> None:
        while not ends.is_set():
            with contextlib.suppress(PenstockError, TimeoutError):
                other.statistics(timeout=1)
            with contextlib.suppress(PenstockError):
                other.predict(row(Verb.ANSWER)[None], deadline=1)

    threads = [threading.Thread(target=chatter) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        _signal(engine, signal.SIGTERM)
        with pytest.raises(TimeoutError):
            running.result(0.5)
        let_go(1)
        assert running.result(10)[0, 0] == 8
        for number, future in enumerate(queued):
            assert future.result(10)[0, 0] == number * 7 + 1
    finally:
        ends.set()
        for thread in threads:
            thread.join(10)


def test_closing_an_engine_that_is_ending_already_does_not_wait_for_another(start):
    engine = start(workers=1)
    running = engine.submit(row(Verb.WAIT, 1, 1)[None])
    started(1)
    _signal(engine, signal.SIGTERM)
    with pytest.raises(TimeoutError):
        running.result(0.2)
    began = time.monotonic()
    let_go(1)
    engine.close()
    assert time.monotonic() - began < 3
