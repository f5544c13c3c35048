"""A gate that models wait at: opened when the test has seen what it wanted to see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.conditions import until


class Gate:
    """A file that is not there until `open`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "open"

    def rows(self, *tags: int) -> dict[str, Any]:
        """Rows that wait at this gate."""
        return {"gate": [str(self._path)] * len(tags), "tag": np.array(tags, np.int64)}

    def wait_started(self, count: int = 1) -> None:
        """Until so many rows wait here, or have waited."""
        until(lambda: len(self._lines("started")) >= count)

    def open(self) -> None:
        """Let everybody through, now and later."""
        self._path.touch()

    @property
    def order(self) -> list[int]:
        """Who went through, in which order."""
        return self._lines("order")

    def _lines(self, name: str) -> list[int]:
        path = self._folder / name
        return [int(line) for line in path.read_text().split()] if path.exists() else []


def passing(*tags: int) -> dict[str, Any]:
    """Rows for the same model that wait nowhere."""
    return {"gate": [""] * len(tags), "tag": np.array(tags, np.int64)}
