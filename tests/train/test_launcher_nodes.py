"""`penstock train` on several machines, played by several launchers on one."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from penstock import launch
from penstock.train.launcher.ports import free_ports
from tests.conditions import until
from tests.train.launching import Launcher, ended


@pytest.fixture
def launcher(tmp_path: Path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


@pytest.fixture
def nodes() -> str:
    """Two machines: a row of free ports each."""
    first, second = free_ports(2)
    return f"127.0.0.1:{first},127.0.0.1:{second}"


def both(launcher: Launcher, nodes: str, *arguments: object):
    ranks = [launcher.begin("job.py", "--nodes", nodes, "--rank", r, *arguments) for r in (1, 0)]
    member, head = map(ended, ranks)
    return head, member


def test_all_machines_see_one_cluster(launcher: Launcher, nodes: str) -> None:
    launcher.script("print(os.environ['TF_CONFIG'])")
    head, member = both(launcher, nodes, "--workers", 2)
    assert (head.returncode, member.returncode) == (0, 0), head.stdout + member.stdout
    lines = [line for each in (head, member) for line in each.stdout.splitlines() if "│" in line]
    assert sorted(line.split(" │")[0] for line in lines) == [f"worker {n}" for n in range(4)]
    configs = [json.loads(line.split(" │ ")[1]) for line in lines]
    assert {json.dumps(config["cluster"]) for config in configs} == {
        json.dumps(configs[0]["cluster"])
    }
    first, second = (int(node.split(":")[1]) for node in nodes.split(","))
    assert configs[0]["cluster"]["worker"] == [
        f"127.0.0.1:{port}" for port in (first + 1, first + 2, second + 1, second + 2)
    ]


def test_a_crash_on_one_machine_ends_and_restarts_all(launcher: Launcher, nodes: str) -> None:
    launcher.script(
        "if ATTEMPT == 0 and INDEX == 1:\n"
        "    await_file('worker-0-runs'); raise ValueError('row 7 is bad')\n"
        "if ATTEMPT == 0:\n    for_ever()\n"
        "print('went well')\n"
    )
    head, member = both(launcher, nodes, "--restarts", 1)
    for done in (head, member):
        assert done.returncode == 0, done.stdout
        assert "worker 1 failed first: ValueError: row 7 is bad" in done.stdout
        assert "went well" in done.stdout


def test_a_lost_machine_ends_the_others(launcher: Launcher, nodes: str) -> None:
    launcher.script("for_ever()")
    head, member = (launcher.begin("job.py", "--nodes", nodes, "--rank", r) for r in (0, 1))
    launcher.await_files("worker-0-runs", "worker-1-runs")
    (supervisor,) = launch.children(member.pid)
    os.kill(supervisor, signal.SIGKILL)
    done = ended(head)
    assert done.returncode == 1
    assert "rank 1 failed first: its machine's connection broke" in done.stdout
    until(lambda: launcher.alive() == [])


def test_ctrl_c_on_one_machine_ends_all(launcher: Launcher, nodes: str) -> None:
    launcher.script("for_ever()")
    head, member = (launcher.begin("job.py", "--nodes", nodes, "--rank", r) for r in (0, 1))
    launcher.await_files("worker-0-runs", "worker-1-runs")
    member.send_signal(signal.SIGINT)
    assert [ended(member).returncode, ended(head).returncode] == [130, 130]


def test_the_chief_ends_parameter_servers_on_all_machines(launcher: Launcher, nodes: str) -> None:
    launcher.script("if NAME == 'chief':\n    await_file('worker-1-runs')\nelse:\n    for_ever()\n")
    head, member = both(launcher, nodes, "--ps", 2)
    assert (head.returncode, member.returncode) == (0, 0), head.stdout + member.stdout


def test_commands_that_do_not_fit_are_refused(launcher: Launcher, nodes: str) -> None:
    launcher.script("for_ever()")
    head = launcher.begin("job.py", "--nodes", nodes, "--rank", 0, "--workers", 1)
    done = launcher.run("job.py", "--nodes", nodes, "--rank", 1, "--ps", 1)
    assert done.returncode == 1
    assert "the job's first machine refuses this one" in done.stdout
    head.send_signal(signal.SIGINT)
    assert ended(head).returncode == 130


def test_under_slurm_no_flags_are_needed(launcher: Launcher) -> None:
    launcher.script("print(os.environ['TF_CONFIG'])")
    (port,) = free_ports(1)
    slurm = {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "PENSTOCK_TRAIN_PORT": str(port),
    }
    tasks = [launcher.begin("job.py", SLURM_PROCID=str(n), **slurm) for n in (0, 1)]
    done = list(map(ended, tasks))
    assert [each.returncode for each in done] == [0, 0], [each.stdout for each in done]
    told = [json.loads(each.stdout.split("│ ")[1].splitlines()[0]) for each in done]
    assert [config["task"]["index"] for config in told] == [0, 1]
    assert told[0]["cluster"]["worker"] == [f"localhost:{port + 1}", f"localhost:{port + 3}"]


def test_machines_that_do_not_come_are_waited_for_as_long_as_was_said(
    launcher: Launcher, nodes: str
) -> None:
    launcher.script("")
    for rank, told in ((0, "within 1 s nothing came from rank 1"), (1, "within 1 s (rank 0)")):
        done = launcher.run("job.py", "--nodes", nodes, "--rank", rank, "--timeout", 1)
        assert done.returncode == 1
        assert told in done.stdout
