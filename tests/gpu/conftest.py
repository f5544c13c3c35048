"""What the tests on a GPU share: engines in a folder of their own, a cache that lasts, an end.

With `--pretend` the GPU is made up (`pretended`): a rehearsal without one, of the tests that have
no need of a real card's memory.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock

MODELS = Path(__file__).with_name("models.py")
_PRETENDED = Path(__file__).with_name("pretended")
_CARD = {"uuid": "GPU-made-up", "name": "made up", "total": 16 << 30}
_LIMIT = 150  # seconds of a test that sets none


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pretend", action="store_true", help="tests/gpu with a GPU that is made up")


@pytest.fixture
def real_card(request: pytest.FixtureRequest) -> None:
    """For tests of what no made-up card has."""
    if request.config.getoption("pretend", False):
        pytest.skip("needs the memory of a real card")


@pytest.fixture(autouse=True)
def pretended(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not request.config.getoption("pretend", False):
        return
    card = tmp_path / "card.json"
    card.write_text(json.dumps([_CARD]))
    monkeypatch.setenv("FAKE_NVML", str(card))
    monkeypatch.setenv("PRETENDED_ROOT", str(MODELS.parents[2]))
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(_PRETENDED), known])))


@pytest.fixture(autouse=True)
def ends(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that hangs fails and the next one runs, also where pytest-timeout is not installed."""
    if request.config.pluginmanager.hasplugin("timeout"):
        yield
        return
    marker = request.node.get_closest_marker("timeout")
    seconds = int(marker.args[0]) if marker else _LIMIT

    def ring(*_: Any) -> None:
        pytest.fail(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def places(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("PENSTOCK_CACHE", str(base / "cache"))
    monkeypatch.setenv("PENSTOCK_LEDGER", str(base / "ledger"))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., penstock.Engine]]:
    """Start an engine for one of the models here, or for any source."""
    made: list[penstock.Engine] = []

    def start(source: Any, **options: Any) -> penstock.Engine:
        if isinstance(source, str) and "/" not in source:
            source = f"{MODELS}:{source}"
        made.append(penstock.Engine(source, folder=str(tmp_path / "engines"), **options).start())
        return made[-1]

    yield start
    for one in made:
        one.close()
