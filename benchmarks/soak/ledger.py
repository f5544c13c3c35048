"""What a client asked and how each request ended, written down so that a kill cannot fake it.

A ledger is a file of fixed records, appended with single writes: a request is entered before it is
sent, its end as soon as it is known. A killed process leaves what it had written, no more, no less.
Each record has its time, by a clock that all processes share: so the judge knows how long a client
that was killed had waited for what it had open.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ENTRY = np.dtype([("number", "<u8"), ("at", "<u8"), ("event", "<u1")])
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
FATAL = ("WRONG", "MISSING", "EngineClosed", "OTHER ERROR")


class Ledger:
    """The client's side: append entries."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def enter(self, event: str, *numbers: int) -> None:
        """Write down the same event of some requests."""
        code, now = _CODES[event], time.monotonic_ns()
        entries = np.array([(number, now, code) for number in numbers], ENTRY)
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


def waits_since(path: Path) -> int | None:
    """Since when a client has waited for what it has open for the longest; `None`: nothing is."""
    asked, ends = _read(path)
    still_open = asked[~np.isin(asked["number"], ends["number"])]
    return int(still_open["at"].min()) if len(still_open) else None


def _read(path: Path) -> tuple[Any, Any]:
    """What was asked, and how it ended. A client may be writing just now."""
    data = path.read_bytes() if path.exists() else b""
    entries = np.frombuffer(data[: len(data) - len(data) % ENTRY.itemsize], ENTRY)
    return entries[entries["event"] == 0], entries[entries["event"] != 0]


@dataclass
class Judgement:
    """How the requests of many ledgers ended.

    An answer that has not come after `patience` seconds is missing, also if its client was killed.
    """

    patience: float
    asked: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    twice: int = 0
    unasked: int = 0
    unanswered: int = 0
    open_at_death: int = 0
    slowest: float = 0.0  # seconds from a request to its end

    def add(self, path: Path, killed_at: int | None = None) -> None:
        """One client's ledger. What it had open for a short time when it was killed is no fault."""
        asked, ends = _read(path)
        numbers, first, times = np.unique(ends["number"], return_index=True, return_counts=True)
        self.asked += len(asked)
        self.twice += int((times - 1).sum()) + len(asked) - len(np.unique(asked["number"]))
        self.unasked += len(np.setdiff1d(numbers, asked["number"]))
        has_ended = np.isin(asked["number"], numbers)
        left = asked[~has_ended]
        if killed_at is None:
            self.unanswered += len(left)
        else:
            late = left["at"] < killed_at - int(self.patience * 1e9)
            self.unanswered += int(late.sum())
            self.open_at_death += int((~late).sum())
        done = asked[has_ended]
        ended_at = ends["at"][first[np.searchsorted(numbers, done["number"])]]
        took = (ended_at - done["at"]).astype(np.int64)
        self.slowest = max(self.slowest, float(took.max(initial=0)) / 1e9)
        for code, count in zip(*np.unique(ends["event"], return_counts=True), strict=True):
            self.ended[EVENTS[code]] += int(count)
