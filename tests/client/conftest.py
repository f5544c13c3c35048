"""Real engines with plain functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.client.gate import Gate

FUNCTIONS = Path(__file__).resolve().parent.parent / "models" / "functions.py"


@pytest.fixture(scope="session")
def functions() -> Path:
    """The file with the models."""
    return FUNCTIONS


def model(function: str, **settings: object) -> penstock.Model:
    """One of the functions in tests/models/functions.py."""
    return penstock.Model(f"{FUNCTIONS}:{function}", **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def engine() -> Iterator[penstock.Engine]:
    """One engine a module, with one worker and every model that does no harm."""
    models = [
        model("identity"),
        model("doubled"),
        model("checksum"),
        model("where", max_batch=8),
        model("described"),
        model("repeated"),
        model("grown"),
        model("as_long_as_told", max_batch=1),
        model("picky"),
        model("one_short"),
        model("nothing"),
        model("many"),
        model("strange"),
        model("wordy", max_batch=2048),
        model("gated", max_batch=1),
        model("Counting", name="counting", batched=False),
        model(
            "identity",
            name="typed",
            inputs={"image": ("float32", (2, None)), "label": ("string", ())},
        ),
        model("doubled", name="bare", inputs=("float32", (3,))),
    ]
    with penstock.Engine(models) as started:
        yield started


@pytest.fixture
def client(engine: penstock.Engine) -> Iterator[penstock.Client]:
    """A client of its own for a test."""
    with penstock.connect(engine.name) as made:
        yield made


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A gate, opened at the end whatever happens, so that no worker waits behind it."""
    made = Gate(tmp_path)
    yield made
    made.open()
