"""The engine is killed: every call ends with `EngineClosed` soon, and workers and files go."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest

from penstock import connect
from penstock.client.client import Client
from penstock.errors import EngineClosed
from tests.faults import leftovers
from tests.faults.company import gone, outstanding, worker_pids
from tests.faults.files import let_go, started
from tests.faults.models import Verb, row
from tests.faults.waiting import eventually

SOON = 1.0  # after the engine's process was seen dead; as a rule it takes milliseconds


def _kill(engine, pid: int = 0) -> float:
    """Returns when it was seen dead."""
    pid = pid or engine.statistics().pid
    exited = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([exited], [], [], 10)[0], "the engine was killed and is still there"
        return time.monotonic()
    finally:
        os.close(exited)


def test_every_pending_call_ends(start, client, run_folder):
    engine = start(workers=2, max_batch=4)
    other = client(engine)
    pids = worker_pids(engine)
    hold = row(Verb.WAIT, 1)[None]

    async def many() -> list[BaseException]:
        calls = [asyncio.ensure_future(other.predict_async(hold)) for _ in range(20)]
        return await asyncio.gather(*calls, return_exceptions=True)

    with ThreadPoolExecutor(30) as pool:
        blocked = [pool.submit(engine.predict, hold) for _ in range(20)]
        streaming = pool.submit(lambda: list(other.map(iter([hold[0]] * 50), window=8)))
        tasks = pool.submit(asyncio.run, many())
        futures = [engine.submit(hold) for _ in range(20)]
        asked = pool.submit(lambda: [other.submit(np.repeat(hold, 300, axis=0)).result()])
        started(1)
        all_of_them = 20 + 8 + 20 + 20 + 12  # of 300 rows in one call so many batches at a time
        eventually(
            lambda: sum(c.outstanding for c in engine.statistics().clients) == all_of_them,
            what="none is only made when the engine is gone: it would wait for the next one",
        )
        killed = _kill(engine)
        everybody = [*blocked, streaming, tasks, *futures, asked]
        _, late = wait(everybody, max(0.0, killed + SOON - time.monotonic()))
        assert not late, f"{len(late)} calls still wait after {SOON} s"
    for future in [*blocked, streaming, *futures, asked]:
        assert isinstance(future.exception(), EngineClosed)
        assert future.exception().retryable
    assert len(tasks.result()) == 20
    assert all(isinstance(error, EngineClosed) for error in tasks.result())
    gone(*pids)
    eventually(lambda: not list(run_folder.iterdir()), what="the workers swept the files")


def test_the_pending_calls_of_another_process_end(start, peer):
    engine = start()
    other = peer("hold", engine.address, 1, 2, 3)
    assert other.says() == "submitted"
    started(1)
    _kill(engine)
    other.tell("results")
    assert other.says(SOON) == ["EngineClosed"] * 3


@pytest.mark.parametrize(
    ("verb", "argument"),
    [(Verb.WAIT, 1), (Verb.LOOP, 1), (Verb.HOLD_GIL, 1500)],
    ids=["sleeps", "loops", "holds the interpreter for a while"],
)
def test_workers_that_are_busy_exit(start, run_folder, verb, argument):
    engine = start()
    pids = worker_pids(engine)
    future = engine.submit(row(verb, argument)[None])
    started(argument)
    _kill(engine)
    assert isinstance(future.exception(SOON), EngineClosed)
    gone(*pids, seconds=5)
    eventually(lambda: not list(run_folder.iterdir()), 5, "the files are swept")


def test_a_worker_that_is_stopped_exits(start):
    engine = start(workers=2)
    pids = worker_pids(engine)
    os.kill(pids[0], signal.SIGSTOP)
    _kill(engine)
    gone(*pids, seconds=5)


def test_a_worker_that_is_still_loading_exits(start, folder, run_folder):
    engine = start("RaisesWhileBroken")
    (first,) = worker_pids(engine)
    os.kill(first, signal.SIGKILL)
    second = eventually(lambda: set(worker_pids(engine)) - {first, 0}).pop()
    _kill(engine)
    gone(first, second)


@pytest.mark.parametrize("how", ["signalled", "told"])
def test_a_kill_while_it_works_off_its_queue(start, client, run_folder, how):
    engine = start(workers=2, max_batch=1)
    other = client(engine)
    pids = worker_pids(engine)
    pid = engine.statistics().pid
    first = engine.submit(row(Verb.WAIT, 1, 5)[None])
    started(1)
    pending = [engine.submit(row(Verb.LOOP, 2)[None])]
    pending += [other.submit(row(Verb.WAIT, 3)[None]) for _ in range(4)]
    eventually(lambda: outstanding(engine) == 6, what="the engine has them all")
    if how == "signalled":
        os.kill(pid, signal.SIGTERM)
    else:
        other.stop_engine(drain=30)
    eventually(lambda: not engine.client.connected and not other.connected, what="both are told")
    let_go(1)
    assert first.result(5)[0, 0] == 36, "what was there is still worked off"
    assert not any(future.done() for future in pending)
    killed = _kill(engine, pid)
    for future in pending:
        assert isinstance(future.exception(killed + SOON - time.monotonic()), EngineClosed)
        assert future.exception().retryable
    gone(*pids)
    eventually(lambda: not list(run_folder.iterdir()), what="the workers swept the files")


def test_a_kill_while_it_waits_for_its_workers_to_exit(start):
    engine = start(workers=2)
    stopped, other = worker_pids(engine)
    pid = engine.statistics().pid
    os.kill(stopped, signal.SIGSTOP)
    os.kill(pid, signal.SIGTERM)
    gone(other)
    assert leftovers.alive(pid), "it still waits for the one that was stopped"
    _kill(engine, pid)
    gone(stopped, seconds=5)


def test_calls_that_are_just_being_written_end_too(start):
    """Rows of tens of megabytes: at any moment some thread is copying when the engine dies."""
    engine = start("checksum", workers=1, client_memory=2 << 30)
    big = np.zeros((1, 48 << 20), np.uint8)
    engine.predict(big)
    outcomes: list[object] = []

    def ask() -> None:
        while True:
            try:
                outcomes.append(engine.predict(big))
            except Exception as error:
                outcomes.append(error)
                return

    for _ in range(2):
        threads = [threading.Thread(target=ask, daemon=True) for _ in range(6)]
        for thread in threads:
            thread.start()
        seen = len(outcomes)
        eventually(lambda seen=seen: len(outcomes) > seen + 4, 20)
        _kill(engine)
        until = time.monotonic() + 5 + SOON  # a call that comes later waits 5 s for an engine
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        hanging = sum(thread.is_alive() for thread in threads)
        assert not hanging, f"{hanging} calls never ended"
        engine.close()
        engine.start()
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert len(errors) == 12
    assert all(isinstance(error, EngineClosed) for error in errors), errors


def test_calls_in_line_for_memory_or_credit_end_too(start, client):
    engine = start(workers=1, client_requests=4, client_memory=1 << 20)
    other = client(engine)
    hold = row(Verb.WAIT, 1)[None]
    with ThreadPoolExecutor(12) as pool:
        calls = [pool.submit(other.predict, hold) for _ in range(12)]
        try:
            started(1)
            eventually(lambda: sum(c.outstanding for c in engine.statistics().clients) == 4)
        finally:
            _kill(engine)
        _, late = wait(calls, SOON)
        assert not late
    assert all(isinstance(call.exception(), EngineClosed) for call in calls)


def test_calls_of_many_threads_after_the_end_do_not_wait_in_line(start):
    """Each waits for an engine to come back as long as it was told, but all at the same time."""
    engine = start()
    with connect(str(engine.address), wait=1.0) as other:
        other.predict(row(Verb.ANSWER)[None])
        _kill(engine)
        began = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(other.predict, row(Verb.ANSWER)[None]) for _ in range(8)]
            wait(calls, 15)
        assert time.monotonic() - began < 1.0 + SOON
        assert all(isinstance(call.exception(), EngineClosed) for call in calls)


def test_a_client_finds_the_successor(start):
    engine = start(name="same")
    with connect(str(engine.address), wait=10) as other:
        assert other.predict(row(Verb.ANSWER, 0, 1)[None])[0, 0] == 8
        _kill(engine)
        gone(*[pid for pid in [engine._process.pid] if pid])
        engine.close()
        start(name="same")
        assert other.predict(row(Verb.ANSWER, 0, 2)[None])[0, 0] == 15


def test_the_name_of_a_killed_engine_is_free_at_once(start):
    for _ in range(3):
        engine = start(name="same")
        _kill(engine)
        gone(engine._process.pid)
        start(name="same").close()
        engine.close()


def test_a_client_that_is_closed_needs_no_collector_to_free_its_memory(start):
    engine = start()
    here = os.getpid()
    before = leftovers.mappings(here)
    gc.collect()
    gc.disable()
    try:
        with connect(str(engine.address)) as other:
            other.predict(row(Verb.ANSWER)[None])
            assert leftovers.mappings(here) > before
        assert leftovers.mappings(here) == before, "unmapped by close"
        with connect(str(engine.address), wait=0.1) as other:
            other.predict(row(Verb.ANSWER)[None])
            _kill(engine)
            gone(engine._process.pid)
            with contextlib.suppress(EngineClosed):
                other.predict(row(Verb.ANSWER)[None])
        engine.close()
        assert leftovers.mappings(here) == before, "unmapped when the engine had gone"
    finally:
        gc.enable()


def test_an_engine_that_hangs_up_during_the_greeting_is_engine_closed(run_folder):
    """Whatever happens between connecting and the welcome, callers see `EngineClosed` only."""
    run_folder.mkdir(mode=0o700)
    path = run_folder / "rude.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(64)
        listener.settimeout(5)
        ends = threading.Event()

        def hang_up() -> None:
            while not ends.is_set():
                listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            for _ in range(300):
                with pytest.raises(EngineClosed):
                    Client(path, wait=0.0).connect()
        finally:
            ends.set()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as last:
                last.connect(str(path))
            thread.join(5)
    path.unlink()
