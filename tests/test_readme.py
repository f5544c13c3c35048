"""The README's examples run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

README = (Path(__file__).parent.parent / "README.md").read_text()


def _blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the README's model in it, and a place for engines of its own."""
    module = next(block for block in _blocks() if block.startswith("# scoring.py"))
    (tmp_path / "scoring.py").write_text(module)
    monkeypatch.setenv("PENSTOCK_DIR", str(tmp_path / "engines"))
    return tmp_path


def _run(code: str, folder: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    ).stdout


def test_the_owner_of_an_engine(folder: Path) -> None:
    (owner,) = [block for block in _blocks() if "penstock.Engine(" in block]
    assert _run(owner, folder) == "(1000, 10) (1, 10)\n"


def test_any_other_process(folder: Path) -> None:
    (client,) = [block for block in _blocks() if "penstock.connect(" in block]
    with penstock.Engine(f"{folder / 'scoring.py'}:score", name="scores"):
        told = _run(client, folder)
    assert len(told.split()) == 5


def test_the_shell(folder: Path) -> None:
    (commands,) = re.findall(r"```\n(penstock up .*?)```", README, re.DOTALL)
    (end,) = re.findall(r"`(penstock down [^`]*)`", README)
    for command in [*commands.strip().splitlines(), end]:
        done = subprocess.run(
            [sys.executable, "-m", *command.split()],
            cwd=folder,
            env={**os.environ, "XDG_STATE_HOME": str(folder)},
            capture_output=True,
            text=True,
            timeout=50,
            check=True,
        )
        assert "scores" in done.stdout
