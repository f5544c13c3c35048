"""`penstock run`: a command with a share of a (made-up) GPU, unchanged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.devices import ledger
from tests.conditions import until
from tests.devices.conftest import GB, machine  # noqa: F401

LIMIT = 4096 - 700  # MB
SHOW = "import tensorflow as tf; print(tf.limits)"


@pytest.fixture
def run(machine):  # noqa: F811
    """The command, run to its end."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock", "run", *arguments],
            cwd=machine.place,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=40,
        )

    return run


def test_a_script_is_limited_without_a_change(run) -> None:
    done = run("--gpu-memory", "4G", "--", sys.executable, "-c", SHOW)
    assert (done.stdout, done.stderr) == (f"{{'GPU-aaaa-1': {LIMIT}}}\n", "")
    done = run("--gpu-memory", "4G", sys.executable, "-c", f"{SHOW}; raise SystemExit(7)")
    assert done.returncode == 7


def test_python_below_a_shell_is_limited_too(run) -> None:
    line = f'"{sys.executable}" -c "{SHOW}"; kill -USR1 $$'
    done = run("--gpu-memory", "4G", "--", "sh", "-c", line)
    assert done.stdout == f"{{'GPU-aaaa-1': {LIMIT}}}\n"
    assert done.returncode == -signal.SIGUSR1


def test_any_command_gets_the_environment(run) -> None:
    line = "echo $CUDA_VISIBLE_DEVICES $PENSTOCK_GPU_MEMORY $CUDA_DEVICE_ORDER; yes | true; echo $?"
    done = run("--gpu-memory", "4G", "--gpu", "gpu:0", "--", "bash", "-o", "pipefail", "-c", line)
    assert done.stdout == f"GPU-aaaa-1 {4 * GB} PCI_BUS_ID\n141\n"  # SIGPIPE is not ignored


def test_another_sitecustomize_still_runs(run, machine) -> None:  # noqa: F811
    (machine.modules / "sitecustomize.py").write_text("import builtins; builtins.here = __file__")
    script = f"{SHOW}; import sitecustomize, sys; print(here == sitecustomize.__file__)"
    done = run("--gpu-memory", "4G", "--", sys.executable, "-c", script)
    assert done.stdout.splitlines() == [f"{{'GPU-aaaa-1': {LIMIT}}}", "True"]


def test_a_python_without_penstock_is_limited_too(run) -> None:
    script = f"import importlib.util as u; print(u.find_spec('penstock')); {SHOW}"
    bare = [Path(sys.executable).resolve(), "-c", script]  # out of the virtual environment
    done = run("--gpu-memory", "4G", "--", *map(str, bare))
    assert done.stdout.splitlines() == ["None", f"{{'GPU-aaaa-1': {LIMIT}}}"], done.stderr


def test_the_share_is_held_while_the_command_runs_and_then_free(machine) -> None:  # noqa: F811
    script = (
        "import os, sys\n"
        "if os.fork() == 0:\n"
        "    sys.stdin.readline(); os._exit(0)\n"  # this child outlives its parent
        "print('runs', flush=True); sys.stdin.readline()"
    )
    command = [sys.executable, "-m", "penstock", "run", "--gpu-memory", "10G", "--"]
    with subprocess.Popen(
        [*command, sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "runs\n"
        (promise,) = ledger.promises()
        assert (promise.pid, promise.size) == (process.pid, 10 * GB)
        assert promise.purpose.startswith(f"{sys.executable} -c import os")
        second = subprocess.Popen(
            [*command[:-1], "--wait", "30", "--", "echo", "mine"], stdout=subprocess.PIPE, text=True
        )
        with second:
            process.kill()
            until(lambda: not any(p.pid == process.pid for p in ledger.promises()))
            assert second.stdout.read() == "mine\n"


def test_a_claim_in_the_script_is_the_share_that_it_was_given(run) -> None:
    script = """
import penstock, os
from penstock.devices import ledger
with penstock.claim_gpu("3G") as claim:
    print(claim, len(ledger.promises()))
print(ledger.promises())
"""
    done = run("--gpu-memory", "4G", "--", sys.executable, "-c", script)
    assert done.stdout == "<Claim: 4.0 GB of gpu:0 (Fake A, GPU-aaaa-1)> 1\n[]\n", done.stderr
    done = run("--gpu-memory", "2G", "--", sys.executable, "-c", script)
    assert "3.0 GB were asked for in a process that was started with a share of 2.0 GB" in (
        done.stderr
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--gpu-memory", "20G", "--", "true"], 1, "20.0 GB were asked for; gpu:0 (Fake A"),
        (["--gpu-memory", "20G", "--wait", "99", "--", "true"], 1, "16.0 GB left of 16.0 GB"),
        (["--gpu-memory", "4G", "--gpu", "gpu:3", "--", "true"], 1, "no card is 'gpu:3'"),
        (["--gpu-memory", "4G", "--", "no-such-command"], 1, "no command 'no-such-command'"),
        (["--gpu-memory", "1M", "--", "true"], 1, "at least 764 MB"),
        (["--gpu-memory", "much", "--", "true"], 2, "a size is a number"),
        (["--", "true"], 2, "--gpu-memory"),
        (["--gpu-memory", "4G"], 2, "COMMAND"),
    ],
)
def test_what_is_refused(run, arguments, code, words) -> None:
    done = run(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert ledger.promises() == []
