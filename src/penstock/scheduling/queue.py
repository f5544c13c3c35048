"""What waits: lanes of like work, in each the highest priority first, in turn between clients.

A `Lane` is what may share a batch: one model, one signature. A `Job` is rows of one request that
are run together; usually all of them, single rows after their worker died (see `batcher`). Within a
lane, jobs of the highest priority go first, and among equals the clients (fairness keys) take
turns, so that one that floods the queue only delays itself.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

from penstock.scheduling.estimates import Estimates
from penstock.spec import Signature


class Lane:
    """Work that may share a batch: its model and signature, the batch's limits, its estimates."""

    __slots__ = (
        "__weakref__",
        "batched",
        "estimates",
        "levels",
        "max_batch",
        "model",
        "rows",
        "signature",
        "turn",
    )

    def __init__(
        self, model: int, signature: Signature, max_batch: int, batched: bool = True
    ) -> None:
        self.model = model
        self.signature = signature
        self.max_batch = max_batch
        self.batched = batched
        self.rows = 0
        self.turn = 0
        self.levels: dict[int, OrderedDict[int, deque[Job]]] = {}
        self.estimates = Estimates()


class Job:
    """Rows `start` to `start + rows` of a request, waiting or running.

    `owner` is the caller's own record and is not looked at here. `deadline` is in nanoseconds on
    the caller's clock, 0 for none.
    """

    __slots__ = (
        "deadline",
        "fairness",
        "lane",
        "owner",
        "priority",
        "queued",
        "rows",
        "sequence",
        "start",
        "suspect",
        "ticket",
    )

    def __init__(
        self,
        owner: Any,
        lane: Lane,
        rows: int,
        start: int = 0,
        fairness: int = 0,
        priority: int = 0,
        deadline: int = 0,
    ) -> None:
        self.owner = owner
        self.lane = lane
        self.start = start
        self.rows = rows
        self.fairness = fairness
        self.priority = priority
        self.deadline = deadline
        self.sequence = 0
        self.ticket = 0
        self.suspect = False
        self.queued = False


class Queue:
    """Every job that waits for its first, or next, run with others."""

    def __init__(self) -> None:
        self.rows = 0
        self.jobs = 0
        self.last_sequence = 0
        self._lanes: dict[Lane, None] = {}  # the lanes that are not empty
        self._deadlines: list[tuple[int, int, Job]] = []
        self._entries = itertools.count()
        self._turns = itertools.count(1)

    def add(self, job: Job, *, front: bool = False) -> None:
        """A job joins its client's line, in its old place if it had been there before."""
        if not front or not job.sequence:
            self.last_sequence += 1
            job.sequence = self.last_sequence
        lane = job.lane
        lines = lane.levels.get(job.priority)
        if lines is None:
            lines = lane.levels[job.priority] = OrderedDict()
        line = lines.get(job.fairness)
        if line is None:
            line = lines[job.fairness] = deque()
        if front:
            place = 0
            while place < len(line) and line[place].sequence < job.sequence:
                place += 1
            line.insert(place, job)
        else:
            line.append(job)
        job.queued = True
        self.jobs += 1
        self.rows += job.rows
        lane.rows += job.rows
        if lane not in self._lanes:
            self._lanes[lane] = None
            lane.turn = next(self._turns)
        if job.deadline:
            self.watch(job)

    def remove(self, job: Job) -> None:
        """A job leaves before its turn."""
        line = job.lane.levels[job.priority][job.fairness]
        line.remove(job)
        self._left(job, line)

    def best_lane(self) -> Lane | None:
        """The lane whose turn it is: by priority, then who was served, or came, longest ago."""
        if len(self._lanes) <= 1:
            return next(iter(self._lanes), None)
        return min(self._lanes, key=_turn)

    def lanes(self) -> list[Lane]:
        """The lanes in which something waits, in the order of their turns."""
        if len(self._lanes) <= 1:
            return list(self._lanes)
        return sorted(self._lanes, key=_turn)

    def take(self, lane: Lane) -> list[Job]:
        """The next batch of a lane: by priority, in turn between clients, until it is full."""
        jobs: list[Job] = []
        lane.turn = next(self._turns)
        room = lane.max_batch if lane.batched else 0
        while lane.levels:
            levels = lane.levels
            lines = levels[max(levels) if len(levels) > 1 else next(iter(levels))]
            key, line = next(iter(lines.items()))
            job = line[0]
            if jobs and (job.rows > room or job.rows == 0):
                break
            line.popleft()
            lines.move_to_end(key)
            self._left(job, line)
            jobs.append(job)
            room -= job.rows
            if room <= 0 or job.rows == 0:
                break
        return jobs

    def oldest(self) -> int:
        """The sequence number of the job that waits longest; past all of them when none waits."""
        heads = (
            line[0].sequence
            for lane in self._lanes
            for lines in lane.levels.values()
            for line in lines.values()
        )
        return min(heads, default=self.last_sequence + 1)

    def watch(self, job: Job) -> None:
        """Let this job's deadline be noticed."""
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * self.jobs:
            self._deadlines = [entry for entry in self._deadlines if entry[2].queued]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (job.deadline, next(self._entries), job))

    def expired(self, now: int) -> Iterator[Job]:
        """The jobs whose deadline has passed while they wait. The caller removes them."""
        while self._deadlines and self._deadlines[0][0] <= now:
            job = heapq.heappop(self._deadlines)[2]
            if job.queued:
                yield job

    def next_deadline(self) -> int | None:
        """When the next waiting job expires."""
        while self._deadlines and not self._deadlines[0][2].queued:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _left(self, job: Job, line: deque[Job]) -> None:
        lane = job.lane
        job.queued = False
        self.jobs -= 1
        self.rows -= job.rows
        lane.rows -= job.rows
        if not line:
            lines = lane.levels[job.priority]
            del lines[job.fairness]
            if not lines:
                del lane.levels[job.priority]
                if not lane.levels:
                    del self._lanes[lane]


def _turn(lane: Lane) -> tuple[int, int]:
    return -max(lane.levels), lane.turn
