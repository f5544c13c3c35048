"""A visit to a machine with a GPU: what is run, what is left, and what is told of it."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.visit import running
from benchmarks.visit.__main__ import visit
from benchmarks.visit.parts import Part, parts
from tests.conditions import is_alive, until

ROOT = Path(__file__).resolve().parents[2]


def _part(name: str, script: str, expected: float = 1, limit: float = 20) -> Part:
    return Part(name, ("-c", script), expected, limit, takes_limit=False)


def test_a_part_that_fails_leaves_the_others_their_turn_and_later_commands_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "mark"
    several = [
        _part("good", f"open({str(mark)!r}, 'a').write('x'); print('all is well')"),
        _part("bad", "print('see [/job:localhost]'); raise SystemExit(3)"),
        _part("long", "print('never')", expected=1000),
        _part("last", "print('the end')"),
    ]
    assert visit(several, [], 100, tmp_path / "out") == 1
    said = capfd.readouterr().out
    assert "Left for the next command: long" in said
    table = said[said.index("The visit so far") :]
    for row in ("good │ done", "bad  │ failed", "long │ not run", "last │ done"):
        assert row in table
    assert "see [/job:localhost]" in table
    entries = json.loads((tmp_path / "out" / "visit.json").read_text())
    assert {name: entry["status"] for name, entry in entries.items()} == {
        "good": 0,
        "bad": 3,
        "last": 0,
    }
    assert visit(several, [], 100, tmp_path / "out") == 0  # only what is left, for which is no time
    assert visit(several, ["good"], 100, tmp_path / "out") == 0
    assert mark.read_text() == "xx"
    rehearsed = _part("bad", "print('only a rehearsal')")
    assert visit([rehearsed], [], 100, tmp_path / "out") == 0
    assert visit(several, [], 100, tmp_path / "out") == 1  # it is not over for that
    assert "see [/job:localhost]" in capfd.readouterr().out


def test_a_part_that_hangs_is_interrupted_and_then_killed_with_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LATE", 0.0)
    polite = _part("polite", "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print(7)")
    assert running.run(polite, 1.5, tmp_path / "polite.log") == ("cut off", 0)
    assert (tmp_path / "polite.log").read_text() == "7\n"
    monkeypatch.setattr(running, "GRACE", 0.5)
    deaf = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    log = tmp_path / "deaf.log"
    assert running.run(_part("deaf", deaf), 1.5, log) == ("cut off", -signal.SIGKILL)
    assert until(lambda: not is_alive(int(log.read_text())))


def test_a_visit_that_is_ended_tells_what_it_has(tmp_path: Path) -> None:
    script = "import time; print('begun', flush=True); time.sleep(60)"
    program = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from benchmarks.visit.__main__ import visit\n"
        "from benchmarks.visit.parts import Part\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        f"visit([Part('one', ('-c', {script!r}), 1, 50, False)], [], 100, Path({str(tmp_path)!r}))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        until(lambda: "begun" in _text(tmp_path / "logs" / "one.log"))
        process.terminate()
        said, _ = process.communicate(timeout=20)
    assert process.returncode == 143
    assert "one  │ cut off" in said


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_every_command_of_a_visit_is_one_that_its_program_takes(tmp_path: Path) -> None:
    """Flags are read before anything is measured: a machine without a GPU is refused with 2."""
    everything = parts(tmp_path / "out", tmp_path / "work", rehearse=False)
    for part in everything:
        assert part.expected <= part.limit
        assert part.limit + running.LATE + running.GRACE <= 600  # one command may run so long
    tests = {path.name for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    words = [word for part in everything if "tests" in part.name for word in part.command]
    assert sorted(Path(word).name for word in words if word.endswith(".py")) == sorted(tests)
    by_program = {part.command[1]: part.argv(100) for part in everything}
    programs = ("benchmarks.gpu", "benchmarks.offline.gpu", "benchmarks.train")
    commands = [by_program[program] for program in programs]
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    running_now = [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    for process in running_now:
        said, _ = process.communicate(timeout=40)
        assert process.returncode == 2, said
        assert "There is no GPU here" in said


def test_files_of_tests_run_at_the_same_time_and_each_failure_counts(tmp_path: Path) -> None:
    meet = (
        "import os, pathlib, time\n"
        "def test_{0}():\n"
        "    here = pathlib.Path(__file__).parent\n"
        "    (here / '{0}').touch()\n"
        "    until = time.monotonic() + 30\n"
        "    while not (here / '{1}').exists():\n"
        "        assert time.monotonic() < until\n"
        "        time.sleep(0.01)\n"
        "    assert os.environ['TF_FORCE_GPU_ALLOW_GROWTH'] == 'true'\n"
    )
    (tmp_path / "test_a.py").write_text(meet.format("a", "b"))
    (tmp_path / "test_b.py").write_text(meet.format("b", "a"))
    (tmp_path / "test_c.py").write_text("def test_c():\n    assert False\n")

    def run(*files: str) -> subprocess.CompletedProcess[str]:
        places = [str(tmp_path / file) for file in files]
        return subprocess.run(
            [sys.executable, "-m", "benchmarks.visit.suites", *places, "--", "-p", "no:xdist"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=50,
        )

    met = run("test_a.py", "test_b.py")
    assert met.returncode == 0, met.stdout
    assert "2 files passed" in met.stdout
    failed = run("test_b.py", "test_c.py")
    assert failed.returncode == 1
    assert failed.stdout.rstrip().endswith("test_c.py")
    assert run().returncode == 1


def test_what_programs_within_the_tests_import_is_there() -> None:
    """They are texts, run on a GPU alone: no checker and no collection sees a name that moved."""
    checked = 0
    for path in (ROOT / "tests" / "gpu").glob("test_*.py"):
        for text in _texts(ast.parse(path.read_text())):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("penstock"):
                    exec(ast.unparse(node), {})
                    checked += 1
    assert checked > 8


def _texts(tree: ast.Module) -> Iterator[str]:
    """The programs that a module has as constants."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            value = node.value.value
            if isinstance(value, str) and "import " in value:
                yield value
