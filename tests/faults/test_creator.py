"""An engine ends with the process that made it, unless it was made to belong to nobody."""

from __future__ import annotations

import os
import signal

import pytest

from penstock import EngineConfig, connect
from penstock.config import models_of
from penstock.engine.owner import start_engine
from penstock.errors import ConfigError, EngineClosed
from tests.faults import leftovers
from tests.faults.company import gone
from tests.faults.files import source, started
from tests.faults.models import FOREVER, Verb, row
from tests.faults.waiting import eventually


@pytest.mark.parametrize("way", ["killed", "leaves"])
def test_the_engine_and_its_workers_go_with_it(peer, run_folder, way):
    creator = peer("own", run_folder, source("act"), 2)
    address, engine, workers = creator.says()
    with connect(address) as client:
        pending = client.submit(row(Verb.WAIT, 1)[None])
        started(1)
        if way == "killed":
            creator.kill()
        else:
            creator.tell("leave")
            creator.wait()
        assert isinstance(pending.exception(6), EngineClosed)
    gone(engine, *workers)
    eventually(lambda: not list(run_folder.iterdir()))


def test_it_goes_also_when_its_worker_hangs(peer, run_folder):
    creator = peer("own", run_folder, source("act"), 1)
    address, engine, workers = creator.says()
    with connect(address) as client:
        pending = client.submit(row(Verb.SLEEP, FOREVER * 1000)[None])
        eventually(lambda: client.statistics().workers[0].inflight)
        creator.kill()
        assert isinstance(pending.exception(6), EngineClosed)
    gone(engine, *workers)


def test_killed_at_the_same_moment_as_the_engine(peer, run_folder):
    creator = peer("own", run_folder, source("act"), 2)
    _, engine, workers = creator.says()
    leftovers.kill(engine)
    creator.kill()
    gone(engine, *workers)
    eventually(lambda: not list(run_folder.iterdir()))


def test_an_engine_of_nobody_stays(peer, run_folder):
    creator = peer("up", run_folder, source("act"), "free")
    engine = creator.says()
    creator.kill()
    address = str(run_folder / "free.sock")
    with connect(address) as client:
        assert client.predict(row(Verb.ANSWER, 0, 1)[None])[0, 0] == 8
        (worker,) = client.statistics().workers
        client.stop_engine()
        gone(engine, worker.pid)
    eventually(lambda: not list(run_folder.iterdir()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_engine_of_nobody_ends_by_a_signal(run_folder, number):
    config = EngineConfig(name="free", folder=str(run_folder), workers=2)
    with start_engine(models_of(source("act")), config, owner=None) as process:
        with connect(str(run_folder / "free.sock")) as client:
            workers = [worker.pid for worker in client.statistics().workers]
        os.kill(process.pid, number)
        assert process.wait(5) == 0
    gone(*workers)
    assert list(run_folder.iterdir()) == []


def test_the_name_of_a_running_engine_is_taken(start, run_folder):
    engine = start(name="mine")
    with pytest.raises(ConfigError, match="already runs"):
        start(name="mine")
    assert engine.predict(row(Verb.ANSWER, 0, 1)[None])[0, 0] == 8


def test_two_engines_side_by_side(start):
    first, second = start(), start()
    os.kill(first.statistics().pid, signal.SIGKILL)
    assert second.predict(row(Verb.ANSWER, 0, 1)[None])[0, 0] == 8
