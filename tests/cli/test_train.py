"""`penstock train`: what it is told, what it would start, which cards it shares out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.devices.conftest import GB, machine  # noqa: F401
from tests.train.launching import Launcher


@pytest.fixture
def launcher(tmp_path: Path):
    launcher = Launcher(tmp_path)
    launcher.script("print('ran')")
    yield launcher
    launcher.close()


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["nowhere.py"], 1, "there is no script 'nowhere.py'"),
        (["job.py", "--workers", "0"], 2, "--workers"),
        (["job.py", "--workers", "many"], 2, "not a valid integer"),
        (["job.py", "--worker", "2"], 2, "No such option"),
        (["job.py", "--rank", "1"], 1, "--rank says which of --nodes"),
        (["job.py", "--nodes", "a:1,b:1"], 1, "--rank says which this is"),
        (["job.py", "--nodes", "a:1,b:1", "--rank", "2"], 1, "expected 0 to 1; got 2"),
        (["job.py", "--nodes", "a,b", "--rank", "0"], 1, "an address is host:port"),
        (["job.py", "--nodes", "a:1,a:1", "--rank", "0"], 1, "the same address twice"),
        (["job.py", "--nodes", "a:65535", "--workers", "2"], 1, "65535 is the last"),
        (["job.py", "--gpu-memory", "4G", "--gpus-per-worker", "2"], 1, "is of one card"),
        (["job.py", "--gpu-memory", "much"], 2, "--gpu-memory"),
        (["job.py", "--gpus-per-worker", "1"], 1, "GPUs were asked for, but no GPU was found"),
    ],
)
def test_what_cannot_be_is_refused(launcher, flags: list[str], code: int, said: str) -> None:
    done = launcher.run(*flags, "--explain")
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


def test_a_cluster_that_others_have_planned_is_left_to_them(launcher: Launcher) -> None:
    done = launcher.run("job.py", TF_CONFIG='{"cluster": {"worker": ["a:1"]}}')
    assert done.returncode == 1
    assert "TF_CONFIG is set" in done.stderr


def test_explain_tells_the_cluster_and_starts_nothing(launcher: Launcher) -> None:
    launcher.script("(HERE / 'ran').touch()")
    arguments = ["job.py", "--ps", 1, "--nodes", "a:100,b:200", "--rank", 1, "--workers", 2]
    done = launcher.run(*arguments, "--explain")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert done.stdout.startswith("parameter server, 6 processes on 2 machines (--nodes):")
    assert rows[1:7] == [
        ["chief", "a:101", "rank", "0"],
        ["ps", "0", "a:102", "rank", "0"],
        ["worker", "0", "a:103", "rank", "0"],
        ["worker", "1", "a:104", "rank", "0"],
        ["worker", "2", "b:201", "cpu"],
        ["worker", "3", "b:202", "cpu"],
    ]
    told = json.loads(launcher.run(*arguments, "--explain", "--json").stdout)
    assert told["kind"] == "parameter_server"
    assert told["cluster"]["worker"] == ["a:103", "a:104", "b:201", "b:202"]
    assert [task["task"] for task in told["here"]] == ["worker 2", "worker 3"]
    assert not (launcher.place / "ran").exists()


# ── cards (made-up ones) ────────────────────────────────────────────────────────────────────────

CARDS = [{"uuid": f"GPU-{letter}-1", "name": "Fake"} for letter in ("aaaa", "bbbb", "cccc")]
SHOW = """
print(os.environ.get('CUDA_VISIBLE_DEVICES'))
(HERE / f'{NAME}-{INDEX}-shown').touch()
if NAME == 'chief':
    await_file('ps-0-shown'), await_file('worker-0-shown')
"""


def shown(text: str) -> dict[str, str]:
    return dict(line.split(" │ ") for line in text.splitlines() if "│" in line)


def test_cards_are_shared_out_evenly(machine, tmp_path: Path) -> None:  # noqa: F811
    machine.set(*CARDS)
    launcher = Launcher(tmp_path)
    launcher.script(SHOW)
    done = launcher.run("job.py", "--workers", 1, "--ps", 1)
    seen = shown(done.stdout)
    assert (seen["chief   "], seen["ps 0    "]) == ("-1", "-1")
    assert seen["worker 0"] == "GPU-aaaa-1,GPU-bbbb-1,GPU-cccc-1"
    done = launcher.run("job.py", "--workers", 2, "--gpus-per-worker", 1)
    assert set(shown(done.stdout).values()) == {"GPU-aaaa-1", "GPU-bbbb-1"}
    done = launcher.run("job.py", "--workers", 4)
    assert done.returncode == 1
    assert "4 workers, but there are 3 GPUs" in done.stdout
    done = launcher.run("job.py", "--workers", 2, "--gpus-per-worker", 0)
    assert set(shown(done.stdout).values()) == {"-1"}


def test_workers_share_a_card_within_limits(machine, tmp_path: Path) -> None:  # noqa: F811
    launcher = Launcher(tmp_path)
    launcher.script(
        "import tensorflow as tf; print(tf.limits, os.environ['PENSTOCK_TRAIN_CROWDED'])"
    )
    done = launcher.run("job.py", "--workers", 2, "--gpu-memory", "4G")
    assert done.returncode == 0, done.stdout + done.stderr
    limits = f"{{'GPU-aaaa-1': {4096 - 700}}} 1"
    assert shown(done.stdout) == {"worker 0": limits, "worker 1": limits}
    done = launcher.run("job.py", "--workers", 5, "--gpu-memory", "4G")
    assert done.returncode == 1
    assert "too little memory on the GPU: 4.0 GB were asked for" in done.stdout
