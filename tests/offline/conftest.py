"""A folder of its own for every test, an engine for all, and names of models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.testing.engines import running

FUNCTIONS = Path(__file__).with_name("functions.py")


def model(name: str) -> str:
    return f"{FUNCTIONS}:{name}"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(5).random((1000, 7)).astype(np.float32)


@pytest.fixture(scope="session")
def engine() -> Iterator[str]:
    """The address of an engine with a few models, in batches of 16."""
    from penstock import Model

    names = ("scores", "named", "picky", "no_blank")
    models = [Model(model(name), max_batch=16) for name in names]
    with running(models) as engine:
        yield str(engine.address)
