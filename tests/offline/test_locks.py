"""One writer for each output, whatever folder its manifest lies in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.errors import ConfigError
from penstock.offline.locks import sole_writer
from penstock.offline.merge import merge
from tests.conditions import until
from tests.offline.conftest import model
from tests.offline.jobs import begin, ended


@pytest.fixture
def first(place, x):
    """A job that writes `y.npy`, and goes on when the gate is opened."""
    np.save("x.npy", x)
    gate = place / "gate"
    job = begin(model("held"), "x.npy", "--out", "y.npy", OFFLINE_GATE=str(gate))
    try:
        until(Path(f"{gate}.reached").exists)
        yield job
    finally:
        job.kill()
        job.communicate()


def hidden() -> list[Path]:
    return [path for path in Path().iterdir() if path.name.startswith(".")]


def test_a_second_job_with_another_work_folder_is_refused(first, place, engine):
    Path("linked").symlink_to(place)
    for out in ("y.npy", "linked/y.npy"):
        with pytest.raises(ConfigError, match=f"another job writes .*process {first.pid}"):
            penstock.predict("scores", "x.npy", out, engine=engine, work="other", restart=True)
    assert penstock.predict("scores", "x.npy", "z.npy", engine=engine).written == 1000
    (place / "gate").touch()
    assert ended(first) == 0
    assert len(np.load("y.npy")) == 1000
    assert list(Path("other").iterdir()) == []
    assert hidden() == []


def test_a_merge_while_a_job_writes_the_output_is_refused(first, place, engine):
    for index in (1, 2):
        penstock.predict("scores", "x.npy", "y.npy", engine=engine, shard=f"{index}/2")
    with pytest.raises(ConfigError, match=f"another job writes .*process {first.pid}"):
        merge("y.npy")
    again = penstock.predict("scores", "x.npy", "y.npy", engine=engine, shard="1/2")
    assert again.computed == 0, "a shard does not write the output"
    (place / "gate").touch()
    assert ended(first) == 0
    assert merge("y.npy", restart=True).rows == 1000
    assert hidden() == []


def test_what_a_killed_job_leaves_locked_is_taken_over(first, engine):
    first.kill()
    first.communicate()
    assert Path(".y.npy.lock").exists()
    penstock.predict("scores", "x.npy", "y.npy", engine=engine, work="other")
    assert not Path(".y.npy.lock").exists()


_TAKE = """
import sys
from pathlib import Path
from penstock.errors import ConfigError
from penstock.offline.locks import sole_writer

got, there = 0, Path("there")
while got < 100:
    try:
        with sole_writer(Path("lock")):
            there.touch(exist_ok=False)
            there.unlink()
            got += 1
    except ConfigError as error:
        assert "another job" in str(error), error
"""


def test_two_never_have_it_though_it_is_removed_each_time(place):
    takers = [subprocess.Popen([sys.executable, "-c", _TAKE]) for _ in range(3)]
    try:
        assert [taker.wait(50) for taker in takers] == [0, 0, 0]
    finally:
        for taker in takers:
            taker.kill()
            taker.wait()
    assert list(place.iterdir()) == []


def test_it_tells_who_has_it(place):
    with sole_writer(place / "lock"):
        refused = pytest.raises(ConfigError, match=f"process {os.getpid()}")
        with refused, sole_writer(place / "lock"):
            pass
        assert (place / "lock").exists()
    assert list(place.iterdir()) == []
