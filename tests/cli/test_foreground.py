"""`penstock up --foreground`, as a supervisor or a container runs it."""

from __future__ import annotations

import json
import os
import signal
import sys

import numpy as np
import pytest

import penstock
from tests.cli.terminal import CTRL_C, Terminal
from tests.conditions import is_alive, until
from tests.signals import ignored

LIMIT = 40


@pytest.fixture
def begin(shop):
    """Starts one in the foreground; kills what a failed test leaves."""
    started = []

    def start(*arguments):
        process = shop.begin("up", *arguments, "--foreground", start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=LIMIT)


def wait_ready(process):
    """What it prints when it is ready."""
    text = ""
    while not text.endswith("}\n"):
        line = process.stdout.readline()
        assert line, process.stderr.read()
        text += line
    return json.loads(text)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well(shop, begin, number):
    process = begin("shop:double", "--json")
    up = wait_ready(process)
    assert up["log"] is None
    with penstock.connect("double", folder=str(shop.folder)) as client:
        assert client.predict(np.ones(1)).tolist() == [2]
    process.send_signal(number)
    _, log = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    assert "listening" in log
    assert "Traceback" not in log
    assert not is_alive(up["pid"])
    assert list(shop.folder.iterdir()) == []


def test_what_is_ignored_from_the_start_does_not_end_it(shop, begin):
    """As a shell ignores Ctrl-C for what it runs in the background."""
    with ignored(signal.SIGINT):
        process = begin("shop:double", "--json")
    wait_ready(process)
    process.send_signal(signal.SIGINT)
    with penstock.connect("double", folder=str(shop.folder)) as client:
        # A request to end reaches the engine before this does, or closes the folder's entry.
        assert client.predict(np.ones(1)).tolist() == [2]
    assert shop.json("ps")[0]["state"] == "ready"
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT) == 0


def test_a_signal_lets_it_finish_its_work(shop, begin):
    process = begin("shop:hold_until_file", "--name", "held", "--json")
    wait_ready(process)
    with penstock.connect("held", folder=str(shop.folder)) as client:
        future = client.submit(np.array([str(shop.place / "go")]))
        until(lambda: client.statistics().workers[0].inflight)
        process.send_signal(signal.SIGTERM)
        until(lambda: shop.json("ps")[0]["state"] == "closing")
        (shop.place / "go").touch()
        future.result(LIMIT)
    process.wait(LIMIT)
    assert process.returncode == 0


def test_a_second_signal_does_not_wait(shop, begin):
    process = begin("shop:hold_until_file", "--name", "held", "--drain-timeout", "1000", "--json")
    wait_ready(process)
    with penstock.connect("held", folder=str(shop.folder)) as client:
        client.submit(np.array([str(shop.place / "never")]))
        until(lambda: client.statistics().workers[0].inflight)
        process.send_signal(signal.SIGINT)
        until(lambda: shop.json("ps")[0]["state"] == "closing")
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 0


def test_down_ends_it_too(shop, begin):
    process = begin("shop:double", "--json")
    wait_ready(process)
    assert shop.json("down", "double")["result"] == "ended"
    assert process.wait(LIMIT) == 0


def test_it_fails_when_the_engine_dies(begin):
    process = begin("shop:double", "--json")
    os.kill(wait_ready(process)["pid"], signal.SIGKILL)
    _, told = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert "penstock: error: the engine 'double' died: it was killed by SIGKILL" in told


def test_the_engine_does_not_outlive_it(shop, begin):
    process = begin("shop:double", "--json")
    up = wait_ready(process)
    process.kill()
    until(lambda: not is_alive(up["pid"]))
    until(lambda: list(shop.folder.iterdir()) == [])


def test_it_can_be_told_to_end_while_it_loads(shop, begin):
    process = begin("slow:double")
    until(lambda: shop.json("ps"))
    (loading,) = shop.json("ps")
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT) == 0
    assert not is_alive(loading["pid"])


def test_what_models_print_does_not_disturb_stdout(shop, begin):
    (shop.place / "talks.py").write_text("print('hello')\ndef double(x):\n    return x + x\n")
    process = begin("talks:double", "--json")
    assert wait_ready(process)["name"] == "double"
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=LIMIT)
    assert rest == ""


def test_a_model_that_does_not_load_ends_it(begin):
    process = begin("broken:model")
    _, told = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert "penstock: error: " in told


def test_in_a_terminal_the_log_has_lines_of_its_own(shop):
    command = [sys.executable, "-m", "penstock", "up", "shop:double", "--foreground"]
    with Terminal(command, cwd=shop.place, environment=shop.environment) as terminal:
        terminal.wait_for("penstock down double")
        terminal.press(CTRL_C)
        assert terminal.wait() == 0
        (line,) = [line for line in terminal.shown.splitlines() if "listening" in line]
        assert line.startswith("20")  # the date
