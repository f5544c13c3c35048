"""`penstock train`: real processes that end well, crash, hang, are stopped, killed, restarted."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from penstock import launch
from penstock.train.launcher.blame import TRACEBACK
from penstock.train.launcher.held import Held
from penstock.train.launcher.job import Job
from penstock.train.launcher.lines import Lines
from penstock.train.launcher.pace import scaling
from tests.conditions import is_alive, until
from tests.signals import ignored
from tests.train.launching import Launcher, ended


@pytest.fixture
def launcher(tmp_path: Path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def test_each_process_learns_who_it_is_and_gets_the_arguments(launcher: Launcher) -> None:
    job = launcher.script(
        "config = json.loads(os.environ['TF_CONFIG'])\n"
        "print(json.dumps([config, sys.argv[1:], os.environ['PENSTOCK_TRAIN_CHECKPOINTS'],\n"
        "  os.environ['PENSTOCK_TRAIN_PROFILE'], 'PENSTOCK_TRAIN_SUMMARY' in os.environ]))\n"
    )
    done = launcher.run(
        *(job, "--workers", 2, "--checkpoints", "kept", "--profile", "seen"),
        *("--", "--lr", "0.1", "--workers"),
    )
    assert done.returncode == 0, done.stderr
    told = dict(line.split(" │ ", 1) for line in done.stdout.splitlines() if "│" in line)
    assert sorted(told) == ["worker 0", "worker 1"]
    configs, arguments, kept, seen, summary = zip(*map(json.loads, told.values()), strict=True)
    assert {config["task"]["index"] for config in configs} == {0, 1}
    assert configs[0]["cluster"] == configs[1]["cluster"]
    assert len(set(configs[0]["cluster"]["worker"])) == 2
    assert arguments == (["--lr", "0.1", "--workers"],) * 2
    assert set(kept) == {str(launcher.place / "kept")}
    assert set(seen) == {str(launcher.place / "seen")}
    assert sorted(summary) == [False, True]  # the chief's alone


def test_lines_stay_in_order_and_whole(launcher: Launcher) -> None:
    job = launcher.script(
        "for n in range(300):\n"
        "    print(n, file=sys.stderr if n % 2 else sys.stdout, flush=True)\n"
        "print('1/9\\r2/9\\r9/9')\n"
        "sys.stdout.write('the last one has no end \\u2713')\n"
    )
    done = launcher.run(job, "--workers", 2)
    for name in ("worker 0", "worker 1"):
        mine = [line.split(" │ ")[1] for line in done.stdout.splitlines() if line.startswith(name)]
        assert mine == [*map(str, range(300)), "9/9", "the last one has no end ✓"]


def test_colours_are_for_terminals_and_those_who_ask(launcher: Launcher) -> None:
    job = launcher.script("print('hello')")
    assert "\x1b" not in launcher.run(job, "--workers", 2).stdout
    assert (
        "\x1b[33mworker 1 │\x1b[0m hello"
        in launcher.run(job, "--workers", 2, FORCE_COLOR="1").stdout
    )


def test_a_crash_does_not_wait_for_the_scripts_threads(launcher: Launcher) -> None:
    job = launcher.script(
        "import threading\n"
        "if INDEX == 1:\n"
        "    threading.Thread(target=threading.Event().wait).start()\n"
        "    print('not lost')\n"
        "    raise ValueError('row 7 is bad')\n"
        "for_ever()\n"
    )
    done = launcher.run(job, "--workers", 2)
    assert done.returncode == 1
    assert "worker 1 failed first: ValueError: row 7 is bad" in done.stdout
    assert "not lost" in done.stdout


@pytest.mark.parametrize(
    ("leaves", "code", "said"),
    [("sys.exit(3)", 3, ""), ("sys.exit('no data')", 1, "no data"), ("exit(-1)", 255, "")],
)
def test_a_script_that_ends_itself_does_not_wait_for_its_threads_either(
    launcher: Launcher, leaves: str, code: int, said: str
) -> None:
    job = launcher.script(
        "import threading\n"
        "if INDEX == 1:\n"
        "    threading.Thread(target=threading.Event().wait).start()\n"
        "    print('not lost')\n"
        f"    {leaves}\n"
        "for_ever()\n"
    )
    done = launcher.run(job, "--workers", 2)
    assert done.returncode == 1
    assert f"worker 1 failed first: it exited with code {code}" in done.stdout
    assert "not lost" in done.stdout
    assert said in done.stdout
    assert "Traceback" not in done.stdout


def test_a_script_that_ends_itself_well_has_not_failed(launcher: Launcher) -> None:
    for leaves in ("sys.exit()", "sys.exit(0)"):
        job = launcher.script(f"import atexit; atexit.register(print, 'at exit'); {leaves}\n")
        done = launcher.run(job, "--workers", 2)
        assert (done.returncode, done.stdout.count("at exit")) == (0, 2), done.stdout


def test_a_crash_ends_the_rest_and_is_told_last(launcher: Launcher) -> None:
    job = launcher.script(
        "if INDEX == 1:\n"
        "    await_file('worker-0-runs'); await_file('worker-2-runs')\n"
        "    raise ValueError('row 7 is bad')\n"
        "for_ever()\n"
    )
    done = launcher.run(job, "--workers", 3)
    assert done.returncode == 1
    summary = done.stdout[done.stdout.index("penstock:") :].splitlines()
    assert summary[0] == "penstock: worker 1 failed first: ValueError: row 7 is bad"
    assert summary[1] == "    Traceback (most recent call last):"
    assert summary[-2:] == [
        "penstock: worker 0: it was killed by SIGTERM",
        "penstock: worker 2: it was killed by SIGTERM",
    ]


def test_the_real_error_is_told_though_its_consequence_comes_first(launcher: Launcher) -> None:
    # Worker 0 loses its connection and is out first; worker 1, whose fault it was, is slow to go.
    job = launcher.script(
        "if INDEX == 0:\n"
        "    await_file('raised')\n"
        "    raise ConnectionResetError('Socket closed')\n"
        "try:\n"
        "    raise KeyError('no such column')\n"
        "finally:\n"
        "    (HERE / 'raised').touch(); time.sleep(0.7)\n"
    )
    done = launcher.run(job, "--workers", 2)
    shown = done.stdout.splitlines()
    assert shown[0] == "penstock: worker 1 failed first: KeyError: 'no such column'"
    assert shown[1] == "    Traceback (most recent call last):"
    assert done.stdout.count("Traceback") == 1  # the consequence is one line
    assert shown[-1] == (
        "penstock: worker 0: it exited with code 1 of ConnectionResetError: Socket closed"
    )


def test_a_traceback_that_is_survived_is_shown(launcher: Launcher) -> None:
    job = launcher.script(
        "import traceback\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()\n"
        "print('goes on')\n"
    )
    shown = launcher.run(job).stdout
    assert shown.index("Traceback") < shown.index("ZeroDivisionError") < shown.index("goes on")
    held = Held()
    assert not held.takes("a", "well", 0.0)
    assert [held.takes("a", line, 1.0) for line in (TRACEBACK, "and more")] == [True, True]
    assert not held.takes("b", "well", 1.0)
    assert (held.due(2.0), held.due(3.0)) == ([], ["a"])
    assert held.given("a") == [TRACEBACK, "and more"]
    assert (held.due(9.0), held.given("a"), held.takes("a", "well", 9.0)) == ([], [], False)


def test_a_progress_bar_is_shown_now_and_then() -> None:
    lines = Lines()
    assert list(lines.feed(b"Epoch 1/2\n\r1/9")) == ["Epoch 1/2"]
    assert lines.standing(0.0) == ""  # a line that was begun, and may end at once
    assert list(lines.feed(b"\b\b\b\r2/9")) == []
    assert [lines.standing(now) for now in (1.0, 5.0)] == ["", ""]
    assert list(lines.feed(b"\b\b\b\r3/9")) == []
    assert [lines.standing(now) for now in (6.0, 7.0)] == ["3/9", ""]
    assert lines.standing(11.0) == ""  # as it was
    assert list(lines.feed(b"\b\b\b\r4/9")) == []
    assert lines.standing(16.0) == "4/9"
    assert list(lines.feed(b"\b\b\b\r9/9\n")) == ["9/9"]
    assert list(lines.feed(b"no bar")) == []
    assert [lines.standing(now) for now in (20.0, 40.0)] == ["", ""]


def test_a_consequence_alone_is_told_all_the_same(launcher: Launcher) -> None:
    job = launcher.script(
        "if INDEX == 0:\n    raise ConnectionResetError('Socket closed')\nfor_ever()\n"
    )
    done = launcher.run(job, "--workers", 2)
    assert "worker 0 failed first: ConnectionResetError: Socket closed" in done.stdout


def test_what_the_others_say_while_ending_does_not_bury_the_error(launcher: Launcher) -> None:
    job = launcher.script(
        "def noise(*_):\n"
        "    for n in range(200): print('connection lost', n)\n"
        "    sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, noise)\n"
        "if INDEX == 1:\n    await_file('worker-0-runs')\n    sys.exit('the disk is full')\n"
        "for_ever()\n"
    )
    done = launcher.run(job, "--workers", 2)
    assert "connection lost" not in done.stdout
    assert "penstock: worker 1 failed first: it exited with code 1" in done.stdout
    assert "    the disk is full" in done.stdout
    assert "200 lines that the others wrote while ending are left out" in done.stdout


def test_one_that_does_not_end_is_killed(launcher: Launcher) -> None:
    job = launcher.script(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if INDEX == 1:\n    await_file('worker-0-runs'); os.kill(os.getpid(), signal.SIGSEGV)\n"
        "for_ever()\n"
    )
    done = launcher.run(job, "--workers", 2, "--grace", 0.2)
    assert "worker 1 failed first: it was killed by SIGSEGV" in done.stdout
    assert "worker 0: it was killed by SIGKILL" in done.stdout


def test_one_that_stands_stopped_counts_as_dead(launcher: Launcher) -> None:
    job = launcher.script(
        "if INDEX == 1:\n    await_file('worker-0-runs'); os.kill(os.getpid(), signal.SIGSTOP)\n"
        "for_ever()\n"
    )
    done = launcher.run(job, "--workers", 2, "--patience", 0.5)
    assert done.returncode == 1
    assert "worker 1 failed first: it stood stopped (SIGSTOP) for 0.5 s" in done.stdout


def test_restarts_go_on_until_it_works(launcher: Launcher) -> None:
    job = launcher.script(
        "print('attempt', ATTEMPT)\n"
        "if ATTEMPT < 2 and INDEX == 0:\n    sys.exit(5)\n"
        "if ATTEMPT < 2:\n    for_ever()\n"
    )
    done = launcher.run(job, "--workers", 2, "--restarts", 2, "--checkpoints", "kept", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["outcome"], told["attempts"], told["error"]) == ("done", 3, None)
    assert [task["code"] for task in told["tasks"]] == [0, 0]
    assert f"restart 2 of 2, from the newest checkpoint in {launcher.place}/kept" in done.stderr
    assert "worker 1 │ attempt 2" in done.stderr


def test_restarts_run_out(launcher: Launcher) -> None:
    job = launcher.script("if INDEX == 1: raise ValueError('always')\nfor_ever()\n")
    done = launcher.run(job, "--workers", 2, "--restarts", 1, "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["outcome"], told["attempts"]) == (1, "failed", 2)
    assert (told["error"]["task"], told["error"]["text"]) == ("worker 1", "ValueError: always")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_end_it_ends_everything(launcher: Launcher, number: signal.Signals) -> None:
    job = launcher.script("for_ever()")
    process = launcher.begin(job, "--workers", 2)
    launcher.await_files("worker-0-runs", "worker-1-runs")
    process.send_signal(number)
    done = ended(process)
    assert done.returncode == 130
    assert "interrupted; every process has ended" in done.stdout
    assert launcher.alive() == []


def test_what_is_ignored_from_the_start_does_not_end_it(launcher: Launcher) -> None:
    """As `nohup` ignores SIGHUP, and a shell SIGINT in the background."""
    job = launcher.script("(HERE / 'began').touch(); await_file('go'); print('went well')")
    with ignored(signal.SIGHUP, signal.SIGINT):
        process = launcher.begin(job)
    launcher.await_files("began")
    supervisor = launch.children(process.pid)
    for number in (signal.SIGHUP, signal.SIGINT):
        for pid in (process.pid, *supervisor):
            os.kill(pid, number)
    (launcher.place / "go").touch()
    done = ended(process)
    assert (done.returncode, "worker 0 │ went well" in done.stdout) == (0, True), done.stdout


def test_told_twice_it_does_not_wait(launcher: Launcher) -> None:
    job = launcher.script("signal.signal(signal.SIGTERM, lambda *_: print('not yet'))\nfor_ever()")
    process = launcher.begin(job, "--grace", 1000)
    launcher.await_files("worker-0-runs")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "worker 0 │ not yet\n"
    process.send_signal(signal.SIGINT)
    assert ended(process).returncode == 130


GRANDCHILDREN = (
    "subprocess.Popen(['sleep', '1000'])\n"
    "subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    "for_ever()\n"
)


@pytest.mark.parametrize("who", ["command", "supervisor"])
def test_killed_it_leaves_no_orphan(launcher: Launcher, who: str) -> None:
    job = launcher.script(GRANDCHILDREN)
    process = launcher.begin(job, "--workers", 2)
    launcher.await_files("worker-0-runs", "worker-1-runs")
    assert len(launcher.alive()) == 8  # command, supervisor, 2 tasks with 2 children each
    (supervisor,) = launch.children(process.pid)
    os.kill(process.pid if who == "command" else supervisor, signal.SIGKILL)
    done = ended(process)
    until(lambda: launcher.alive() == [])
    if who == "supervisor":
        assert done.returncode == 1
        assert "supervisor died (it was killed by SIGKILL)" in done.stderr


def test_what_a_task_leaves_behind_is_ended_too(launcher: Launcher) -> None:
    job = launcher.script(
        "left = subprocess.Popen(['sleep', '1000'], start_new_session=True)\nprint(left.pid)\n"
    )
    done = launcher.run(job)
    assert done.returncode == 0
    left = int(done.stdout.split("│")[1].split()[0])
    assert not is_alive(left)


def test_a_reader_that_goes_ends_it(launcher: Launcher) -> None:
    job = launcher.script("while True: print('more')\n")
    process = launcher.begin(job, "--workers", 2)
    assert "more" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=40) == 1
    assert launcher.alive() == []


def test_with_parameter_servers_the_chief_ends_it(launcher: Launcher) -> None:
    job = launcher.script(
        "if NAME == 'chief':\n"
        "    await_file('worker-1-runs'); await_file('ps-0-runs'); print('trained')\n"
        "else:\n    for_ever()\n"
    )
    done = launcher.run(job, "--workers", 2, "--ps", 1)
    assert done.returncode == 0, done.stdout
    assert "chief    │ trained" in done.stdout


def test_with_parameter_servers_a_dead_worker_comes_back_alone(launcher: Launcher) -> None:
    job = launcher.script(
        "me = HERE / f'{NAME}-{INDEX}.pids'\n"
        "me.open('a').write(f\"{os.getpid()} {os.environ['TF_CONFIG']}\\n\")\n"
        "if NAME == 'chief':\n    await_file('go')\nelse:\n    for_ever()\n"
    )
    process = launcher.begin(job, "--workers", 2, "--ps", 1, "--restarts", 1)
    launcher.await_files("worker-0-runs", "worker-1-runs", "ps-0-runs")
    mine = launcher.place / "worker-1.pids"
    os.kill(int(mine.read_text().split()[0]), signal.SIGKILL)
    first, second = until(lambda: lines if len(lines := mine.read_text().splitlines()) == 2 else 0)
    assert first.split(" ", 1)[1] == second.split(" ", 1)[1]  # at the same address
    (launcher.place / "go").touch()
    done = ended(process)
    assert done.returncode == 0, done.stdout
    assert "worker 1 failed: it was killed by SIGKILL" in done.stdout
    for other in ("chief-0", "worker-0", "ps-0"):
        assert len((launcher.place / f"{other}.pids").read_text().splitlines()) == 1


def test_with_parameter_servers_a_dead_server_restarts_all(launcher: Launcher) -> None:
    job = launcher.script(
        "if NAME == 'ps' and ATTEMPT == 0:\n"
        "    await_file('worker-0-runs'); os.kill(os.getpid(), signal.SIGKILL)\n"
        "if NAME == 'chief' and ATTEMPT == 1:\n    sys.exit(0)\n"
        "for_ever()\n"
    )
    done = launcher.run(job, "--workers", 1, "--ps", 1, "--restarts", 1)
    assert done.returncode == 0, done.stdout
    assert "ps 0 failed first: it was killed by SIGKILL" in done.stdout


def test_scaling_efficiency_is_told_when_it_is_known(launcher: Launcher) -> None:
    job = launcher.script(
        "workers = len(json.loads(os.environ['TF_CONFIG'])['cluster']['worker'])\n"
        "report = {'rows_per_second': 100 if workers == 1 else 150, 'workers': workers}\n"
        "report['steps'] = 20\n"
        "if INDEX == 0: Path(os.environ['PENSTOCK_TRAIN_SUMMARY']).write_text(json.dumps(report))\n"
    )
    done = launcher.run(job, "--workers", 2)
    assert "150 rows/s, 2 workers" in done.stdout
    assert "once the same job has run with --workers 1" in done.stdout
    assert "100 rows/s, 1 worker\n" in launcher.run(job).stdout
    done = launcher.run(job, "--workers", 2)
    assert "scaling efficiency 75%: one worker alone trained 100 rows/s" in done.stdout
    told = json.loads(launcher.run(job, "--workers", 2, "--json").stdout)
    assert (told["training"]["workers"], told["scaling"]["efficiency"]) == (2, 0.75)


def test_what_cannot_be_is_not_started_again(launcher: Launcher) -> None:
    job = launcher.script("from penstock.errors import ConfigError\nraise ConfigError('no such')")
    done = launcher.run(job, "--restarts", 3)
    assert done.returncode == 1
    assert "worker 0 failed first: penstock.errors.ConfigError: no such" in done.stdout
    assert "restart" not in done.stdout


def test_nor_is_a_worker_of_parameter_servers(launcher: Launcher) -> None:
    job = launcher.script(
        "from penstock.errors import ConfigError\n"
        "if NAME == 'worker': raise ConfigError('no such')\n"
        "for_ever()"
    )
    done = launcher.run(job, "--ps", 1, "--restarts", 3)
    assert done.returncode == 1
    assert "worker 0 failed first: penstock.errors.ConfigError: no such" in done.stdout
    assert "started again" not in done.stdout


def test_a_script_that_python_cannot_read_is_not_started_again(launcher: Launcher) -> None:
    """Python shows no traceback of it: nothing has run yet."""
    done = launcher.run(launcher.script("def broken(:"), "--restarts", 3)
    assert done.returncode == 1
    assert "worker 0 failed first: SyntaxError: invalid syntax" in done.stdout
    assert "restart" not in done.stdout


def test_an_option_of_the_scripts_own_is_told_where_to_stand(launcher: Launcher) -> None:
    job = launcher.script("print(sys.argv[1:])")
    done = launcher.run(job, "--rate", 0.1)
    assert done.returncode == 2
    assert "No such option '--rate'" in done.stderr
    assert "job.py -- --rate" in done.stderr
    assert "['--rate', '0.1']" in launcher.run(job, "--", "--rate", 0.1).stdout


def test_a_run_that_was_over_already_is_told(launcher: Launcher) -> None:
    job = launcher.script(
        "report = {'rows_per_second': 0, 'workers': 1, 'steps': 40, 'resumed_at_step': 40}\n"
        "Path(os.environ['PENSTOCK_TRAIN_SUMMARY']).write_text(json.dumps(report))\n"
    )
    assert "nothing was left to do, the newest checkpoint is of step 40" in launcher.run(job).stdout


def test_the_pace_of_a_few_steps_is_not_remembered(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("")
    job = Job(str(script))

    def told(pace: float, workers: int, **steps: int) -> float | None:
        report = {"rows_per_second": pace, "workers": workers, **steps}
        return (scaling(job, "cpu", report) or {}).get("efficiency")

    told(100.0, 1, steps=50)
    told(0.0, 1, steps=50, resumed_at_step=50)  # there was nothing left to do
    told(7.0, 1, steps=50, resumed_at_step=45)
    assert told(150.0, 2, steps=50) == 0.75
    assert told(0.0, 2, steps=50, resumed_at_step=50) is None
