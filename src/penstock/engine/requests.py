"""A request's life in the engine: from `Submit` to exactly one terminal message.

::

    QUEUED ──dispatch──▶ RUNNING ──all rows settled──▶ ENDED
       ▲                    │
       └──worker died───────┘        cancel: ENDED at once while QUEUED, when it is done if RUNNING

A request is one or more jobs: one with all its rows at first; after its worker died, single rows.
Each row is settled once, by an answer or by an error; the request ends when no row is left.

A `Series` is many requests that are kept as one, because they came as one: what is done for each
request is most of what the engine does. Its rows are requests of their own to everybody else: each
ends by itself, as soon as it can, and is cancelled by itself.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from penstock.engine.failures import Failures

if TYPE_CHECKING:
    from penstock.engine.clients import ClientState, InputLayout
    from penstock.engine.segments import Segment
    from penstock.scheduling.queue import Job
    from penstock.spec import Signature


class RequestState(enum.Enum):
    """Where a request is."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


class PartRecord(NamedTuple):
    """Rows of an answer that did not go the usual way; `descriptor` -1: they are in the slot."""

    start: int
    rows: int
    layout: Signature
    size: int
    descriptor: int


class Request:
    """One request, as the engine knows it."""

    series = 0  # as messages say it

    __slots__ = (
        "admitted",
        "attempts",
        "cancelled",
        "client",
        "failures",
        "input_bytes",
        "jobs",
        "layout",
        "length",
        "number",
        "offset",
        "parts",
        "rows",
        "running",
        "segment",
        "state",
        "unsettled",
    )

    def __init__(
        self,
        client: ClientState,
        number: int,
        layout: InputLayout,
        segment: Segment,
        offset: int,
        length: int,
        input_bytes: int,
        rows: int,
        now: int,
    ) -> None:
        self.client = client
        self.number = number
        self.layout = layout
        self.segment = segment
        self.offset = offset
        self.length = length
        self.input_bytes = input_bytes
        self.rows = rows
        self.admitted = now
        self.state = RequestState.QUEUED
        self.unsettled = rows
        self.running = 0
        self.attempts = 0
        self.cancelled = False
        self.jobs: list[Job] = []
        self.parts: list[PartRecord] = []
        self.failures: Failures | None = None

    @property
    def numbers(self) -> range:
        """Of all requests that this stands for."""
        return range(self.number, self.number + 1)

    def dispatched(self) -> None:
        """One of its jobs went to a worker."""
        assert self.state is not RequestState.ENDED
        self.state = RequestState.RUNNING
        self.running += 1
        self.attempts += 1

    def answered(self, rows: int) -> bool:
        """A job of so many rows came back answered. Returns whether those were all its rows and
        nobody has lost interest: then it has ended."""
        if rows != self.rows or self.cancelled:
            return False
        assert self.running == 1
        assert self.unsettled == rows
        self.running = self.unsettled = 0
        self.end()
        return True

    def returned(self) -> None:
        """One of its jobs came back from a worker, done or not."""
        assert self.running > 0
        self.running -= 1
        if self.running == 0:
            self.state = RequestState.QUEUED

    def settled(self, rows: int) -> bool:
        """So many more rows have their answer or error; returns whether all have."""
        assert rows <= self.unsettled, f"{rows} rows settled, {self.unsettled} were open"
        self.unsettled -= rows
        return self.unsettled == 0

    def fail_rows(self, start: int, rows: int, kind: int, text: str) -> bool:
        """These rows end with an error; returns whether that was the last of them."""
        if self.failures is None:
            self.failures = Failures()
        self.failures.add(start, rows, kind, text)
        return self.settled(rows)

    def end(self) -> None:
        """The terminal message is sent."""
        assert self.state is not RequestState.ENDED
        assert self.running == 0
        self.segment.requests -= 1
        self.client.rows_open -= self.rows
        self.state = RequestState.ENDED
        self.jobs.clear()  # they point back: a cycle would wait for a collection


class Series(Request):
    """Requests of one row each, in slots next to each other. Row n is request `number + n`.

    Those of them that have not ended are in their client's `requests`, each under its number.
    `dropped` are rows whose callers have lost interest and that have not ended yet.
    """

    __slots__ = ("dropped",)

    series = 1

    def __init__(
        self,
        client: ClientState,
        number: int,
        layout: InputLayout,
        segment: Segment,
        offset: int,
        length: int,
        input_bytes: int,
        rows: int,
        now: int,
    ) -> None:
        super().__init__(client, number, layout, segment, offset, length, input_bytes, rows, now)
        self.dropped: set[int] = set()

    @property
    def numbers(self) -> range:
        """Of all its requests, one a row."""
        return range(self.number, self.number + self.rows)

    def answered(self, rows: int) -> bool:
        """As a request's; those that were dropped are not answered."""
        return not self.dropped and super().answered(rows)

    def dropped_of(self, job: Job) -> list[int]:
        """The rows of a job in which nobody is interested any more, in order."""
        if not self.dropped:
            return []
        return [row for row in range(job.start, job.start + job.rows) if row in self.dropped]

    def end_rows(self, rows: int) -> None:
        """So many more of its requests have been told how they ended."""
        if self.settled(rows):
            self.end()
