"""`penstock train` as people run it, on plain scripts; and what of it still lives afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conditions import is_alive, until

LIMIT = 50
MARK = "PENSTOCK_TEST_LAUNCH"  # its value marks a test's processes, in whatever session

# What every script knows: its task, its folder, a file to wait for.
PREAMBLE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
TASK = json.loads(os.environ["TF_CONFIG"])["task"]
NAME, INDEX, ATTEMPT = TASK["type"], TASK["index"], int(os.environ["PENSTOCK_TRAIN_ATTEMPT"])
HERE = Path(__file__).parent
def await_file(name):
    while not (HERE / name).exists():
        time.sleep(0.002)
def for_ever():
    (HERE / f"{NAME}-{INDEX}-runs").touch()
    while True:
        time.sleep(60)
"""


class Launcher:
    """A folder with scripts, and the command run in it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.environment = {**os.environ, MARK: str(place)}
        for name in list(self.environment):
            if name.startswith(("SLURM_", "TF_CONFIG", "JOB_COMPLETION", "PENSTOCK_TRAIN")):
                del self.environment[name]
        self._begun: list[subprocess.Popen[str]] = []

    def script(self, text: str, name: str = "job.py") -> str:
        (self.place / name).write_text(PREAMBLE + text)
        return name

    def begin(self, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "train", *map(str, arguments)],
            cwd=self.place,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._begun.append(process)
        return process

    def run(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return ended(self.begin(*arguments, **environment))

    def await_files(self, *names: str) -> None:
        for name in names:
            until((self.place / name).exists)

    def alive(self) -> list[int]:
        """Every process that this test has started and that still runs."""
        mark = f"{MARK}={self.place}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return [pid for pid in found if pid != os.getpid() and is_alive(pid)]

    def close(self) -> None:
        for process in self._begun:
            with process:
                process.kill()
        until(lambda: not self.alive())  # no test leaves an orphan


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=LIMIT)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
