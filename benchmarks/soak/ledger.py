"""What a client asked and how each request ended, written down so that a kill cannot fake it.

A ledger is a file of fixed records, appended with single writes: a request is entered before it is
sent, its end as soon as it is known. A killed process leaves what it had written, no more, no less.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ENTRY = np.dtype([("number", "<u8"), ("event", "<u1")])
EVENTS = (
    "asked",
    "right",
    "WRONG",
    "MISSING",
    "Cancelled",
    "DeadlineExceeded",
    "Overloaded",
    "WorkerLost",
    "EngineClosed",
    "OTHER ERROR",
)
_CODES = {name: code for code, name in enumerate(EVENTS)}
FATAL = ("WRONG", "MISSING", "OTHER ERROR")


class Ledger:
    """The client's side: append entries."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def enter(self, event: str, *numbers: int) -> None:
        """Write down the same event of some requests."""
        code = _CODES[event]
        entries = np.array([(number, code) for number in numbers], ENTRY)
        os.write(self._descriptor, entries.tobytes())

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class Reader:
    """The judge's side: counts what is appended, while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def new_counts(self) -> Counter[str]:
        """Events that were entered since the last time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return Counter()
        data = data[: len(data) - len(data) % ENTRY.itemsize]
        self._at += len(data)
        codes = np.bincount(np.frombuffer(data, ENTRY)["event"], minlength=len(EVENTS))
        return Counter({name: int(count) for name, count in zip(EVENTS, codes, strict=True)})


@dataclass
class Judgement:
    """How the requests of many ledgers ended."""

    asked: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    twice: int = 0
    unasked: int = 0
    unanswered: int = 0
    open_at_death: int = 0

    def add(self, path: Path, killed: bool) -> None:
        """One client's ledger; `killed`: what it had open counts as nothing."""
        entries: Any = np.fromfile(path, ENTRY) if path.exists() else np.empty(0, ENTRY)
        asked = entries["number"][entries["event"] == 0]
        ends = entries[entries["event"] != 0]
        numbers, times = np.unique(ends["number"], return_counts=True)
        self.asked += len(asked)
        self.twice += int((times - 1).sum()) + len(asked) - len(np.unique(asked))
        self.unasked += len(np.setdiff1d(numbers, asked))
        left = len(np.setdiff1d(asked, numbers))
        if killed:
            self.open_at_death += left
        else:
            self.unanswered += left
        for code, count in zip(*np.unique(ends["event"], return_counts=True), strict=True):
            self.ended[EVENTS[code]] += int(count)
