"""An engine that may open no more files: its clients have their part, and nothing ends of it."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from penstock import connect
from penstock.errors import EngineClosed, NoWorkers, Overloaded
from penstock.transport import messages as m
from penstock.transport import rendezvous, segment
from penstock.transport.channel import Closed
from tests.faults import leftovers
from tests.faults.company import healthy, worker_pids
from tests.faults.files import source
from tests.faults.models import Verb, answer_to, row
from tests.faults.raw import RawClient
from tests.faults.waiting import eventually

_FEW = 256


def _with_few() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FEW, _FEW))


@contextlib.contextmanager
def no_more(pid):
    """Meanwhile this process cannot open any more files than it has open."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    numbers = leftovers.descriptors(pid)
    most = next(number for number in range(before[0]) if number not in numbers)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def _cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        ticks = file.read().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def engine_of_another(peer, run_folder):
    """An engine whose owner may open few files: its address, its pid and those of its workers."""
    return peer("own", run_folder, source("act"), 1, preexec_fn=_with_few).says()


def test_one_that_connects_too_often(engine_of_another, peer):
    address, engine, (worker,) = engine_of_another
    asker = peer("ask", address)
    assert asker.says() == "asking"
    with contextlib.ExitStack() as stack:
        for _ in range(140):
            stack.enter_context(rendezvous.dial(Path(address)))
        with pytest.raises(EngineClosed, match=r"this process has \d+ connections.*ulimit -n"):
            connect(address)
        assert len(leftovers.descriptors(engine)) < _FEW - 64
        newcomer = peer("ask", address)
        assert newcomer.says() == "asking"
        os.kill(worker, signal.SIGKILL)
        asked = [asker, newcomer]
        for one in asked:
            one.tell("end")
            counts = one.says()
            assert counts.pop("right") > 0
            assert counts == {}


def test_ones_that_connect_too_often_together(engine_of_another, peer):
    """What is left to others is said to them: they are refused, not left waiting."""
    address, engine, _ = engine_of_another
    crowd = [peer("crowd", address, 40) for _ in range(3)]
    for one in crowd:
        assert one.says() == "connected"
    with pytest.raises(EngineClosed, match=r"it has \d+ connections.*ulimit -n"):
        connect(address)
    assert len(leftovers.descriptors(engine)) < _FEW - 64


def test_ones_that_bring_too_much_memory(engine_of_another, peer):
    address, _, (worker,) = engine_of_another
    asker = peer("ask", address)
    assert asker.says() == "asking"
    with RawClient(Path(address)) as hostile:
        with contextlib.suppress(Closed):
            for number in range(1, 250):
                descriptor = segment.create(4096)
                try:
                    hostile.send(m.AddSegment(number, 4096), descriptor)
                finally:
                    os.close(descriptor)
        os.kill(worker, signal.SIGKILL)
        assert "no descriptor left for its clients" in hostile.why_closed()
    asker.tell("end")
    counts = asker.says()
    assert counts.pop("right") > 0
    assert counts == {}


def test_nobody_can_connect_for_a_while(peer, run_folder, folder):
    """They wait, the engine does not run in circles meanwhile, and it says so once."""
    with (folder / "log").open("wb") as log:
        owner = peer("own", run_folder, source("act"), 1, stderr=log)
    address, engine, _ = owner.says()
    x = row(Verb.ANSWER, 0, 1)[None]
    with connect(address) as client, contextlib.ExitStack() as stack:
        client.predict(x)  # from here on it has all that it needs
        with no_more(engine):
            dialled = [stack.enter_context(RawClient(Path(address), hello=False)) for _ in range(5)]
            eventually(lambda: b"nobody can connect" in (folder / "log").read_bytes())
            began, used = time.monotonic(), _cpu_seconds(engine)
            while time.monotonic() < began + 2.5:
                assert (client.predict(x, deadline=10)[:, 0] == answer_to(x)).all()
                time.sleep(0.1)
            used = _cpu_seconds(engine) - used
            assert used < 0.15 * (time.monotonic() - began)
        for one in dialled:
            one.send(m.Hello(m.VERSION, os.getpid(), "late"))
            one.until(m.State)
    assert (folder / "log").read_bytes().count(b"nobody can connect") == 1


def test_a_worker_cannot_be_started_for_a_while(start):
    engine = start(workers=1, restarts=100)
    pid = engine.statistics().pid
    engine.predict(row(Verb.ANSWER)[None])
    with no_more(pid):
        os.kill(worker_pids(engine)[0], signal.SIGKILL)
        waiting = engine.submit(row(Verb.ANSWER, 0, 1)[None])
        eventually(lambda: engine.statistics().deaths >= 3, 15, "two vain attempts")
        assert not waiting.done()
    assert waiting.result(20)[0, 0] == 8
    healthy(engine)
    assert engine.statistics().pid == pid


def test_a_worker_cannot_be_started_ever_after(start):
    engine = start(workers=1, restarts=2, restart_refill=60)
    engine.predict(row(Verb.ANSWER)[None])
    with no_more(engine.statistics().pid):
        os.kill(worker_pids(engine)[0], signal.SIGKILL)
        waiting = engine.submit(row(Verb.ANSWER, 0, 1)[None])
        error = waiting.exception(20)
        assert isinstance(error, NoWorkers)
        assert "no process can be started for worker 0" in str(error)
        assert "Too many open files" in str(error), "the reason is in the message"


def test_no_worker_can_be_started_at_all(peer, run_folder):
    kind, text = peer("own_in_vain", run_folder, source("act"), 14).says()
    assert kind == "ModelLoadError"
    assert "no process can be started for worker 0" in text
    assert "Too many open files" in text


def test_an_answer_that_the_engine_cannot_take(start):
    """The rows fail, whoever was asked is not blamed."""
    engine = start("inflate", workers=1)
    x = np.arange(3 * 8).reshape(3, 8)
    (worker,) = worker_pids(engine)
    engine.predict(x.astype(np.int8))  # for which it brings memory
    with no_more(engine.statistics().pid):
        error = engine.submit(x).exception(10)
    assert isinstance(error, Overloaded)
    assert "ulimit -n" in str(error)
    assert (engine.predict(x) == x[:, :1]).all()
    assert engine.statistics().deaths == 0
    assert worker_pids(engine) == [worker]
