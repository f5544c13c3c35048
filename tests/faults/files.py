"""How tests and the model functions in other processes talk: by files in the test's folder."""

from __future__ import annotations

import os
from pathlib import Path

from tests.faults.leftovers import MARK
from tests.faults.waiting import eventually

_MODELS = Path(__file__).with_name("models.py")


def source(name: str) -> str:
    """The source of a model function of `models`, for an engine."""
    return f"{_MODELS}:{name}"


def folder() -> Path:
    """The folder of the test that runs."""
    return Path(os.environ[MARK])


def started(argument: int, others: tuple[int, ...] = ()) -> int:
    """Wait until a row with this argument is being run; returns the worker's pid."""

    def found() -> list[int]:
        names = folder().glob(f"started-{argument}-*")
        pids = [int(path.name.rpartition("-")[2]) for path in names]
        return [pid for pid in pids if pid not in others]

    return eventually(found, what=f"the row {argument} runs")[0]


def let_go(*arguments: int) -> None:
    """Let the rows with these arguments go on."""
    for argument in arguments:
        (folder() / f"go-{argument}").touch()


def lines(name: str) -> list[str]:
    """The lines that models have noted in a file."""
    path = folder() / name
    return path.read_text().splitlines() if path.exists() else []
