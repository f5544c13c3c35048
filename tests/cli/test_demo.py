from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from rich.console import Console

import penstock
from penstock.cli.demo import machine
from penstock.cli.demo.child import Child, end_all, hear
from penstock.cli.demo.crowd import Crowd, Task
from penstock.cli.demo.machine import Need
from penstock.cli.demo.progress import Lines
from penstock.cli.demo.records import (
    COMPILED,
    PENSTOCK,
    PREDICT,
    Agreement,
    Comparison,
    Machine,
    Network,
    Sharing,
    Way,
    Work,
)
from penstock.cli.demo.show import bar, sentences, show
from penstock.errors import PenstockError, RemoteTraceback

LIMIT = 200

# ── a real run, with two processes ──────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def real(shared_shop, tmp_path_factory):
    """What `penstock demo --json` told, all that it wrote to stderr, and where it had its files."""
    folder = tmp_path_factory.mktemp("temporary")
    done = subprocess.run(
        shared_shop.command("demo", "--seconds", "0.5", "--processes", "2", "--json"),
        env={**shared_shop.environment, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(told=json.loads(done.stdout), stderr=done.stderr, folder=folder)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
def test_the_demo_measures_three_ways(real):
    told = real.told
    assert [way["name"] for way in told["ways"]] == [PREDICT, COMPILED, PENSTOCK]
    assert told["work"]["processes"] == told["work"]["processes_wanted"] == 2
    assert [way["processes"] for way in told["ways"]] == [2, 2, 4]
    assert [way["with_tensorflow"] for way in told["ways"]] == [2, 2, 1]
    for way in told["ways"]:
        assert way["answers_per_second"] == way["answers"] / 0.5 > 0
        assert 0 < way["p50_ms"] <= way["p99_ms"] < 10_000
        assert 0 < way["start_seconds"] < told["seconds"]
        assert 100 << 20 < way["memory_bytes"] < told["machine"]["memory_bytes"]
    assert sum(way["start_seconds"] + 0.5 for way in told["ways"]) < told["seconds"]


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
def test_the_demos_network_learns_and_is_asked_the_same_everywhere(real):
    network = real.told["network"]
    assert network["trained_on"] + network["held_out"] == 1797
    assert network["accuracy"] > 0.9
    for way in real.told["ways"]:
        agreement = way["agreement"]
        assert agreement["compared"] >= way["answers"]
        assert agreement["same_class"] == agreement["compared"]
        assert agreement["largest_difference"] <= real.told["work"]["tolerance"]


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
def test_the_demos_engine_started_without_a_cache(real):
    sharing = real.told["sharing"]
    assert sharing["mode"] in ("function", "frozen", "xla", "frozen-xla")
    assert 1 <= sharing["mean_batch"] <= 2
    assert sharing["milliseconds_by_batch"]["1"] > 0
    assert 0 < sharing["load_seconds"] < real.told["ways"][2]["start_seconds"]


@pytest.mark.slow
@pytest.mark.timeout(LIMIT)
def test_the_demo_tells_how_far_it_is_and_leaves_nothing(real):
    lines = real.stderr.splitlines()
    assert "  10/10 epochs" in lines
    assert lines.count("  2/2 ready") == 3
    assert lines.count("  0.5/0.5 s") == 3
    assert list(real.folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(shop, tmp_path_factory, number):
    folder = tmp_path_factory.mktemp("temporary")
    shop.environment["TMPDIR"] = str(folder)
    process = shop.begin("demo", "--seconds", "0.5")
    assert "training" in process.stderr.readline()
    command = psutil.Process(process.pid)
    while not (started := command.children(recursive=True)):
        assert process.poll() is None
    process.send_signal(number)
    _, told = process.communicate(timeout=40)
    assert process.returncode == 130
    assert "interrupted" in told
    _, left = psutil.wait_procs(started, timeout=10)  # one just begun dies with its parent
    assert not left
    assert list(folder.iterdir()) == []


# ── before any work ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("module", "name"), [("tensorflow", "TensorFlow"), ("sklearn", "scikit-learn")]
)
def test_says_what_to_install(shop, module, name):
    probe = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "import penstock.cli\nsys.argv = ['penstock', 'demo']\npenstock.cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe],
        env=shop.environment,
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("penstock: error: ")
    assert f"needs {name} for that: pip install 'penstock[cpu,demo]'" in line


def test_neither_the_command_nor_those_who_ask_import_tensorflow():
    probe = (
        "import sys, penstock.cli.demo.comparison, penstock.cli.demo.asker\n"
        "print({'tensorflow', 'keras', 'sklearn'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=40)
    assert done.stdout == "set()\n", done.stderr


def test_as_many_processes_as_have_room():
    need = Need(own=400, shared=300)
    assert machine.fitting(8, need, 10_000) == 8
    assert machine.fitting(8, need, 2_500) == 4
    assert machine.fitting(8, need, 100) == 1
    assert 0 < machine.available() < 1 << 50


# ── the crowd, with a function in place of the network ──────────────────────────────────────────


@pytest.fixture
def task(tmp_path):
    """Ten images, whose answers are twice the image."""
    images = np.random.default_rng(1).random((10, 4), np.float32)
    np.savez(tmp_path / "digits.npz", images=images, answers=2 * images)
    return Task(3, 0.2, tmp_path / "digits.npz", 10, tmp_path)


@pytest.fixture
def engine():
    with penstock.Engine("penstock.testing.models:double") as engine:
        yield engine


def test_a_crowd_asks_and_compares(task, engine):
    ready, seconds = [], []
    with Crowd(task, "penstock", str(engine.address)) as crowd:
        start = crowd.wait_ready(ready.append)
        way = crowd.measure("doubling", start, [], seconds.append)
        assert len(crowd.pids) == 3
    assert ready == [0, 1, 2, 3]
    assert seconds[-1] == 0.2
    assert way.start_seconds == start > 0
    assert (way.processes, way.with_tensorflow) == (3, 0)
    assert way.answers_per_second == pytest.approx(way.answers / 0.2)
    assert way.agreement.good
    assert way.agreement.compared >= way.answers > 0


def test_a_crowd_notices_wrong_answers(task, engine):
    with np.load(task.digits) as digits:
        images = digits["images"]
    np.savez(task.digits, images=images, answers=images)
    with Crowd(task, "penstock", str(engine.address)) as crowd:
        way = crowd.measure("doubling", crowd.wait_ready(lambda _: None), [], lambda _: None)
    assert not way.agreement.good
    assert way.agreement.same_class == way.agreement.compared
    assert way.agreement.largest_difference == pytest.approx(images.max(), rel=1e-3)


def test_an_interrupted_crowd_leaves_no_process(task, engine):
    def interrupt(done):
        if done == 2:
            raise KeyboardInterrupt

    crowd = Crowd(task, "penstock", str(engine.address))
    with pytest.raises(KeyboardInterrupt), crowd:
        crowd.wait_ready(interrupt)
    assert not any(map(psutil.pid_exists, crowd.pids))


def test_a_process_that_fails_is_told_with_its_last_words(tmp_path):
    settings = {"digits": str(tmp_path / "nothing.npz")}
    child = Child("penstock.cli.demo.asker", settings, tmp_path / "log")
    try:
        with pytest.raises(PenstockError, match=r"exited with code 1; .*nothing\.npz") as caught:
            next(hear([child], 40))
    finally:
        end_all([child])
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "Traceback" in str(caught.value.__cause__)


@pytest.mark.parametrize("pause", [0, 1])
def test_a_process_of_the_demo_dies_with_its_parent(task, pause):
    probe = (
        "import json, os, pathlib, signal, sys, time\n"
        "from penstock.cli.demo.child import Child\n"
        "settings, log = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])\n"
        "child = Child('penstock.cli.demo.asker', settings, log)\n"
        f"print(child.process.pid, flush=True)\ntime.sleep({pause})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    waiting = {"digits": str(task.digits), "first": 0, "way": "penstock", "place": "/nowhere.sock"}
    done = subprocess.run(
        [sys.executable, "-c", probe, json.dumps(waiting), task.folder / "log"],
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(20)


# ── what is shown ───────────────────────────────────────────────────────────────────────────────

OWN = Way(
    name=COMPILED,
    answers_per_second=1000,
    p50_ms=8,
    p99_ms=12,
    start_seconds=20,
    memory_bytes=2400 << 20,
    processes=8,
    with_tensorflow=8,
    answers=4000,
    agreement=Agreement(4000, 4000, 1e-6),
)


def comparison(**changes):
    shared = dataclasses.replace(OWN, name=PENSTOCK, processes=10, with_tensorflow=1, **changes)
    predict = dataclasses.replace(OWN, name=PREDICT, answers_per_second=50, start_seconds=30)
    return Comparison(
        machine=Machine(2, 16 << 30, "3.11", "2.21", "3.15"),
        network=Network(151_306, 10, 1347, 450, 0.98),
        work=Work(8, 8, 1, 4.0, 1e-4),
        ways=(predict, OWN, shared),
        sharing=Sharing(6.2, "frozen", 7.5, {1: 0.25, 4: 0.5, 8: 0.75, 32: 2.0}),
        seconds=99.0,
    )


def test_says_plainly_when_it_is_slower():
    first, second, third, *_ = sentences(
        comparison(answers_per_second=400, memory_bytes=4800 << 20, start_seconds=40)
    )
    assert "8.0 × as many as with model.predict" in first
    assert "0.40 × as many as with compiled functions" in first
    assert "saves less than the trip to another process and back costs" in second
    assert "first answers came 2.0 × later, and it took 2.0 × more memory" in third


def test_says_when_it_is_faster_and_why():
    first, second, third, fourth, fifth = sentences(
        comparison(answers_per_second=2500, memory_bytes=800 << 20, start_seconds=8)
    )
    assert "50 × as many as with model.predict" in first
    assert "2.5 × as many as with compiled functions" in first
    assert second == (
        "Its worker ran 6.2 images at a time: one alone takes it 0.25 ms, 8 together 0.75 ms."
    )
    assert "1 of its 10 processes had loaded it, 8 of 8 with copies" in third
    assert "first answers came 2.5 × sooner, and it took 3.0 × less memory" in third
    assert "7.5 s" in fourth
    assert "(frozen)" in fourth
    assert fifth.startswith("The answers agree")
    assert "12,000 of 12,000 name the same class" in fifth


def test_says_when_there_is_no_difference_when_answers_differ_and_when_they_are_few():
    first, *_, fifth, sixth = sentences(
        comparison(answers=40, agreement=Agreement(40, 39, 0.5), answers_per_second=1010)
    )
    assert "about as many as with compiled functions" in first
    assert fifth.startswith("The answers DO NOT AGREE")
    assert "8,039 of 8,040" in fifth
    assert sixth.startswith(f"{PENSTOCK}: 40 answers are few")


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, "        "), (1.0, "████████"), (0.5, "████    "), (0.3, "██▍     ")],
)
def test_bars(share, expected):
    assert bar(share, 8) == expected


def test_every_figure_is_shown():
    console = Console(width=100, record=True, force_terminal=False)
    result = comparison(answers_per_second=2500, p99_ms=0.5)
    work = dataclasses.replace(result.work, note="3 processes in place of 8")
    show(dataclasses.replace(result, work=work), console)
    text = console.export_text()
    for figure in ("98.0 %", "50", "1,000", "2,500", "8.0 ms", "0.50 ms", "20.0 s", "2.3 GB"):
        assert figure in text
    assert "3 processes in place of 8." in text


@pytest.mark.parametrize("width", [44, 60, 100])
def test_a_figure_stays_on_the_line_of_its_bar(width):
    console = Console(width=width, record=True, force_terminal=False)
    show(comparison(answers_per_second=2500), console)
    lines = console.export_text().splitlines()
    bars = [line for line in lines if line.startswith(("  model.predict, own", "  Penstock, one"))]
    assert len(bars) == 10
    assert all(line.rstrip()[-1] in "0123456789sB" for line in bars), bars


def test_lines_are_not_too_many(capsys):
    lines = Lines()
    lines.begin("asking", 4.0, "s")
    for done in range(1, 41):
        lines.advance(done / 10)
    lines.say("done")
    assert capsys.readouterr().err == "asking ...\n  4/4 s\ndone\n"
