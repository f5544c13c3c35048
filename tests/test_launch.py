"""Starting processes: settings and descriptors arrive, and descendants can be found and ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import launch
from tests.conditions import is_alive, until

_PROBE = """
import json, os, sys
from penstock import launch

settings, descriptors = launch.read_settings(sys.argv)
os.write(descriptors["out"], json.dumps({
    "settings": settings,
    "inheritable": os.get_inheritable(descriptors["out"]),
    "open": sorted(map(int, os.listdir("/proc/self/fd"))),
    "session": os.getsid(0),
    "group": os.getpgid(0),
    "pid": os.getpid(),
    "stdin": os.readlink("/proc/self/fd/0"),
    "arguments": sys.argv[1:],
}).encode())
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "launch_probe.py").write_text(_PROBE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "launch_probe"


@pytest.mark.parametrize("detached", [True, False])
def test_settings_and_descriptors_arrive(probe: str, detached: bool) -> None:
    reader, writer = os.pipe()
    text = "ü" * 200_000
    process = launch.start(probe, text, {"out": writer}, detached=detached)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        told = json.loads(file.read())
    assert process.wait(20) == 0
    assert told["settings"] == text
    assert not told["inheritable"]
    assert told["stdin"] == "/dev/null"
    assert told["arguments"] == []  # else a model's module that parses them would fail
    assert told["group"] == told["pid"]
    assert (told["session"] == told["pid"]) == detached
    # 0 to 2, the descriptor, and the one that lists them; not the settings' own.
    assert len(told["open"]) == 5


_OWNER = """
import signal, sys, time
import numpy as np
import penstock

{before}
with penstock.Engine("penstock.testing.models:exit_on_13", name="owned") as engine:
    try:
        engine.predict(np.array([13.0]))
    except penstock.errors.WorkerLost as error:
        told = str(error)
    assert engine.predict(np.ones(1)).tolist() == [2]
    {after}
    open("told", "w").write(told)
"""


def _own(tmp_path: Path, before: str = "", after: str = "", closed: str = "") -> str:
    """What is told of a worker's end to a program that owns an engine, in odd circumstances."""
    (tmp_path / "own.py").write_text(_OWNER.format(before=before, after=after))
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "own.py"]
    environment = os.environ | {"PENSTOCK_DIR": str(tmp_path / "engines")}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60)
    assert not list((tmp_path / "engines").iterdir())
    return (tmp_path / "told").read_text()


@pytest.mark.parametrize("closed", ["<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_an_engine_of_a_program_without_stdin_stdout_or_stderr(tmp_path: Path, closed: str) -> None:
    assert "ended" in _own(tmp_path, closed=closed)


def test_an_engine_of_a_program_that_ignores_its_children(tmp_path: Path) -> None:
    """How a worker ended is told all the same."""
    told = _own(tmp_path, "signal.signal(signal.SIGCHLD, signal.SIG_IGN)")
    assert "exited with code 1" in told


def test_an_engine_of_a_program_that_blocks_signals(tmp_path: Path) -> None:
    """The engine can be told to end, as service managers do."""
    _own(
        tmp_path,
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
        "import os; os.kill(engine.statistics().pid, signal.SIGTERM); engine._process.wait(10)",
    )


def test_engine_and_worker_close_what_they_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that whoever has Python warn of what is left open hears of his own only."""
    monkeypatch.setenv("PYTHONDEVMODE", "1")
    code = "import penstock\nwith penstock.Engine('penstock.testing.models:double'): pass"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_left_open_in_the_caller(probe: str) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with open(os.devnull, "wb") as out:
        process = launch.start(probe, "", {"out": out.fileno()}, detached=True)
        process.wait(20)
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("arguments", [["penstock.engine"], ["m", "x"], ["m", "1", "2"]])
def test_started_by_hand_it_says_so(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="not by hand"):
        launch.read_settings(arguments)


def test_descendants_in_sessions_of_their_own_are_killed() -> None:
    sleeper = f"{sys.executable} -c 'import time; time.sleep(600)'"
    script = f"setsid {sleeper} & {sleeper} & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline()
        until(lambda: len(launch.children(shell.pid)) == 2)
        below = launch.children(shell.pid)
        launch.kill_descendants(shell.pid)
        until(lambda: not any(is_alive(pid) for pid in below))
        assert shell.wait(20) == 0


def test_a_family_is_killed_before_it_can_start_another() -> None:
    """The shell starts a new sleeper as soon as the old one is gone."""
    with subprocess.Popen(["setsid", "sh", "-c", "while :; do sleep 600; done"]) as shell:
        (sleeper,) = until(lambda: launch.children(shell.pid))
        launch.kill_family(shell.pid)
        shell.wait(20)
        until(lambda: not is_alive(sleeper))
        assert _in_session(shell.pid) == []


def _in_session(session: int) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(int(name)) == session and is_alive(int(name)):
                    found.append(int(name))
    return found


def test_waiting_ends_with_the_process_or_the_time() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with subprocess.Popen(["sleep", "600"]) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            launch.wait(process, 0.01)
        process.kill()
        assert launch.wait(process, 20) == -signal.SIGKILL
        assert launch.wait(process, 20) == -signal.SIGKILL  # also where it is known
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_process_that_is_not_there_has_no_children() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait(20)
    assert launch.children(process.pid) == []
    launch.kill_descendants(process.pid)


def test_exits_in_words() -> None:
    assert launch.exit_text(3) == "it exited with code 3"
    assert launch.exit_text(-signal.SIGKILL) == "it was killed by SIGKILL"
    assert launch.exit_text(-99) == "it was killed by signal 99"
