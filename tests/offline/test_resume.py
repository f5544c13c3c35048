"""Killed at any instant, also between the two phases: the same bytes, and little done twice.

`PENSTOCK_KILLS` says how often the job is killed at random moments; `make kills` says 30.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import ConfigError
from penstock.offline import parts
from tests.conditions import is_alive, until
from tests.data.pictures import encoded, scene
from tests.offline.conftest import model
from tests.offline.jobs import begin, ended, recorded

KILLS = int(os.environ.get("PENSTOCK_KILLS", "4"))
ROWS, CHUNK = 2000, 128


def counted(place: Path) -> int:
    return sum(map(int, (place / "count").read_text().split()))


def kill_and_go_on(arguments: list[object], out: str, kills: int, **environment: str) -> int:
    """Kill it again and again, each time after it has got a little further; returns how often."""
    chance = random.Random(8)
    for kill in range(kills):
        process = begin(*arguments, **environment)
        further = recorded(out) + chance.randint(0, 2)
        until(lambda p=process, f=further: p.poll() is not None or recorded(out) >= f, 40)
        time.sleep(chance.random() * 0.05)  # somewhere in a part, not just after one
        process.kill()
        process.communicate()
        if process.returncode == 0:
            return kill
    ended(begin(*arguments, **environment))
    return kills


@pytest.mark.timeout(60 + 10 * KILLS)
def test_killed_at_random_moments(place, monkeypatch):
    np.save("x.npy", np.random.default_rng(2).random((ROWS, 5)))
    settings_ = ("--chunk", CHUNK, "--max-batch", 16)
    environment = {"OFFLINE_COUNT": str(place / "count"), "OFFLINE_SLEEP": "0.002"}
    arguments = [model("counted"), "x.npy", "--out", "y.parquet", *settings_]
    kills = kill_and_go_on(arguments, "y.parquet", KILLS, **environment)
    assert kills, "it was done before it could be killed"
    assert counted(place) <= ROWS + kills * CHUNK
    monkeypatch.setenv("OFFLINE_COUNT", str(place / "other"))
    penstock.predict(model("counted"), "x.npy", "z.parquet", chunk=CHUNK, max_batch=16)
    assert Path("y.parquet").read_bytes() == Path("z.parquet").read_bytes()
    assert not Path("y.parquet.parts").exists()


@pytest.mark.timeout(60 + 10 * KILLS)
def test_killed_with_loaders(place):
    Path("images").mkdir()
    for n in range(300):
        data = b"" if n % 50 == 7 else encoded(scene(20 + n % 7, 30), "PNG")
        Path(f"images/{n}.png").write_bytes(data)
    environment = {"OFFLINE_COUNT": str(place / "count"), "OFFLINE_SLEEP": "0.01"}
    settings_ = ("--size", 8, "--chunk", 32, "--max-batch", 8, "--loaders", 2)
    arguments = [model("counted"), "images", *settings_, "--out"]
    kills = kill_and_go_on([*arguments, "y.jsonl"], "y.jsonl", min(KILLS, 10) // 2, **environment)
    assert kills
    assert counted(place) <= 300 + kills * 2 * 32
    assert ended(begin(*arguments, "z.jsonl", **environment)) == 3
    assert Path("y.jsonl").read_bytes() == Path("z.jsonl").read_bytes()
    side = Path("y.jsonl.errors.jsonl").read_bytes()
    assert side == Path("z.jsonl.errors.jsonl").read_bytes()
    assert side.count(b"\n") == 6


def kill_at_any_time(arguments: list[object], kills: int, **environment: str) -> int:
    """Kill it at moments that are spread over all that a whole run takes, from its start to its
    end; when it is done before, let it begin anew. Returns how often it was done.

    The output is `y.…`; `z.…` is that of a run that nobody disturbs, which tells how long it takes.
    """
    began = time.monotonic()
    ended(begin(*arguments, "z.parquet", **environment), 100)
    whole = time.monotonic() - began
    chance = random.Random(4)
    moments = [(kill + chance.random()) / kills * whole for kill in range(kills)]
    chance.shuffle(moments)
    jobs = 1
    while moments:
        process = begin(*arguments, "y.parquet", **environment)
        try:
            process.communicate(timeout=moments[-1])
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            moments.pop()
            continue
        assert process.returncode == 0
        assert Path("y.parquet").read_bytes() == Path("z.parquet").read_bytes()
        for name in ("y.parquet", "y.parquet.manifest.jsonl"):
            Path(name).unlink()
        jobs += 1
    ended(begin(*arguments, "y.parquet", **environment), 100)
    assert Path("y.parquet").read_bytes() == Path("z.parquet").read_bytes()
    left = {path.name for path in Path().glob("*y.parquet*")}
    assert left == {"y.parquet", "y.parquet.manifest.jsonl"}
    return jobs


@pytest.mark.timeout(60 + 10 * KILLS)
def test_killed_at_any_time_from_start_to_end(place):
    np.save("x.npy", np.random.default_rng(2).random((ROWS, 5)))
    environment = {"OFFLINE_COUNT": str(place / "count"), "OFFLINE_SLEEP": "0.004"}
    arguments = [model("counted"), "x.npy", "--chunk", CHUNK, "--max-batch", 16, "--out"]
    jobs = kill_at_any_time(arguments, KILLS, **environment)
    assert counted(place) <= (jobs + 1) * ROWS + KILLS * CHUNK


@pytest.mark.skipif(KILLS < 30, reason="a minute or more; make kills")
@pytest.mark.timeout(60 + 60 * KILLS)
def test_killed_at_any_time_with_a_keras_model(place):
    np.save("x.npy", np.random.default_rng(2).random((ROWS, 8, 8, 3)).astype(np.float32))
    settings_ = ("--chunk", 64, "--max-batch", 8, "--compile", "frozen")
    kill_at_any_time([model("network"), "x.npy", *settings_, "--out"], KILLS // 2)


def killed_at(place: Path, where: str, engine: str) -> None:
    """Run a job in a process that kills itself there, the third time."""
    script = f"""
        import os, signal, penstock
        from penstock.offline import filed, manifest, parts

        times = 0

        def die():
            global times
            times += 1
            if times == 3 or {where!r} == "done":
                os.kill(os.getpid(), signal.SIGKILL)

        publish, record = parts.PartStore.publish, manifest.Manifest.record
        if {where!r} == "written":
            parts.PartStore.publish = lambda *given: (die(), publish(*given))
        elif {where!r} == "published":
            manifest.Manifest.record = lambda *given: (die(), record(*given))
        elif {where!r} == "recorded":
            manifest.Manifest.record = lambda *given: (record(*given), die())
        else:
            manifest.Manifest.finish = lambda *given: die()
        penstock.predict("picky", "x.npy", "y.npy", engine={engine!r}, chunk=96)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=40, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("where", ["written", "published", "recorded", "done"])
