"""Ctrl-C at any moment: it costs a call, or at worst the connection, and nobody waits for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.client.conftest import model
from tests.client.interrupted import SCENARIOS

_ROOT = Path(__file__).resolve().parents[2]
_ALL = bool(os.environ.get("PENSTOCK_INTERRUPT_EVERYWHERE"))  # takes a minute


@pytest.fixture(scope="module")
def engine() -> Iterator[penstock.Engine]:
    with penstock.Engine(model("doubled", max_batch=64)) as started:
        yield started


def _interrupted(engine: penstock.Engine, how: str, much: float) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "tests.client.interrupted", str(engine.address), how, str(much)],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(600 if _ALL else 60)
@pytest.mark.parametrize("scenario", [scenario.__name__ for scenario in SCENARIOS])
def test_everywhere(engine: penstock.Engine, scenario: str) -> None:
    """At every point of the client's code, or at one in five of them."""
    assert _interrupted(engine, scenario, 1 if _ALL else 5) > 10


@pytest.mark.slow
def test_by_signals_that_come_at_any_time(engine: penstock.Engine) -> None:
    assert _interrupted(engine, "at_random", 3) > 20
