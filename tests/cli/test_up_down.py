"""Engines that belong to nobody: up, ps, down, with real processes."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import errors
from penstock.cli.up import _log_file
from penstock.transport import rendezvous
from tests.conditions import is_alive, until

LIMIT = 40


def connect(shop, name, **options):
    return penstock.connect(name, folder=str(shop.folder), **options)


def kill_all(shop):
    """Kill the engine and its worker so that neither can clean up: the worker would."""
    (told,) = shop.json("ps")
    os.kill(told["pid"], signal.SIGSTOP)
    for pid in (told["workers"][0]["pid"], told["pid"]):
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: not is_alive(pid))


def test_how_many_workers_there_are_is_told_and_not_how_many_were_asked_for(shop):
    assert shop.json("up", "shop:double", "--devices", "cpu")["workers"] == 1
    assert shop.json("up", "shop:double", "--name", "two", "--workers", 2)["workers"] == 2


def test_up_use_down(shop):
    up = shop.run("up", "shop:double")
    assert up.returncode == 0, up.stderr
    assert up.stdout.startswith("double is ready")
    assert "penstock.connect('double')" in up.stdout
    assert "penstock down double" in up.stdout
    with connect(shop, "double") as client:
        assert client.predict(np.ones(2)).tolist() == [2, 2]
        (told,) = shop.json("ps")
        assert told["state"] == "ready"
        assert told["address"] == str(shop.folder / "double.sock")
        assert [model["name"] for model in told["models"]] == ["double"]
        assert [other["pid"] for other in told["clients"]] == [os.getpid()]
        listed = shop.run("ps").stdout.splitlines()
        assert listed[0].split()[:5] == ["NAME", "PID", "STATE", "MODELS", "WORKERS"]
        expected = ["double", str(told["pid"]), "ready", "double", "1/1", "1", "2"]
        assert listed[1].split()[:7] == expected
    pids = [told["pid"], told["workers"][0]["pid"]]
    down = shop.run("down", "double")
    assert down.returncode == 0, down.stderr
    assert down.stdout.startswith(f"double has ended (process {pids[0]}")
    assert not any(map(is_alive, pids))
    assert list(shop.folder.iterdir()) == []
    assert shop.run("ps").stdout == f"no engine runs in {shop.folder}\n"


def test_json_for_scripts(shop):
    up = shop.json("up", "shop:double", "--name", "vision", "--workers", 2, "--max-batch", 8)
    assert up["name"] == "vision"
    assert up["models"] == ["double"]
    assert up["workers"] == 2
    assert is_alive(up["pid"])
    assert Path(up["address"]).is_socket()
    assert Path(up["log"]) == shop.state / "penstock" / "vision.log"
    (told,) = shop.json("ps")
    (model,) = told["models"]
    limits = {key: model[key] for key in ("name", "max_batch", "batched", "rows")}
    assert limits == {"name": "double", "max_batch": 8, "batched": True, "rows": 0}
    down = shop.json("down", "vision")
    assert (down["result"], down["pid"]) == ("ended", up["pid"])
    assert not is_alive(up["pid"])


def test_several_models_with_names(shop):
    up = shop.json("up", "twice=shop:double", "shop.py:negate", "--no-batched")
    assert up["name"] == "twice"
    with connect(shop, "twice") as client:
        assert client.models() == ("twice", "negate")
        assert client.predict(np.ones(1), model="negate").tolist() == [-1]
    assert {model["batched"] for model in shop.json("ps")[0]["models"]} == {False}


def test_the_script_finds_modules_in_the_current_folder(shop):
    script = Path(sys.executable).with_name("penstock")
    if not script.exists():
        pytest.skip("the console script is not installed")
    done = subprocess.run(
        [script, "up", "shop:double"], cwd=shop.place, env=shop.environment, timeout=LIMIT
    )
    assert done.returncode == 0


def test_settings_arrive(shop):
    shop.json("up", "shop:double", "--client-memory", "64K", "--folder", shop.place / "elsewhere")
    client = penstock.connect("double", folder=str(shop.place / "elsewhere"))
    with client, pytest.raises(errors.InputError, match="65536"):
        client.predict(np.zeros((1, 100_000)))
    assert shop.json("ps", "--folder", shop.place / "elsewhere")[0]["name"] == "double"
    assert shop.json("down", "double", "--folder", shop.place / "elsewhere")["result"] == "ended"


def test_the_log_is_a_file(shop):
    log = shop.place / "logs" / "here.log"
    shop.json("up", "shop:double", "--log", log)
    shop.json("down", "double")
    assert "listening" in log.read_text()
    assert "ended" in log.read_text()


def test_a_log_that_cannot_be_written(shop):
    (shop.place / "file").touch()
    done = shop.run("up", "shop:double", "--log", shop.place / "file" / "log")
    assert done.returncode == 1
    assert done.stderr.startswith("penstock: error: the log ")


def test_without_a_home_the_log_must_be_named(monkeypatch):
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    with pytest.raises(errors.ConfigError, match="--log"):
        _log_file("double")


def test_a_folder_that_cannot_be_made(shop):
    done = shop.run("up", "shop:double", "--folder", "/proc/xx")
    assert done.returncode == 1
    assert "the folder /proc/xx cannot be made: No such file or directory" in done.stderr


def test_a_name_that_is_taken(shop):
    first = shop.json("up", "shop:double")
    second = shop.run("up", "shop:negate", "--name", "double")
    assert second.returncode == 1
    assert second.stderr.startswith("penstock: error: an engine already runs at ")
    assert second.stderr.endswith(": end it first, or choose another name\n")
    assert len(second.stderr.splitlines()) == 1
    assert [engine["pid"] for engine in shop.json("ps")] == [first["pid"]]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("nowhere:double", "there is no module 'nowhere'"),
        ("shop:nothing", "shop has no 'nothing'"),
        ("nofile.py:double", "there is no file"),
        ("shop", "expected 'module:callable'"),
        ("broken:model", "RuntimeError: half a model is none"),
    ],
)
def test_a_source_that_cannot_be_loaded(shop, source, expected):
    done = shop.run("up", source, "--name", "bad")
    assert done.returncode == 1
    assert done.stdout == ""
    first, *hint = done.stderr.splitlines()
    assert first.startswith("penstock: error: ")
    assert expected in first
    assert "Traceback" not in done.stderr
    assert len(hint) <= 1
    assert shop.json("ps") == []


def test_verbose_shows_where_it_was_raised(shop):
    done = shop.run("up", "broken:model", "--verbose")
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert "broken.py" in done.stderr


@pytest.mark.parametrize(
    ("flags", "code", "expected"),
    [
        (["--workers", "many"], 2, "'many' is not a valid integer"),
        (["--client-memory", "lots"], 2, "a size is a number"),
        (["--colour", "blue"], 2, "No such option"),
        (["--workers", "-1"], 1, "penstock: error: workers: expected 0 to 1024, got -1"),
        (["--name", "a b"], 1, "penstock: error: engine name 'a b'"),
        (["--drain-timeout", "-1"], 1, "drain_timeout"),
    ],
)
def test_bad_flags(shop, flags, code, expected):
    done = shop.run("up", "shop:double", *flags)
    assert done.returncode == code
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_up_without_a_source_is_a_usage_error(shop):
    assert shop.run("up").returncode == 2


def test_an_engine_outlives_the_shell_that_started_it(shop):
    line = f"{sys.executable} -m penstock up shop:double --json && touch is-up && sleep 1000"
    shell = subprocess.Popen(
        ["bash", "-c", line],
        cwd=shop.place,
        env=shop.environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    until((shop.place / "is-up").exists)  # an `up` that is interrupted takes its engine along
    with connect(shop, "double", wait=LIMIT) as client:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            os.killpg(shell.pid, number)
        shell.wait(LIMIT)
        assert client.predict(np.ones(1)).tolist() == [2]
    assert shop.json("down", "double")["result"] == "ended"


def test_an_interrupted_up_leaves_nothing(shop):
    for number in (signal.SIGINT, signal.SIGTERM):
        process = shop.begin("up", "slow:double")
        (loading,) = until(lambda: [one for one in shop.json("ps") if one["state"] == "loading"])
        process.send_signal(number)
        _, told = process.communicate(timeout=LIMIT)
        assert process.returncode == 130
        assert "interrupted" in told
        assert not is_alive(loading["pid"])
        assert list(shop.folder.iterdir()) == []


# ── down ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["nobody", "/nowhere/at/all.sock"])
def test_down_of_an_engine_that_is_not_there(shop, name):
    done = shop.run("down", name)
    assert done.returncode == 1
    assert done.stderr.startswith(f"penstock: error: there is no engine {name!r}")


def test_down_of_an_impossible_name(shop):
    done = shop.run("down", "a b")
    assert done.returncode == 1
    assert "engine name" in done.stderr


def test_down_by_address(shop):
    up = shop.json("up", "shop:double")
    assert shop.json("down", up["address"])["pid"] == up["pid"]


def test_down_cleans_up_after_a_killed_engine(shop):
    up = shop.json("up", "shop:double")
    kill_all(shop)
    assert Path(up["address"]).exists()
    done = shop.run("down", "double")
    assert done.returncode == 0
    assert "dead already" in done.stdout
    assert list(shop.folder.iterdir()) == []
    assert shop.run("down", "double").returncode == 1


def test_ps_cleans_up_after_a_killed_engine(shop):
    shop.json("up", "shop:double")
    kill_all(shop)
    assert shop.json("ps") == []
    assert list(shop.folder.iterdir()) == []


def test_down_answers_what_is_queued_first(shop):
    shop.json("up", "shop:hold_until_file", "--name", "held")
    with connect(shop, "held") as client:
        future = client.submit(np.array([str(shop.place / "go")]))
        until(lambda: client.statistics().workers[0].inflight)
        down = shop.begin("down", "held", "--drain", 30)
        until(lambda: shop.json("ps")[0]["state"] == "closing")
        assert down.poll() is None
        (shop.place / "go").touch()
        assert future.result(LIMIT).tolist() == [str(shop.place / "go").encode()]
        down.communicate(timeout=LIMIT)
        assert down.returncode == 0


def test_down_does_not_wait_longer_than_told(shop):
    shop.json("up", "shop:hold_until_file", "--name", "held")
    with connect(shop, "held") as client:
        future = client.submit(np.array([str(shop.place / "never")]))
        until(lambda: client.statistics().workers[0].inflight)
        began = time.monotonic()
        assert shop.json("down", "held", "--drain", 0)["result"] == "ended"
        assert time.monotonic() - began < 20
        assert isinstance(future.exception(LIMIT), errors.EngineClosed)


def test_ps_tells_of_an_engine_that_does_not_answer(shop):
    up = shop.json("up", "shop:double")
    os.kill(up["pid"], signal.SIGSTOP)
    try:
        in_words = shop.begin("ps")  # both at a time: each waits for the engine for a while
        (told,) = shop.json("ps")
        assert (told["name"], told["pid"], told["state"]) == ("double", up["pid"], "silent")
        assert "silent" in in_words.communicate(timeout=LIMIT)[0]
    finally:
        os.kill(up["pid"], signal.SIGCONT)
    assert shop.json("down", "double")["result"] == "ended"


def test_nobody_waits_for_an_engine_that_takes_no_more_connections(shop):
    up = shop.json("up", "shop:double")
    address = Path(up["address"])
    os.kill(up["pid"], signal.SIGSTOP)
    waiting = []
    try:
        with contextlib.suppress(rendezvous.Crowded):
            while True:
                waiting.append(rendezvous.dial(address))
        client = penstock.Client(address, wait=30)
        with pytest.raises(errors.DeadlineExceeded, match="takes no more connections"):
            client.predict(np.ones(2), deadline=0.3)
        (told,) = shop.json("ps")
        assert (told["name"], told["pid"], told["state"]) == ("double", None, "silent")
        assert "takes no more connections" in shop.run("down", "double").stderr
    finally:
        for sock in waiting:
            sock.close()
        os.kill(up["pid"], signal.SIGCONT)
    assert shop.json("down", "double")["result"] == "ended"
