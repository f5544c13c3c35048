"""What the tests on a GPU share: engines in a folder of their own, and a cache that lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock

MODELS = Path(__file__).with_name("models.py")


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
