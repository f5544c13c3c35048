"""What waits: lanes of like work, in each the highest priority first, in turn between callers.

A lane (`lanes`) is what may share a batch. A `Job` is rows of one request that are run together;
usually all of them, fewer where a worker cannot hold as many, single rows after their worker died
(see `batcher`). One that stands for several requests of a row each is taken apart where a batch has
room for some of them.

Within a lane, jobs of the highest priority go first. Among equals the callers (fairness keys) take
turns of a few rows (*deficit round robin*), so that one that floods the queue only delays itself,
and its rows stay together: a process that is woken for eight answers costs little more than one
that is woken for one. A turn of very few rows goes on for some more, where they take no time to
speak of. What a turn took too many is paid back by the next ones. A caller that had nothing waiting
goes before those that have been served, if it has been away for a whole round: whoever asks for
little waits little. New callers have at most a batch, or one turn, before one who waits has a turn,
so that there is an end however many come.

Between models, the one that has used the least of its share goes first: a share grows with the
time that a model's batches take, divided by the model's weight.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.scheduling.lanes import TURNS_A_BATCH, Lane


class Job:
    """Rows `start` to `start + rows` of a request, waiting or running.

    `owner` is the caller's own record and is not looked at here; `siblings` is where it keeps its
    jobs, for those that are made here of parts of others. `deadline` is in nanoseconds on the
    caller's clock, 0 for none. `series`: each row is a request of its own.
    """

    __slots__ = (
        "begun",
        "deadline",
        "fairness",
        "lane",
        "owner",
        "priority",
        "queued",
        "rows",
        "sequence",
        "series",
        "siblings",
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
        siblings: list[Job] | None = None,
        series: bool = False,
    ) -> None:
        self.owner = owner
        self.lane = lane
        self.siblings = siblings
        self.series = series
        self.start = start
        self.rows = rows
        self.fairness = fairness
        self.priority = priority
        self.deadline = deadline
        self.sequence = 0
        self.ticket = 0
        self.suspect = False
        self.queued = False
        self.begun = False  # a worker has had it

    @property
    def requests(self) -> int:
        """How many requests its rows are."""
        return self.rows if self.series else 1

    def part(self, start: int, rows: int) -> Job:
        """Some of its rows as a job of their own, with its place in line."""
        part = Job(
            self.owner,
            self.lane,
            rows,
            start,
            self.fairness,
            self.priority,
            self.deadline,
            self.siblings,
            self.series,
        )
        part.sequence = self.sequence
        part.begun = self.begun
        if self.siblings is not None:
            self.siblings.append(part)
        return part


class Line:
    """The jobs of one caller at one priority, and the rows left of its turn."""

    __slots__ = ("jobs", "key", "left", "missed")

    def __init__(self, key: int, left: int) -> None:
        self.key = key
        self.missed = False  # its last turn found it empty
        self.jobs: deque[Job] = deque()
        self.left = left


class Level:
    """The lines of one priority: those that came since their last turn first, then the others."""

    __slots__ = ("ahead", "fresh", "jobs", "lines", "served")

    def __init__(self) -> None:
        self.jobs = 0
        self.ahead = 0  # rows of fresh lines' turns since one of the others had a turn
        self.lines: dict[int, Line] = {}
        self.fresh: deque[Line] = deque()
        self.served: deque[Line] = deque()

    def line(self, key: int, quantum: int) -> Line:
        """A caller's line, which it keeps until a turn finds it empty."""
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = Line(key, quantum)
            self.fresh.append(line)
        return line

    def next_line(self, quantum: int) -> Line:
        """Whose turn it is; there is a job."""
        while True:
            lines = self.fresh
            if not lines or (self.ahead >= TURNS_A_BATCH * quantum and self.served):
                lines = self.served
            line = lines[0]
            if line.left > 0 and line.jobs:
                line.missed = False
                return line
            lines.popleft()
            if not line.jobs and line.missed:
                del self.lines[line.key]
                continue
            line.missed = not line.jobs  # not forgotten yet: it may not be fresh again at once
            debt = max(-line.left, 0)
            line.left = quantum - debt
            self.ahead = self.ahead + quantum + debt if lines is self.fresh else 0
            self.served.append(line)

    def tidy(self) -> None:
        """Forget the lines that are empty, when most are: their jobs were cancelled."""
        if len(self.lines) > 64 and len(self.lines) > 4 * self.jobs:
            self.lines = {key: line for key, line in self.lines.items() if line.jobs}
            self.fresh = deque(line for line in self.fresh if line.jobs)
            self.served = deque(line for line in self.served if line.jobs)

    def heads(self) -> Iterator[Job]:
        """The first job of each line."""
        for line in self.lines.values():
            if line.jobs:
                yield line.jobs[0]


