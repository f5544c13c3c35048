"""`penstock top`: what is shown of real engines, and how it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import penstock
from penstock.cli.quantities import duration, milliseconds, number, size
from penstock.cli.top.rates import between
from penstock.cli.top.show import Column, Field, bars, folded, table, view_text
from penstock.cli.top.usage import Meter, Usage
from penstock.devices.cards import Card
from penstock.statistics import Percentiles, statistics_of
from tests.cli.terminal import CTRL_C, Terminal
from tests.conditions import is_alive, until

LIMIT = 40
ESCAPES = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")


@contextlib.contextmanager
def asking(shop, name, label="asker"):
    """Somebody who asks the engine for one row after the other, four at a time."""
    over = threading.Event()

    def ask():
        with penstock.connect(name, folder=str(shop.folder), label=label) as client:
            while not over.is_set():
                for answer in [client.submit(np.ones(1)) for _ in range(4)]:
                    answer.result(LIMIT)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LIMIT)


@contextlib.contextmanager
def watching(shop, *arguments):
    """The command, running; killed if the test fails before it has ended."""
    process = shop.begin("top", *arguments)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT)


@pytest.fixture(scope="module")
def engine(shared_shop):
    """An engine that is asked all the time."""
    shared_shop.json("up", "shop:double", "--workers", 2, "--max-batch", 8)
    with asking(shared_shop, "double"):
        yield shared_shop
    shared_shop.json("down", "double")


def test_once_as_json(engine):
    view = engine.json("top", "double", "--once", "--interval", 0.5)
    assert 0.4 < view["seconds"] < 20
    told = view["engine"]
    assert (told["name"], told["state"], told["healthy"]) == ("double", "ready", True)
    assert told["memory"] > 1 << 20
    assert told["cpu"] >= 0
    assert (told["failed"], told["refused"]) == (0, {})
    (model,) = view["models"]
    assert (model["name"], model["max_batch"]) == ("double", 8)
    assert model["rows"] > 0
    assert model["batches"] > 0
    assert 1 <= model["mean_batch"] <= 4
    assert {int(rows) for rows in model["sizes"]} <= {1, 2, 3, 4}
    assert sum(model["closed"].values()) == pytest.approx(1)
    stages = {"gather", "model", "scatter"}
    assert set(model["times"]) == {"queue", "run", "total", *stages}
    assert 0 < model["times"]["run"]["p50"] <= model["times"]["run"]["p99"]
    assert [worker["index"] for worker in view["workers"]] == [0, 1]
    assert sum(w["rows"] for w in view["workers"]) == pytest.approx(model["rows"])
    for worker in view["workers"]:
        assert is_alive(worker["pid"])
        assert (worker["state"], worker["starts"]) == ("ready", 1)
        assert 0 <= worker["busy"] <= 1
        assert worker["memory"] > 1 << 20
    (client,) = view["clients"]
    assert (client["pid"], client["label"]) == (os.getpid(), "asker")
    assert client["rows"] > 0
    assert client["bytes"] > 0


def test_once_as_text(engine):
    done = engine.run("top", "--once", "--interval", 0.2)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("double  pid ")
    assert "ready  healthy  up" in lines[0]
    assert "rows/s" in done.stdout
    for word in ("sizes", "closed", "times"):
        assert any(line.startswith(f"  {word}") for line in lines)
    assert any(line.split()[:4] == ["WORKER", "PID", "STATE", "BUSY"] for line in lines)
    assert any(line.split()[:3] == ["CLIENT", "PID", "LABEL"] for line in lines)
    assert "asker" in done.stdout


@pytest.mark.parametrize("columns", [24, 40, 60])
def test_a_narrow_terminal(engine, columns):
    environment = {**engine.environment, "COLUMNS": str(columns)}
    done = subprocess.run(
        engine.command("top", "--once", "--interval", 0.2),
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= columns
    assert "BUSY" in done.stdout


def test_lines_of_json_until_interrupted(engine):
    with watching(engine, "double", "--json", "--interval", 0.1) as process:
        views = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=LIMIT)
    assert (process.returncode, told) == (0, "")
    assert views[0]["engine"]["uptime"] < views[1]["engine"]["uptime"]


def test_views_one_after_the_other_where_there_is_no_terminal(engine):
    seen = ""
    with watching(engine, "double", "--interval", 0.1) as process:
        while seen.count("double  pid") < 2:
            seen += process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=LIMIT)
    assert (process.returncode, told) == (0, "")
    assert "\x1b" not in seen


def test_a_screen_until_ctrl_c(engine):
    command = engine.command("top", "double", "--interval", 0.1)
    with Terminal(command, cwd=engine.place, environment=engine.environment) as terminal:
        terminal.wait_for("\x1b[?1049h")  # the other screen
        terminal.wait_for("asker")
        terminal.press(CTRL_C)
        assert terminal.wait() == 0
        screen, left = terminal.shown.split("\x1b[?1049l")  # and back
        assert "rows/s" in screen
        assert "Traceback" not in terminal.shown
        assert "double  pid" in ESCAPES.sub("", left)  # the last view stays


def test_a_small_screen_shows_fewer_clients(engine):
    command = engine.command("top", "double", "--interval", 0.1)
    options = {"cwd": engine.place, "environment": engine.environment, "size": (16, 70)}
    with Terminal(command, **options) as terminal:
        terminal.wait_for("and 1 more client")
        terminal.press(CTRL_C)
        assert terminal.wait() == 0
        screen = ESCAPES.sub("", terminal.shown.split("\x1b[?1049l")[0])
        assert "asker" not in screen


def test_the_busiest_clients_and_a_count_of_the_rest(engine):
    idle = [
        penstock.connect("double", folder=str(engine.folder), label=f"quiet-{at}") for at in "abc"
    ]
    try:
        shown = engine.run("top", "--once", "--interval", 0.2, "--clients", 1).stdout
        assert "asker" in shown
        assert "quiet" not in shown
        assert "and 3 more clients" in shown
        assert len(engine.json("top", "--once", "--interval", 0.2)["clients"]) == 4
    finally:
        for client in idle:
            client.close()


# ── engines that are not there, several, loading, ending, silent ────────────────────────────────


@pytest.mark.parametrize("command", ["top", "trace"])
def test_an_engine_that_is_not_there(shop, command):
    done = shop.run(command, "nobody")
    assert done.returncode == 1
    assert done.stderr == f"penstock: error: there is no engine 'nobody' in {shop.folder}\n"
    done = shop.run(command)
    assert done.returncode == 1
    assert done.stderr == f"penstock: error: no engine runs in {shop.folder}\n"


@pytest.mark.parametrize("command", ["top", "trace"])
def test_several_engines(shop, command):
    for name in ("one", "two"):
        shop.json("up", "shop:double", "--name", name)
    done = shop.run(command)
    assert done.returncode == 2
    assert "2 engines run" in done.stderr
    assert "name one of them: one, two" in done.stderr
    assert shop.json("top", "two", "--once", "--interval", 0.1)["engine"]["name"] == "two"
    assert "; there are: one, two\n" in shop.run(command, "tow").stderr


def test_an_engine_that_loads(shop):
    loading = shop.begin("up", "slow:double")
    until(lambda: shop.json("ps"))
    view = shop.json("top", "--once", "--interval", 0.1)
    assert view["engine"]["state"] == "loading"
    assert view["workers"][0]["state"] == "starting"
    shown = shop.run("top", "--once", "--interval", 0.1).stdout
    assert "loading" in shown
    assert "no client is connected" in shown
    (shop.place / "go").touch()
    loading.communicate(timeout=LIMIT)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_engine_that_ends_while_it_is_watched(shop, flags):
    shop.json("up", "shop:double")
    with watching(shop, "--interval", 0.1, *flags) as process:
        assert process.stdout.readline()
        assert shop.json("down", "double")["result"] == "ended"
        shown, told = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    assert "the engine double has ended" in (told if flags else shown)
    assert "error" not in told


def test_an_engine_that_ends_in_a_terminal(shop):
    up = shop.json("up", "shop:double")
    command = shop.command("top", "--interval", 0.1)
    with Terminal(command, cwd=shop.place, environment=shop.environment) as terminal:
        terminal.wait_for("WORKER")
        os.kill(up["pid"], signal.SIGKILL)
        assert terminal.wait() == 0
        assert "the engine double has ended" in terminal.shown.split("\x1b[?1049l")[1]


def test_an_engine_that_is_killed_during_a_single_look(shop):
    up = shop.json("up", "shop:double")
    with watching(shop, "--once", "--interval", 60) as process:
        with penstock.connect("double", folder=str(shop.folder)) as client:
            until(lambda: len(client.statistics().clients) == 2)
        os.kill(up["pid"], signal.SIGKILL)
        _, told = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    # One line, whichever moment it was killed at: found, connected to, asked.
    assert re.fullmatch(r"penstock: error: .*\bengine\b.*\n", told), told


def test_an_engine_that_does_not_answer(shop):
    up = shop.json("up", "shop:double")
    os.kill(up["pid"], signal.SIGSTOP)
    try:
        done = shop.run("top", "--once")
    finally:
        os.kill(up["pid"], signal.SIGCONT)
    assert done.returncode == 1
    assert "does not answer" in done.stderr


def test_a_worker_that_is_replaced(shop):
    shop.json("up", "shop:double")
    with asking(shop, "double"), watching(shop, "--interval", 0.1, "--json") as process:
        first = json.loads(process.stdout.readline())["workers"][0]
        os.kill(first["pid"], signal.SIGKILL)
        while True:
            view = json.loads(process.stdout.readline())
            (worker,) = view["workers"]
            assert worker["rows"] >= 0
            if worker["starts"] == 2 and worker["rows"] > 0:
                break
        assert worker["pid"] != first["pid"]
        assert view["engine"]["deaths"] == 1
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT)
        assert "worker deaths 1, restarts 1" in shop.run("top", "--once").stdout


def test_a_model_that_is_not_batched(shop):
    shop.json("up", "shop:double", "--no-batched")
    shown = shop.run("top", "--once", "--interval", 0.1).stdout
    assert "not batched:" in shown


# ── between two answers ─────────────────────────────────────────────────────────────────────────


def told(uptime, *, workers=(), clients=(), **model):
    values = {
        "name": "e",
        "pid": 10,
        "state": "ready",
        "healthy": True,
        "uptime": uptime,
        "requests": {
            "admitted": 0,
            "queued": 0,
            "queued_rows": 0,
            "done": 0,
            "partial": 0,
            "failed": 0,
            "cancelled": 0,
            "refused": {},
        },
        "batches": {"count": 0, "rows": 0, "sizes": {}},
        "deaths": 0,
        "restarts": 0,
        "models": [
            {
                "name": "m",
                "max_batch": 8,
                "limits": {"0": 8, "1": 8},
                "batched": True,
                "sizes": {},
                "times": {"run": [0.1, 0.2, 0.3]},
                **model,
            }
        ],
        "workers": [
            {
                "index": 0,
                "pid": 11,
                "device": "cpu",
                "warm": True,
                "state": "ready",
                "starts": 1,
                "batches": 0,
                "rows": 0,
                "busy": 0.0,
                "inflight": 0,
                "segments": 0,
                **worker,
            }
            for worker in workers
        ],
        "clients": [
            {
                "pid": 20,
                "label": "",
                "outstanding": 0,
                "answered": 0,
                "rows": 0,
                "segments": 0,
                "bytes": 0,
                **client,
            }
            for client in clients
        ],
    }
    return statistics_of(json.dumps(values).encode())


def test_rates_are_differences_over_the_engines_clock():
    before = told(10, rows=100, batches=10, padding=5, sizes={"4": 10}, closed={"full": 10})
    after = told(
        12,
        rows=140,
        batches=20,
        padding=15,
        sizes={"4": 14, "5": 6},
        closed={"full": 12, "idle": 8},
    )
    (model,) = between(before, after, {}).models
    assert (model.rows, model.batches) == (20, 5)
    assert model.sizes == {4: 4, 5: 6}
    assert model.mean_batch == pytest.approx(4.6)
    assert model.padding == pytest.approx(10 / 50)
    assert model.closed == {"idle": 0.8, "full": 0.2}
    assert model.times == {"run": Percentiles(0.1, 0.2, 0.3)}


def test_an_interval_in_which_nothing_happened():
    quiet = told(10, rows=100, batches=10, sizes={"4": 10}, closed={"full": 10})
    (model,) = between(quiet, dataclasses.replace(quiet, uptime=11.0), {}).models
    assert (model.rows, model.mean_batch, model.padding) == (0, None, None)
    assert (model.sizes, model.closed) == ({}, {})


def test_clients_come_and_go():
    before = told(1, clients=[{"number": 1, "rows": 50}, {"number": 2, "rows": 7}])
    after = told(
        2, clients=[{"number": 2, "rows": 10}, {"number": 3, "rows": 9}, {"number": 4, "pid": 99}]
    )
    view = between(before, after, {}, own_pid=99)
    assert [(client.number, client.rows) for client in view.clients] == [(3, 9), (2, 3)]


def test_a_workers_counters_go_on_in_its_next_process():
    before = told(1, workers=[{"rows": 50, "busy": 1.0}])
    after = told(3, workers=[{"pid": 12, "starts": 2, "rows": 60, "busy": 1.5}])
    (worker,) = between(before, after, {11: Usage(0.5, 1), 12: Usage(None, 7)}).workers
    assert (worker.rows, worker.busy) == (5, 0.25)
    assert (worker.cpu, worker.memory) == (None, 7)


def test_a_workers_card_is_shown():
    card = Card("GPU-1", "H200", 100 << 30, 60 << 30, 40 << 30, 0, ((11, 5 << 30),), 0.875)
    told_ = told(1, workers=[{"device": "gpu:0 H200"}])
    view = between(told_, told(2, workers=[{"device": "gpu:0 H200"}]), {}, 0, {"gpu:0 H200": card})
    (worker,) = view.workers
    assert (worker.gpu, worker.gpu_memory) == (0.875, 5 << 30)
    shown = "\n".join(str(line) for line in view_text(view, 120, 5).renderables)
    assert re.search(r"gpu:0 +8[78] % +5\.0 GB", shown), shown
    (without,) = between(told_, told(2, workers=[{"device": "gpu:0 H200"}]), {}).workers
    assert (without.gpu, without.gpu_memory) == (None, None)


def test_what_workers_can_hold_is_shown_where_they_differ():
    shown = []
    for limits in ({"0": 8, "1": 8}, {"0": 8, "1": 2}):
        view = between(told(1), told(2, limits=limits), {})
        shown.append("\n".join(str(line) for line in view_text(view, 120, 5).renderables))
    assert "at most" not in shown[0]
    assert re.search(r"at most +8 on worker 0 +2 on worker 1", shown[1]), shown[1]


def test_a_worker_in_a_long_batch_is_busy():
    before = told(1, workers=[{"inflight": 1}])
    (worker,) = between(before, told(2, workers=[{"inflight": 1}]), {}).workers
    assert worker.busy == 1


def test_a_meter_needs_two_looks_and_forgets_the_dead():
    meter = Meter()
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert meter.look([child.pid])[child.pid].cpu is None
        assert until(lambda: meter.look([child.pid])[child.pid].cpu)
    finally:
        child.kill()
        child.wait()
    assert meter.look([child.pid, 0]) == {} or child.pid not in meter.look([child.pid])


# ── lines and tables ────────────────────────────────────────────────────────────────────────────


def test_bars_are_in_steps_of_two():
    assert list(bars({1: 8, 3: 4, 4: 4, 7: 1}, 10)) == ["1█", "2 ", "4█", "8▁", "10 "]
    assert list(bars({1: 3}, 1)) == ["1█"]


def test_a_table_leaves_out_what_has_no_room():
    columns = [
        Column("A", ["1", "22"]),
        Column("LESS", ["x", "y"], 1, left=True),
        Column("LEAST", ["0", "0"], 2),
    ]
    whole = [line.plain for line in table(columns, 80)]
    assert whole == [" A  LESS  LEAST", " 1  x         0", "22  y         0"]
    assert [line.plain for line in table(columns, 14)] == [" A  LESS", " 1  x", "22  y"]
    assert [line.plain for line in table(columns, 2)] == [" A", " 1", "22"]


def test_lines_are_folded_between_fields():
    fields = [Field("first"), Field("second"), Field("third one")]
    assert [line.plain for line in folded(fields, 80)] == ["first  second  third one"]
    assert [line.plain for line in folded(fields, 20)] == ["first  second", " " * 10 + "third one"]
    assert all(len(line) <= 12 for line in folded(fields, 12))


def test_numbers():
    assert [number(value) for value in (0, 0.25, 9.96, 12.3, 1234)] == [
        "0",
        "0.2",
        "10.0",
        "12",
        "1,234",
    ]
    assert [size(value) for value in (0, 1 << 19, 31 << 20, 3 << 29)] == [
        "0 MB",
        "0.5 MB",
        "31 MB",
        "1.5 GB",
    ]
    assert [milliseconds(value) for value in (0.0001, 0.0034, 0.056)] == ["0.10", "3.4", "56"]
    assert [duration(value) for value in (5, 150, 8000, 200_000)] == ["5 s", "2 min", "2 h", "2 d"]
