"""What a model's code has started goes with its worker, in whatever session it hides."""

from __future__ import annotations

import os
import signal
import time

import pytest

from penstock import Engine, connect
from penstock.errors import ModelLoadError
from tests.faults import leftovers
from tests.faults.company import gone, healthy, worker_pids
from tests.faults.files import source, started
from tests.faults.models import FOREVER, Verb, row, rows
from tests.faults.waiting import eventually

_KINDS = range(4)  # plain, in a session of its own, daemons, one that ignores signals


def _families(folder) -> set[int]:
    return {
        pid
        for pid, command in leftovers.marked(str(folder)).items()
        if "sleep" in command or "trap" in command
    }


@pytest.fixture
def spawn(start, folder):
    """An engine whose worker has started other processes, of every kind; and their pids."""

    def spawn(**settings):
        engine = start(workers=1, **settings)
        engine.predict(rows(*(row(Verb.SPAWN, kind) for kind in _KINDS)))
        return engine, eventually(lambda: len(_families(folder)) >= 5 and _families(folder))

    return spawn


def test_when_the_worker_is_killed(spawn, folder):
    engine, family = spawn()
    (worker,) = worker_pids(engine)
    os.kill(worker, signal.SIGKILL)
    gone(worker, *family, seconds=5)
    eventually(lambda: not _families(folder), 5, "what they have started meanwhile is gone, too")
    healthy(engine)
    assert engine.predict(row(Verb.ANSWER, 0, 1)[None])[0, 0] == 8


def test_when_the_worker_hangs_and_is_replaced(spawn):
    engine, family = spawn(run_timeout=0.4)
    engine.submit(row(Verb.SLEEP, FOREVER * 1000)[None]).exception(10)
    gone(*family, seconds=5)


def test_when_the_engine_is_closed(spawn):
    engine, family = spawn()
    engine.close()
    assert not any(map(leftovers.alive, family)), "gone when close returns"


def test_when_the_engine_is_told_to_end(spawn):
    engine, family = spawn()
    os.kill(engine.statistics().pid, signal.SIGTERM)
    gone(*family, seconds=5)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_when_the_engine_is_killed(spawn, busy):
    engine, family = spawn()
    (worker,) = worker_pids(engine)
    if busy:
        engine.submit(row(Verb.LOOP, 7)[None])
        started(7)
    os.kill(engine.statistics().pid, signal.SIGKILL)
    gone(worker, *family, seconds=5)


def test_when_the_engine_is_killed_each_time(start, folder, run_folder):
    """Whichever of a worker's threads hears of it first, nothing remains."""
    for _ in range(6):
        engine = start(workers=2)
        for _ in range(4):
            engine.predict(row(Verb.SPAWN, 1)[None])
        pids = worker_pids(engine)
        os.kill(engine.statistics().pid, signal.SIGKILL)
        gone(*pids, *_families(folder), seconds=5)
        eventually(lambda: not list(run_folder.iterdir()), 5, "the files are swept")


def test_when_the_engine_and_its_worker_are_killed(spawn):
    """First the worker: what it had is the engine's to end, and the engine has a moment for it."""
    engine, family = spawn()
    (worker,) = worker_pids(engine)
    os.kill(worker, signal.SIGKILL)
    gone(*family, seconds=5)
    os.kill(engine.statistics().pid, signal.SIGKILL)


def test_when_the_creator_is_killed(peer, run_folder, folder):
    creator = peer("own", run_folder, source("act"), 1)
    address, engine, workers = creator.says()
    with connect(address) as client:
        client.predict(rows(*(row(Verb.SPAWN, kind) for kind in _KINDS)))
    family = eventually(lambda: len(_families(folder)) >= 5 and _families(folder))
    creator.kill()
    gone(engine, *workers, *family)


def test_when_loading_takes_too_long(run_folder, folder):
    engine = Engine(source("NeverLoadsWithChildren"), folder=str(run_folder), load_timeout=1)
    with pytest.raises(ModelLoadError):
        engine.start()
    eventually(lambda: not _families(folder), 5)


def test_a_model_may_use_subprocesses_of_its_own(start):
    """Those that end by themselves are the model's: the engine takes none of them away."""
    engine = start("UsesSubprocesses", workers=1)
    until = time.monotonic() + 2.5  # longer than the engine takes between its rounds
    while time.monotonic() < until:
        assert engine.predict(row(Verb.ANSWER, 0, 1)[None])[0].tolist() == [0, 0]