class Queue:
    """Every job that waits for its first, or next, run with others."""

    def __init__(self) -> None:
        self.rows = 0
        self.jobs = 0
        self.requests = 0
        self.last_sequence = 0
        self._lanes: dict[Lane, None] = {}  # the lanes that are not empty
        self._deadlines: list[tuple[int, int, Job]] = []
        self._entries = itertools.count()
        self._turns = itertools.count(1)
        self._used = 0.0  # the most that a model had used of its share when it was served

    def add(self, job: Job, *, front: bool = False) -> None:
        """A job joins its caller's line, in its old place if it had been there before."""
        if not front or not job.sequence:
            self.last_sequence += 1
            job.sequence = self.last_sequence
        lane = job.lane
        level = lane.levels.get(job.priority)
        if level is None:
            level = lane.levels[job.priority] = Level()
        jobs = level.line(job.fairness, lane.quantum).jobs
        if front:
            place = 0
            while place < len(jobs) and _place(jobs[place]) < _place(job):
                place += 1
            jobs.insert(place, job)
        else:
            jobs.append(job)
        job.queued = True
        self.jobs += 1
        self.requests += job.rows if job.series else 1
        self.rows += job.rows
        level.jobs += 1
        lane.jobs += 1
        lane.rows += job.rows
        if lane.jobs == 1:
            if lane.share.used < self._used:
                lane.share.used = self._used  # time in which nothing waited is not saved up
            self._lanes[lane] = None
            lane.turn = next(self._turns)
        if job.deadline:
            self.watch(job, job.deadline)

    def remove(self, job: Job) -> None:
        """A job leaves before its turn."""
        level = job.lane.levels[job.priority]
        level.lines[job.fairness].jobs.remove(job)
        self._left(job, level)
        level.tidy()

    def replace(self, job: Job, parts: Sequence[Job]) -> None:
        """Of a job that waits only these parts wait on, in its place."""
        if not parts:
            self.remove(job)
            return
        lane = job.lane
        level = lane.levels[job.priority]
        jobs = level.lines[job.fairness].jobs
        place = jobs.index(job)
        del jobs[place]
        job.queued = False
        for part in reversed(parts):
            jobs.insert(place, part)
            part.queued = True
        fewer = job.rows - sum(part.rows for part in parts)
        more = len(parts) - 1
        self.jobs += more
        level.jobs += more
        lane.jobs += more
        self.rows -= fewer
        lane.rows -= fewer
        self.requests -= fewer

    def lanes(self) -> list[Lane]:
        """The lanes in which something waits, in the order of their turns."""
        if len(self._lanes) <= 1:
            return list(self._lanes)
        return sorted(self._lanes, key=_turn)

    def take(self, lane: Lane, room: int | None = None, limit: int = 0) -> list[Job]:
        """The next batch of a lane: by priority, in turn between callers, until `room` is full.

        The first may be larger than that; of one with more rows than `limit` (0: any) the first
        rows are taken.
        """
        jobs: list[Job] = []
        lane.turn = next(self._turns)
        if room is None:
            room = lane.max_batch
        if not lane.batched:
            room = 0
        while lane.levels:
            levels = lane.levels
            level = levels[max(levels) if len(levels) > 1 else next(iter(levels))]
            line = level.next_line(lane.quantum)
            waiting = line.jobs
            while waiting and line.left > -lane.overdraft:  # its turn
                job = waiting[0]
                if 0 < room < job.rows and job.series:
                    jobs.append(self._first_rows(job, room))
                    line.left -= room
                    return jobs
                if 0 < limit < job.rows and not jobs and lane.batched:
                    jobs.append(self._first_rows(job, limit))
                    line.left -= limit
                    return jobs
                if jobs and (job.rows > room or job.rows == 0):
                    return jobs
                waiting.popleft()
                line.left -= _charged(job)
                self._left(job, level)
                jobs.append(job)
                room -= job.rows
                if room <= 0 or job.rows == 0:
                    return jobs
        return jobs

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Jobs that were taken a moment ago stay after all."""
        for job in jobs:
            if not self._rejoined(job):
                self.add(job, front=True)
            line = job.lane.levels[job.priority].lines[job.fairness]
            line.left = min(line.left + _charged(job), job.lane.quantum)

    def charge(self, lane: Lane, cost: float) -> None:
        """A batch of this lane was sent: its model has used that much of the devices."""
        share = lane.share
        self._used = max(self._used, share.used)
        share.used += cost / share.weight

    def oldest(self) -> int:
        """The sequence number of the job that waits longest; past all of them when none waits."""
        heads = (
            job.sequence
            for lane in self._lanes
            for level in lane.levels.values()
            for job in level.heads()
        )
        return min(heads, default=self.last_sequence + 1)

    def watch(self, job: Job, until: int) -> None:
        """Let it be noticed when this job still waits then."""
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * self.jobs:
            self._deadlines = [entry for entry in self._deadlines if entry[2].queued]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (until, next(self._entries), job))

    def due(self, now: int) -> Iterator[Job]:
        """The jobs that still wait at the time until which they are watched."""
        while self._deadlines and self._deadlines[0][0] <= now:
            job = heapq.heappop(self._deadlines)[2]
            if job.queued:
                yield job

    def next_due(self) -> int | None:
        """When `due` has the next one."""
        while self._deadlines and not self._deadlines[0][2].queued:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _first_rows(self, job: Job, rows: int) -> Job:
        """These leave as a job of their own; the others stay where they are."""
        first = job.part(job.start, rows)
        job.start += rows
        job.rows -= rows
        job.lane.rows -= rows
        self.rows -= rows
        if job.series:
            self.requests -= rows
        return first

    def _rejoined(self, first: Job) -> bool:
        """Whether these rows were cut off a job that still waits, and are part of it again."""
        level = first.lane.levels.get(first.priority)
        line = level.lines.get(first.fairness) if level is not None else None
        if line is None or not line.jobs:
            return False
        job = line.jobs[0]
        if job.sequence != first.sequence or job.start != first.start + first.rows:
            return False
        job.start = first.start
        job.rows += first.rows
        job.begun = job.begun or first.begun
        job.lane.rows += first.rows
        self.rows += first.rows
        self.requests += first.rows if first.series else 0
        if first.siblings is not None:
            first.siblings.remove(first)
        return True

    def _left(self, job: Job, level: Level) -> None:
        lane = job.lane
        job.queued = False
        self.jobs -= 1
        self.requests -= job.rows if job.series else 1
        self.rows -= job.rows
        level.jobs -= 1
        lane.jobs -= 1
        lane.rows -= job.rows
        if not level.jobs:
            del lane.levels[job.priority]
            if not lane.jobs:
                del self._lanes[lane]
                lane.waiting_since = 0


def _place(job: Job) -> tuple[int, int]:
    """Where a job belongs in its caller's line."""
    return job.sequence, job.start


def _turn(lane: Lane) -> tuple[int, float, int]:
    return -max(lane.levels), lane.share.used, lane.turn


def _charged(job: Job) -> int:
    """The rows that a job takes of its caller's turn: at least one, at most a batch."""
    return min(max(job.rows, 1), job.lane.max_batch)