def test_killed_between_the_phases(place, x, engine, where):
    x[17, 0] = -1
    np.save("x.npy", x)
    killed_at(place, where, engine)
    report = penstock.predict("picky", "x.npy", "y.npy", engine=engine, chunk=96)
    assert report.known == {"written": 96, "published": 96, "recorded": 144, "done": 1000}[where]
    assert (report.rows, report.failed) == (1000, 1)
    penstock.predict("picky", "x.npy", "z.npy", engine=engine, chunk=96)
    for suffix in (".npy", ".keys.npy", ".npy.errors.jsonl"):
        assert Path(f"y{suffix}").read_bytes() == Path(f"z{suffix}").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, engine):
    """A job as it is just before its end: its output, its manifest, and its parts."""
    folder = tmp_path_factory.mktemp("whole")
    x = np.random.default_rng(1).random((200, 3))
    x[[0, 50, 51], 0] = -1
    np.save(folder / "x.npy", x)
    out = str(folder / "y.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts.PartStore, "remove", lambda self: None)
        penstock.predict("picky", str(folder / "x.npy"), out, engine=engine, chunk=64)
    return folder


@settings(max_examples=25)
@given(data=st.data())
def test_resumed_from_anywhere(whole, engine, tmp_path_factory, data):
    place = tmp_path_factory.mktemp("again")
    out = place / "y.jsonl"
    manifest = (whole / "y.jsonl.manifest.jsonl").read_bytes()
    *lines, _ = manifest.splitlines(keepends=True)  # without the end
    kept = b"".join(line for line in lines if b'"part"' not in line[:8] or data.draw(st.booleans()))
    cut = data.draw(st.integers(0, len(kept)))
    Path(f"{out}.manifest.jsonl").write_bytes(kept[:cut])
    shutil.copytree(whole / "y.jsonl.parts", f"{out}.parts")
    junk = Path(f"{out}.parts", f".part-{data.draw(st.integers(0, 6)):07d}.jsonl.partial")
    junk.write_bytes(data.draw(st.binary(max_size=20)))
    penstock.predict("picky", str(whole / "x.npy"), str(out), engine=engine, chunk=64)
    assert out.read_bytes() == (whole / "y.jsonl").read_bytes()
    side = Path(f"{out}.errors.jsonl").read_bytes()
    assert side == (whole / "y.jsonl.errors.jsonl").read_bytes()
    again = penstock.predict("picky", str(whole / "x.npy"), str(out), engine=engine, chunk=64)
    assert (again.rows, again.computed) == (200, 0)


def test_no_more_than_a_chunk_is_done_and_not_recorded(place, monkeypatch):
    np.save("x.npy", np.random.default_rng(2).random((512, 5)))
    monkeypatch.setenv("OFFLINE_COUNT", str(place / "count"))
    write, most = parts.PartStore.write, []

    def slow(self, part, content, piece):
        allowed = min(part * 64 + CHUNK, 512)
        until(lambda: (place / "count").exists() and counted(place) >= allowed)
        time.sleep(0.05)  # in which one that is allowed too much would go on
        most.append(counted(place) - part * 64)
        return write(self, part, content, piece)

    monkeypatch.setattr(parts.PartStore, "write", slow)
    penstock.predict(model("counted"), "x.npy", "y.npy", chunk=CHUNK, max_batch=16)
    assert (len(most), max(most)) == (8, CHUNK)


def test_a_second_job_on_the_same_output_is_refused(place, x):
    np.save("x.npy", x)
    gate = place / "gate"
    first = begin(model("held"), "x.npy", "--out", "y.npy", OFFLINE_GATE=str(gate))
    until(Path(f"{gate}.reached").exists)
    with pytest.raises(ConfigError, match=f"another job writes this output.*process {first.pid}"):
        penstock.predict(model("held"), "x.npy", "y.npy")
    gate.touch()
    assert ended(first) == 0
    assert len(np.load("y.npy")) == 1000


def test_a_loader_that_is_killed_is_replaced(place):
    Path("images").mkdir()
    for n in range(64):
        Path(f"images/{n}.png").write_bytes(encoded(scene(20, 30), "PNG"))
    gate = place / "gate"
    arguments = (model("held"), "images", "--size", 8, "--chunk", 16, "--max-batch", 8, "--out")
    job = begin(*arguments, "y.jsonl", OFFLINE_GATE=str(gate))
    until(Path(f"{gate}.reached").exists)
    children = psutil.Process(job.pid).children()
    (loader,) = [child for child in children if "penstock.offline.loader" in child.cmdline()]
    loader.kill()
    until(lambda: not is_alive(loader.pid))
    gate.touch()
    assert ended(job) == 0
    assert ended(begin(*arguments, "z.jsonl", OFFLINE_GATE=str(gate))) == 0
    assert Path("y.jsonl").read_bytes() == Path("z.jsonl").read_bytes()


def test_an_engine_that_is_killed_ends_the_job_and_it_goes_on(place, x):
    np.save("x.npy", x)
    environment = {"OFFLINE_COUNT": str(place / "count"), "OFFLINE_SLEEP": "0.02"}
    arguments = (model("counted"), "x.npy", "--chunk", 64, "--max-batch", 16, "--out", "y.npy")
    job = begin(*arguments, **environment)
    until(lambda: recorded("y.npy"))
    (engine,) = psutil.Process(job.pid).children()
    engine.kill()
    _, told = job.communicate(timeout=40)
    assert job.returncode == 1
    assert told.startswith("penstock: error: ")
    assert ended(begin(*arguments, **environment)) == 0
    assert len(np.load("y.npy")) == 1000
    assert counted(place) <= 1000 + 64
