"""Who does the work of a job: a labour in threads of this process. See `loaders` for processes.

A crew takes parts from `todo` as it has room for them, two for each labour, and tells of them
through one queue of events.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Protocol

from penstock.offline.cut import PARTS_AHEAD
from penstock.offline.labour import Event, Labour
from penstock.offline.stages import Stages

Events = queue.SimpleQueue[Event]


class Crew(Protocol):
    """What a job sees of those who work for it."""

    events: Events

    @property
    def count(self) -> int:
        """Labours."""

    def fill(self, todo: Iterator[int]) -> int:
        """Hand out parts; returns how many are being worked at."""

    def recorded(self, part: int) -> None:
        """A part is done for good."""

    def stages(self) -> list[dict[str, float]]:
        """Seconds by stage, of each labour."""

    def answered(self) -> int:
        """Rows that have their answers, in parts that are not finished."""

    def adapt(self, device: float) -> None:
        """The device was busy for that share of the last moment: are there too few?"""

    def close(self) -> None:
        """No more work."""


class ThreadCrew:
    """One labour, in threads."""

    count = 1

    def __init__(self, labour: Labour, stages: Stages, events: Events) -> None:
        self.events = events
        self._labour, self._stages = labour, stages
        self._open: set[int] = set()
        labour.start()

    def fill(self, todo: Iterator[int]) -> int:
        """Two parts at a time."""
        while len(self._open) < PARTS_AHEAD and (part := next(todo, None)) is not None:
            self._open.add(part)
            self._labour.assign(part)
        return len(self._open)

    def recorded(self, part: int) -> None:
        """Room for another."""
        self._open.discard(part)

    def stages(self) -> list[dict[str, float]]:
        """The labour's."""
        return [self._stages.snapshot()]

    def answered(self) -> int:
        """The labour's."""
        return self._stages.answered

    def adapt(self, device: float) -> None:
        """A second one in the same process would not read faster."""
        return None

    def close(self) -> None:
        """Stop; it ends by itself."""
        self._labour.stop()
