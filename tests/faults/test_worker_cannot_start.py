"""A model that cannot be loaded: `ModelLoadError` with the reason, at once, and no restart loop."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock import Engine, Model, connect
from penstock.errors import ModelLoadError
from tests.faults import leftovers
from tests.faults.company import healthy, worker_pids
from tests.faults.files import lines, source, started
from tests.faults.models import Verb, row
from tests.faults.waiting import eventually

_CONSTRUCTORS = {
    "Raises": "RuntimeError: the weights are missing",
    "RaisesAtLength": "RuntimeError: too long",
    "Unprintable": "Silent",
    "Exits": "SystemExit: enough",
    "ExitsHard": "exited with code 7",
    "KillsItself": "killed by SIGKILL",
    "Crashes": "killed by SIGSEGV",
    "StopsItself": "stopped",
    "RaisesWithThread": "RuntimeError: the weights are missing",
    "RaisesWithHook": "RuntimeError: the weights are missing",
    "RaisesWithChildren": "RuntimeError: the weights are missing",
}


@pytest.mark.parametrize("name", _CONSTRUCTORS)
def test_a_constructor_that_fails(start, name):
    began = time.monotonic()
    with pytest.raises(ModelLoadError, match=_CONSTRUCTORS[name]):
        start(name)
    assert time.monotonic() - began < 6
    assert len(lines("loads")) == 1, "tried once"


def test_the_remote_traceback_is_the_cause(start):
    with pytest.raises(ModelLoadError) as caught:
        start("Raises")
    assert "in __init__" in str(caught.value.__cause__)


def test_a_constructor_that_takes_too_long(start):
    with pytest.raises(ModelLoadError, match=r"more than 0\.6 s"):
        start("NeverLoads", load_timeout=0.6)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("no_such_module_anywhere:function", "no module 'no_such_module_anywhere'"),
        (source("no_such_function"), "no_such_function"),
        (source("not_callable"), "cannot be called"),
        ("/nowhere/at/all.py:function", "no file"),
        ("words without a colon", "expected"),
        (f"{os.path.abspath(__file__)}:imports_of_this_file_fail", "imports_of_this_file_fail"),
    ],
)
def test_a_source_that_leads_nowhere(start, model, reason):
    with pytest.raises(ModelLoadError, match=reason):
        start(Model(model, name="model"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import not_installed_here", "not_installed_here"),
        ("def function(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise KeyboardInterrupt", "ended while it loaded|KeyboardInterrupt"),
    ],
)
def test_a_module_that_cannot_be_imported(start, folder, text, reason):
    (folder / "broken.py").write_text(text)
    with pytest.raises(ModelLoadError, match=reason):
        start(f"{folder / 'broken.py'}:function")


def test_one_model_of_two_cannot_be_loaded(start):
    with pytest.raises(ModelLoadError, match=r"'bad'.*weights are missing"):
        start({"good": source("act"), "bad": source("Raises")})


def test_one_worker_of_two_cannot_load(start):
    began = time.monotonic()
    with pytest.raises(ModelLoadError, match="only one of me"):
        start("RaisesInSecondWorker", workers=2)
    assert time.monotonic() - began < 6


def test_a_worker_killed_from_outside_while_it_loads(run_folder):
    engine = Engine(source("NeverLoads"), folder=str(run_folder), load_timeout=20)
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(engine.start)
        leftovers.kill(started(0))
        with pytest.raises(ModelLoadError, match="SIGKILL"):
            starting.result(10)


def test_a_client_that_waits_for_the_engine_hears_the_reason(start, run_folder):
    """Whoever connects while the models are loading gets the reason too, not a time-out."""
    engine = Engine(source("NeverLoads"), folder=str(run_folder), load_timeout=1)
    with ThreadPoolExecutor(2) as pool:
        starting = pool.submit(engine.start)
        started(0)
        connecting = pool.submit(connect, str(engine.address), wait=10)
        for future in (starting, connecting):
            with pytest.raises(ModelLoadError, match="more than 1 s"):
                future.result(15)


def test_a_constructor_that_fails_on_a_restart_recovers_when_it_can(start, folder):
    engine = start("RaisesWhileBroken", workers=1, restarts=100)
    (folder / "broken").touch()
    os.kill(worker_pids(engine)[0], signal.SIGKILL)
    waiting = engine.submit(row(Verb.ANSWER, 0, 1)[None])
    eventually(lambda: len(lines("loads")) >= 3, 15, "two vain attempts")
    assert not engine.statistics().healthy
    (folder / "broken").unlink()
    assert waiting.result(20)[0, 0] == 8
    healthy(engine)


def test_a_constructor_that_fails_sometimes(start):
    engine = start("RaisesSometimes", workers=1, restarts=100)
    for _ in range(2):
        os.kill(worker_pids(engine)[0], signal.SIGKILL)
        assert engine.predict(row(Verb.ANSWER, 0, 1)[None])[0, 0] == 8
    assert len(lines("loads")) == 7
    assert engine.statistics().deaths == 6


def test_a_constructor_that_fails_ever_after_does_not_loop(start, folder):
    engine = start("RaisesWhileBroken", workers=1, restarts=2, restart_refill=60)
    (folder / "broken").touch()
    os.kill(worker_pids(engine)[0], signal.SIGKILL)
    waiting = engine.submit(row(Verb.ANSWER, 0, 1)[None])
    error = waiting.exception(20)
    assert type(error).__name__ == "NoWorkers"
    assert "broken for now" in str(error), "the reason is in the message"
    assert len(lines("loads")) == 1 + 2


def test_a_thread_of_the_models_does_not_outlive_it(start):
    engine = start("StartsThread")
    (worker,) = worker_pids(engine)
    assert engine.predict(row(Verb.ANSWER, 0, 1)[None])[0, 0] == 8
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 8
    assert not leftovers.alive(worker)
