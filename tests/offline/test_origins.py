"""A model, a function or an input that is replaced in the middle of a job: never rows of both."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import psutil
import pytest

import penstock
from penstock.errors import ConfigError
from penstock.offline import origins
from penstock.offline.manifest import Manifest
from tests.conditions import until
from tests.offline.conftest import model
from tests.offline.jobs import begin, ended, recorded

_HELD = """
import time
from pathlib import Path

place = Path({place!r})

def f(x):
    with open(place / "given", "ab", buffering=0) as file:
        file.write(b"x")
        few = file.tell() < 9
    while not few and not (place / "gate").exists():
        time.sleep(0.002)
    return x[:, 0] * 0 + {value}
"""
_SLOW_TO_LOAD = """
import time
from pathlib import Path

place = Path({place!r})
(place / "loading").touch()
while not (place / "gate").exists():
    time.sleep(0.002)

def f(x):
    return x[:, 0] * 0 + {value}
"""


def write(text: str, place: Path, value: int) -> None:
    Path("new.py").write_text(text.format(place=str(place), value=value))
    os.replace("new.py", "m.py")


def workers(pid: int) -> list[psutil.Process]:
    below = psutil.Process(pid).children(recursive=True)
    found = [process for process in below if "penstock.worker" in process.cmdline()]
    assert found
    return found


def refused(job) -> str:
    _, told = job.communicate(timeout=40)
    assert job.returncode == 1, told
    assert "Traceback" not in told
    assert not Path("y.npy").exists()
    return told


def test_a_model_that_is_replaced_before_its_worker_dies(place, x):
    np.save("x.npy", x)
    write(_HELD, place, 1)
    arguments = ("m.py:f", "x.npy", "--chunk", 64, "--max-batch", 16, "--out", "y.npy")
    job = begin(*arguments)
    until(lambda: recorded("y.npy"))
    write(_HELD, place, 2)
    for worker in workers(job.pid):
        worker.kill()
    (place / "gate").touch()
    assert "the model changed while the job ran" in refused(job)
    again = begin(*arguments)
    _, told = again.communicate(timeout=40)
    assert "another model" in told
    write(_HELD, place, 1)
    assert ended(begin(*arguments)) == 0
    assert np.load("y.npy").tolist() == [1] * 1000


def test_a_model_that_is_replaced_while_it_is_loaded(place, x):
    np.save("x.npy", x)
    write(_SLOW_TO_LOAD, place, 1)
    job = begin("m.py:f", "x.npy", "--out", "y.npy")
    until(Path("loading").exists)
    write(_SLOW_TO_LOAD, place, 2)
    (place / "gate").touch()
    assert "the model changed while the job ran" in refused(job)
    assert ended(begin("m.py:f", "x.npy", "--out", "y.npy")) == 0  # nothing was done before
    assert np.load("y.npy").tolist() == [2] * 1000


def test_an_input_that_is_replaced(place, x, engine):
    np.save("x.npy", x)
    np.save("other.npy", x + 1)
    gate = place / "gate"
    arguments = (model("held_after_some"), "x.npy", "--chunk", 64, "--max-batch", 16)
    job = begin(*arguments, "--out", "y.npy", OFFLINE_GATE=str(gate))
    until(lambda: recorded("y.npy"))
    os.rename("x.npy", "kept.npy")
    os.rename("other.npy", "x.npy")
    gate.touch()
    assert "the input changed while the job ran" in refused(job)
    os.replace("kept.npy", "x.npy")
    assert ended(begin(*arguments, "--out", "y.npy", OFFLINE_GATE=str(gate))) == 0
    penstock.predict("scores", "x.npy", "z.npy", engine=engine)
    assert np.array_equal(np.load("y.npy"), np.load("z.npy"))


@pytest.fixture
def meanwhile(monkeypatch):
    """Do something once the fourth part is recorded."""

    def do(what):
        record = Manifest.record

        def recording(self, part, facts):
            record(self, part, facts)
            if part == 3:
                what()

        monkeypatch.setattr(Manifest, "record", recording)
        return lambda: monkeypatch.setattr(Manifest, "record", record)

    return do


def test_a_model_that_is_replaced_in_an_engine_that_others_have_too(place, x, meanwhile):
    np.save("x.npy", x)
    Path("m.py").write_text("def f(x):\n    return x[:, 0] * 0 + 1\n")
    with penstock.Engine(penstock.Model(str(place / "m.py:f"), max_batch=16)) as engine:

        def replace():
            Path("m.py").write_text("def f(x):\n    return x[:, 0] * 0 + 2\n")
            for worker in workers(engine.client.statistics().pid):
                worker.kill()

        meanwhile(replace)
        with pytest.raises(ConfigError, match="the model changed while the job ran"):
            penstock.predict("f", "x.npy", "y.npy", engine=str(engine.address), chunk=32)
    assert not Path("y.npy").exists()


@pytest.mark.parametrize("most", [0, -1])
def test_what_was_recorded_since_the_last_look_is_forgotten(
    place, x, engine, monkeypatch, meanwhile, most
):
    x[-1, 0] = -1
    np.save("x.npy", x)
    np.save("kept.npy", x)
    monkeypatch.setattr(origins, "_SHARE", 1e-9)  # as if looking took long

    def run(most=-1):
        return penstock.predict("picky", "x.npy", "y.npy", engine=engine, chunk=64, max_errors=most)

    stop = meanwhile(lambda: np.save("x.npy", x * 2))
    before = os.stat("x.npy")
    with pytest.raises(
        penstock.errors.PenstockError, match=r"max_errors|the input changed"
    ) as told:
        run(most)
    assert isinstance(told.value, ConfigError) == (most < 0)
    stop()
    assert not Path("y.npy").exists()
    np.save("x.npy", x)
    os.utime("x.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    report = run()
    assert (report.known, report.rows) == (32, 1000), "the first part came before any doubt"
    penstock.predict("picky", "kept.npy", "z.npy", engine=engine)
    assert np.array_equal(np.load("y.npy"), np.load("z.npy"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: os.utime("m.py"), ""),
        (lambda: Path("m.py").write_text("def f(x):\n    return x + x\n"), "the model changed"),
        (lambda: Path("to.py").write_text("def g(y):\n    return y\n"), "function on the outputs"),
        (lambda: Path("x.npy").unlink(), ""),
        (lambda: Path("z.npy").touch(), ""),
    ],
)
def test_only_what_rows_are_made_of_counts(place, x, meanwhile, change, message):
    np.save("x.npy", x)
    Path("m.py").write_text("def f(x):\n    return x + 1\n")
    Path("to.py").write_text("def g(y):\n    return -y\n")
    meanwhile(change)

    def run():
        return penstock.predict("m.py:f", ".", "y.npy", chunk=500, max_batch=50, map="to.py:g")

    if message:
        with pytest.raises(ConfigError, match=message):
            run()
        assert not Path("y.npy").exists()
    else:
        assert run().written == 1000
