"""`penstock trace` and `Client.trace`: what is recorded of real engines, the file, the summary."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

import penstock
from penstock import errors
from penstock.client import recording as client_recording
from tests.cli.terminal import CTRL_C, Terminal
from tests.conditions import until

LIMIT = 40
REQUESTS = 60


def connect(shop, name, **options):
    return penstock.connect(name, folder=str(shop.folder), **options)


def traced(shop, *arguments, during=lambda: None):
    """Run the command; do something once it records. Returns its exit code and what it said."""
    command = shop.command("trace", *arguments)
    with Terminal(
        command, cwd=shop.place, environment=shop.environment, stdout=subprocess.PIPE
    ) as terminal:
        terminal.wait_for("recording")
        during()
        code = terminal.wait()
        return code, terminal.process.communicate(timeout=LIMIT)[0].decode(), terminal.shown


@pytest.fixture(scope="module")
def engine(shared_shop):
    """An engine with two models and two workers."""
    shared_shop.json("up", "shop:double", "shop:negate", "--workers", 2, "--max-batch", 4)
    yield shared_shop
    shared_shop.json("down", "double")


@pytest.fixture(scope="module")
def recording(engine):
    """A trace of two clients with 60 requests of 1 to 3 rows each: the file, and the summary."""

    def ask():
        for label in ("left", "right"):
            with connect(engine, "double", label=label) as client:
                answers = [
                    client.submit(np.ones(1 + at % 3), model=("double", "negate")[at % 2])
                    for at in range(REQUESTS)
                ]
                for answer in answers:
                    answer.result(LIMIT)

    options = ["double", "--seconds", 2.5, "-o", "t.json", "--json"]
    code, out, _ = traced(engine, *options, during=ask)
    assert code == 0
    return json.loads((engine.place / "t.json").read_text()), json.loads(out)


def test_the_summary_counts_what_was_asked(recording):
    _, summary = recording
    rows = 2 * sum(1 + at % 3 for at in range(REQUESTS))
    assert (summary["requests"], summary["rows"]) == (2 * REQUESTS, rows)
    assert summary["left_out"] == 0
    assert 2.5 <= summary["seconds"] < 20
    assert summary["file"] == "t.json"
    assert {m: use["rows"] for m, use in summary["models"].items()} == {
        "double": 2 * sum(1 + at % 3 for at in range(0, REQUESTS, 2)),
        "negate": 2 * sum(1 + at % 3 for at in range(1, REQUESTS, 2)),
    }
    for use in summary["models"].values():
        assert 1 <= use["mean_batch"] <= use["max_batch"] == 4
        assert use["padding"] == 0
        assert sum(use["closed"].values()) == pytest.approx(1)


def test_shares_add_up(recording):
    _, summary = recording
    assert sum(stage["share"] for stage in summary["stages"].values()) == pytest.approx(1)
    assert summary["total"]["share"] == pytest.approx(1)
    assert len(summary["workers"]) == 2
    for worker in [*summary["workers"], summary["device"]]:
        kinds = [worker[kind] for kind in ("busy", "messages", "held", "starved")]
        assert sum(kinds) == pytest.approx(1)
        assert min(kinds) >= 0
        assert worker["gather"] + worker["run"] + worker["scatter"] == pytest.approx(worker["busy"])
    assert summary["limit"]["stage"] in ("clients", "cores")  # most of the time nobody asked
    assert summary["load"]["engine"] is not None


def test_the_file_names_its_processes(recording):
    events = recording[0]["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {e["pid"] for e in events} == set(names)
    told = sorted(names.values())
    assert [name.partition(" (pid")[0] for name in told if "worker" in name] == [
        "double: worker 0",
        "double: worker 1",
    ]
    assert sum("client" in name for name in told) == 2


def test_slices_of_a_worker_nest(recording):
    slices = [e for e in recording[0]["traceEvents"] if e["ph"] == "X"]
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in slices)
    assert all(type(e["ts"]) is int and type(e["dur"]) is int for e in slices)
    tracks: dict[int, list] = {}
    for event in slices:
        tracks.setdefault(event["pid"], []).append(event)
    for track in tracks.values():
        before = 0
        for at in range(0, len(track), 4):
            batch, *stages = track[at : at + 4]
            assert batch["ts"] >= before
            assert [stage["name"] for stage in stages] == ["gather", "run", "scatter"]
            moment = batch["ts"]
            for stage in stages:
                assert stage["ts"] == moment
                moment += stage["dur"]
            assert moment == batch["ts"] + batch["dur"]
            before = moment


def test_batches_say_what_they_were(recording):
    content, summary = recording
    batches = [e for e in content["traceEvents"] if e["ph"] == "X" and " × " in e["name"]]
    assert len(batches) == summary["batches"]
    assert sum(batch["args"]["rows"] for batch in batches) == summary["rows"]
    assert sum(batch["args"]["requests"] for batch in batches) == summary["requests"]
    for batch in batches:
        assert batch["args"]["size"] >= batch["args"]["rows"]
        assert batch["args"]["closed"]
        assert batch["args"]["model"] in ("double", "negate")


def test_every_request_has_a_queue_and_a_run_part(recording):
    events = [e for e in recording[0]["traceEvents"] if e["ph"] in "be"]
    requests: dict[str, list] = {}
    for event in events:
        requests.setdefault(event["id"], []).append(event)
    assert len(requests) == 2 * REQUESTS
    for parts in requests.values():
        assert [(part["ph"], part["name"]) for part in parts] == [
            ("b", "request"),
            ("b", "queue"),
            ("e", "queue"),
            ("b", "run"),
            ("e", "run"),
            ("e", "request"),
        ]
        times = [part["ts"] for part in parts]
        assert times == sorted(times)
        assert times[0] >= 0
        assert len({(part["pid"], part["cat"]) for part in parts}) == 1
    asked = {(p[0]["pid"], p[0]["args"]["request"]) for p in requests.values()}
    assert len(asked) == 2 * REQUESTS


def test_the_summary_in_words_and_a_compressed_file(engine):
    def ask():
        with connect(engine, "double") as client:
            client.predict(np.ones(9), model="negate")

    code, out, _ = traced(engine, "--seconds", 1, "-o", "t.json.gz", during=ask)
    assert code == 0
    assert out.startswith("3 requests with 9 rows in ")
    for words in ("queue", "waiting", "gather", "scatter", "reply", "busy, one by one", "limit: "):
        assert words in out
    assert "t.json.gz" in out
    with gzip.open(engine.place / "t.json.gz") as file:
        assert json.load(file)["traceEvents"]


def test_an_empty_trace_says_so(engine):
    done = engine.run("trace", "double", "--seconds", 0.2, "-o", "empty.json")
    assert done.returncode == 1
    assert "the trace is empty: nobody asked" in done.stderr
    assert not (engine.place / "empty.json").exists()


@pytest.mark.parametrize(
    ("place", "expected"),
    [("none/t.json", "there is no folder none"), ("/dev/null", "is no file")],
)
def test_a_place_that_does_not_do_is_refused_before_it_records(engine, place, expected):
    began = time.monotonic()
    done = engine.run("trace", "double", "--seconds", 60, "-o", place)
    assert time.monotonic() - began < LIMIT
    assert done.returncode == 1
    assert expected in done.stderr


def test_interrupted(engine):
    before = set(os.listdir(engine.place))
    command = engine.command("trace", "double", "--seconds", 60, "-o", "none.json")
    with Terminal(command, cwd=engine.place, environment=engine.environment) as terminal:
        terminal.wait_for("recording")
        terminal.press(CTRL_C)
        assert terminal.wait() == 130
        assert "interrupted" in terminal.shown
        assert "Traceback" not in terminal.shown
    assert set(os.listdir(engine.place)) == before


def test_a_batch_that_does_not_end(shop):
    shop.json("up", "shop:hold_until_file", "--name", "held")
    with connect(shop, "held") as client:
        future = client.submit(np.array([str(shop.place / "go")]))
        until(lambda: client.statistics().workers[0].inflight)
        done = shop.run("trace", "--seconds", 0.2)
        assert done.returncode == 1
        assert "no batch ended" in done.stderr
        assert "record for longer" in done.stderr
        (shop.place / "go").touch()
        future.result(LIMIT)


def test_an_engine_that_ends_while_it_is_traced(shop):
    up = shop.json("up", "shop:double")
    kill = lambda: os.kill(up["pid"], signal.SIGKILL)  # noqa: E731
    code, out, shown = traced(shop, "--seconds", 60, "-o", "t.json", during=kill)
    assert (code, out) == (1, "")
    assert "ended while it was traced" in " ".join(shown.split())
    assert not [name for name in os.listdir(shop.place) if "t.json" in name]


# ── from Python ─────────────────────────────────────────────────────────────────────────────────


def test_a_client_traces_what_others_do(engine, tmp_path):
    with connect(engine, "double") as watcher, connect(engine, "double", label="other") as other:
        found: list = []
        thread = threading.Thread(target=lambda: found.append(watcher.trace(0.5)))
        thread.start()
        while thread.is_alive():
            other.predict(np.ones(2), model="double")
        thread.join()
    (trace,) = found
    assert trace.seconds >= 0.5
    assert trace.requests > 1
    assert {request.rows for batch in trace.batches for request in batch.requests} == {2}
    assert [name for name in trace.clients.values() if "other" in name]
    assert trace.engine.name == "double"
    assert trace.load.engine is not None
    assert trace.summary().stages["run"].p99 > 0
    trace.save(tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_two_at_once_are_told(engine, monkeypatch):
    begun, taken = threading.Event(), threading.Event()
    waits = client_recording._wait

    def wait(session, seconds):
        if threading.current_thread() is thread:  # it is recorded for the first
            begun.set()
            taken.wait(LIMIT)
        waits(session, seconds)

    monkeypatch.setattr(client_recording, "_wait", wait)
    with connect(engine, "double") as first, connect(engine, "double") as second:
        found: list = []

        def long():
            try:
                first.trace(0.1)
            except errors.PenstockError as error:
                found.append(error)

        thread = threading.Thread(target=long)
        thread.start()
        assert begun.wait(LIMIT)
        second.trace(0.1)
        taken.set()
        thread.join()
    assert "somebody else" in str(found[0])


def test_a_client_is_told_when_the_engine_goes(shop, monkeypatch):
    up = shop.json("up", "shop:double")
    waits = client_recording._wait

    def wait(session, seconds):
        os.kill(up["pid"], signal.SIGKILL)
        waits(session, seconds)

    monkeypatch.setattr(client_recording, "_wait", wait)
    with connect(shop, "double") as client:
        began = time.monotonic()
        with pytest.raises(errors.EngineClosed):
            client.trace(60)
        assert time.monotonic() - began < LIMIT


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_impossible_times(engine, seconds):
    with connect(engine, "double") as client, pytest.raises(errors.InputError, match="seconds"):
        client.trace(seconds)
