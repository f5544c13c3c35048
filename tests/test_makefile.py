"""What `make test` and `make fuzz` do, where Python only notes what it is told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent
_PYTHON = """#!/bin/sh
echo "$PENSTOCK_FUZZ_SECONDS" "$@" >> {folder}/told
read code rest < {folder}/codes && echo "$rest" > {folder}/codes
exit "$code"
"""
_AGAIN = "--last-failed --last-failed-no-failures=none"


def _make(folder: Path, target: str, *codes: int) -> tuple[int, list[str]]:
    """Make a target where Python exits with these codes; returns make's, and what it was told."""
    (folder / "venv/bin").mkdir(parents=True)
    python = folder / "venv/bin/python"
    python.write_text(_PYTHON.format(folder=folder))
    python.chmod(0o755)
    (folder / "codes").write_text(" ".join(map(str, codes)) + "\n")
    (folder / "venv/.stamp").touch()  # it is there and up to date
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    command = ["make", "-C", str(_ROOT), f"VENV={folder}/venv", *target.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert (folder / "told").exists(), done.stdout + done.stderr
    return done.returncode, (folder / "told").read_text().splitlines()


@pytest.mark.parametrize(
    ("codes", "made"),
    [
        ([0], 0),
        ([1, 0], 0),  # a test failed and passed when it was alone
        ([1, 1], 2),
        ([1, 5], 2),  # it failed, and nobody knows which
        ([2], 2),  # interrupted
        ([3], 2),  # pytest itself failed: there may be tests that were not run
        ([4], 2),
        ([5], 2),
    ],
)
def test_only_what_failed_in_a_whole_run_is_run_again(
    tmp_path: Path, codes: list[int], made: int
) -> None:
    code, told = _make(tmp_path, "test", *codes)
    assert code == made
    assert len(told) == len(codes)
    assert "-m pytest -n" in told[0]
    assert [_AGAIN in line for line in told] == [number > 0 for number in range(len(codes))]


def test_fuzz_runs_for_so_many_seconds(tmp_path: Path) -> None:
    code, (told,) = _make(tmp_path, "fuzz SECONDS=120", 0)
    assert code == 0
    seconds, *arguments = told.split()
    assert seconds == "120"
    assert arguments[-3:] == ["tests/engine/test_hostile.py", "-k", "for_long"]
