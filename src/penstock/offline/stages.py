"""Where the time goes: seconds by stage, added up by the threads that spend them.

Of a labour's three threads the middle one, which sends and gathers, tells what limits: it waits for
rows (`starved`), for answers (`answers`) or for the writer (`full`). How far a labour is within its
parts is counted, too: a part may take minutes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

READING, DECODING, WRITING, MAPPING, SENDING = (
    "reading",
    "decoding",
    "writing",
    "mapping",
    "sending",
)
STARVED, ANSWERS, FULL = "starved", "answers", "full"
DEVICE, QUEUE = "device", "queue"
_BUSY = 0.85  # of the time: then the device itself is the limit


class Stages:
    """Seconds by stage, and rows. Each number is one thread's, so there is no lock."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.gathered = self.finished = 0

    @property
    def answered(self) -> int:
        """Rows that have their answers, in parts that are not finished."""
        return self.gathered - self.finished

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Count the time of a `with`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - began

    def snapshot(self) -> dict[str, float]:
        """The seconds so far."""
        return dict(self.seconds)


def total(parts: list[dict[str, float]]) -> dict[str, float]:
    """Of several labours together."""
    names = {name for seconds in parts for name in seconds}
    return {name: sum(seconds.get(name, 0.0) for seconds in parts) for name in names}


def since(now: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    """What was added between two snapshots."""
    return {name: max(value - before.get(name, 0.0), 0.0) for name, value in now.items()}


def limiting(spent: dict[str, float], device: float) -> str:
    """The stage that limits: reading, decoding, queue, device or writing; "" when nothing ran."""
    if device >= _BUSY:
        return DEVICE
    found = waits(spent)
    worst = max(found, key=lambda name: found[name])
    if not found[worst]:
        return ""
    return QUEUE if worst == ANSWERS else worst


def waits(spent: dict[str, float]) -> dict[str, float]:
    """What the senders' time went by with, by who made them wait. Where they have no rows, that is
    the readers; or the writers, as no more parts are begun than may be lost in a crash."""
    found = {name: spent.get(name, 0.0) for name in (ANSWERS, MAPPING, SENDING)}
    found[WRITING] = spent.get(FULL, 0.0)
    slowest = max((READING, DECODING, WRITING), key=lambda name: spent.get(name, 0.0))
    return {**found, slowest: found.get(slowest, 0.0) + spent.get(STARVED, 0.0)}
