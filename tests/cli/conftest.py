"""The command as people run it: a process of its own, with a folder, a state and a home in tmp."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT = 40

MODELS = """
import time
from pathlib import Path

def double(x):
    return x + x

def negate(x):
    return -x

def hold_until_file(x):
    for path in x.reshape(-1).tolist():
        while not Path(path.decode()).exists():
            time.sleep(0.002)
    return x
"""

SLOW = """
import time
from pathlib import Path

while not Path(__file__).with_name("go").exists():
    time.sleep(0.005)

def double(x):
    return x + x
"""


class Shop:
    """A folder with a module of models, and the command run in it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._begun: list[subprocess.Popen[str]] = []
        self.folder = place / "run"
        self.state = place / "state"
        self.environment = {
            **os.environ,
            "PENSTOCK_DIR": str(self.folder),
            "XDG_STATE_HOME": str(self.state),
            "HOME": str(place),
            "COLUMNS": "100",
        }
        (place / "shop.py").write_text(MODELS)
        (place / "slow.py").write_text(SLOW)
        (place / "broken.py").write_text("raise RuntimeError('half a model\\nis none')\n")

    def command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", "penstock", *map(str, arguments)]

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.place,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )

    def begin(self, *arguments: object, **options: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.command(*arguments),
            cwd=self.place,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self._begun.append(process)
        return process

    def json(self, *arguments: object) -> object:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def end_all(self) -> None:
        for process in self._begun:
            with process:  # closes its pipes
                process.kill()
        folder = Path(self.environment["PENSTOCK_DIR"])
        if not folder.is_dir() or not any(folder.iterdir()):  # nobody to look for
            return
        for engine in self.json("ps"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(engine["pid"], signal.SIGKILL)


@pytest.fixture
def shop(tmp_path: Path):
    shop = Shop(tmp_path)
    yield shop
    shop.end_all()


@pytest.fixture(scope="module")
def shared_shop(tmp_path_factory: pytest.TempPathFactory):
    """One for all tests of a module, for those that only look."""
    shop = Shop(tmp_path_factory.mktemp("shop"))
    yield shop
    shop.end_all()
