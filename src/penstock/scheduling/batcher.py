"""When a batch leaves, to whom, and with which jobs in it.

The first rule set: *take what waits, up to the largest batch, when a worker is nearly free*. A
worker that is idle gets a batch at once. A busy one gets its next batch early only when a full one
waits or when it will be free within `LEAD`, the time that a message takes to reach it: before that,
every row that still arrives can join. A worker that is overdue gets nothing more: it may hang.

Suspects are rows of a batch whose worker died. Nobody is guilty yet: they run one row at a time, on
a worker that has nothing else, after everything that was waiting when they fell under suspicion;
then a worker is kept free for them, so that a stream of new work cannot put them off for ever.
Lanes that are not batched run one request at a time, all on the first worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from penstock.scheduling.queue import Job, Lane, Queue

LEAD = 100_000  # nanoseconds
DEPTH = 2


class Runner(Protocol):
    """What the batcher sees of a worker that is ready.

    `free_at` is when it will probably have finished what it has, `late_at` when it is overdue.
    """

    free_at: int
    late_at: int
    alone: bool

    @property
    def inflight(self) -> int:
        """Batches that it has and has not finished."""


class Decision(NamedTuple):
    """Send these jobs to that runner, as one batch."""

    runner: Runner
    lane: Lane
    jobs: list[Job]
    alone: bool


class Batcher:
    """Keeps what waits and says what runs next."""

    def __init__(self) -> None:
        self.queue = Queue()
        self._suspects: deque[Job] = deque()
        self._suspected_rows = 0

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return self.queue.rows + self._suspected_rows

    @property
    def jobs(self) -> int:
        """Jobs that wait."""
        return self.queue.jobs + len(self._suspects)

    def add(self, job: Job, *, again: bool = False) -> None:
        """A job wants to run; `again`: its worker died before it was begun."""
        self.queue.add(job, front=again)

    def suspect(self, job: Job) -> None:
        """A single row whose worker died: it runs alone, after those who wait now."""
        job.suspect = True
        job.queued = True
        job.ticket = self.queue.last_sequence
        self._suspects.append(job)
        self._suspected_rows += job.rows
        if job.deadline:
            self.queue.watch(job)

    def remove(self, job: Job) -> None:
        """A waiting job is not wanted any more."""
        if job.suspect:
            job.queued = False
            self._suspects.remove(job)
            self._suspected_rows -= job.rows
        else:
            self.queue.remove(job)

    def expire(self, now: int) -> Iterator[Job]:
        """Remove and return the jobs whose deadline has passed while they waited."""
        for job in self.queue.expired(now):
            self.remove(job)
            yield job

    def clear(self) -> Iterator[Job]:
        """Remove and return everything that waits."""
        while self._suspects:
            job = self._suspects.popleft()
            self._suspected_rows -= job.rows
            job.queued = False
            yield job
        while (lane := self.queue.best_lane()) is not None:
            yield from self.queue.take(lane)

    def next_batch(self, runners: Sequence[Runner], now: int) -> Decision | None:
        """The next batch that should leave now, or `None`. `runners`: those that are ready."""
        if not runners:
            return None
        reserved: Runner | None = None
        if self._suspects and self.queue.oldest() > self._suspects[0].ticket:
            reserved = min(runners, key=lambda runner: runner.inflight)
            if reserved.inflight == 0:
                job = self._suspects.popleft()
                self._suspected_rows -= job.rows
                job.queued = False
                return Decision(reserved, job.lane, [job], True)
        for lane in self.queue.lanes():
            if decision := self._batch(lane, runners, reserved, now):
                return decision
        return None

    def wakeup(self, runners: Sequence[Runner], now: int) -> int | None:
        """When `next_batch` or `expire` should be asked again, if nothing else happens.

        What could have left before `now` waits for an event, not for a time.
        """
        times: list[int] = []
        if self.queue.jobs:
            times += [runner.free_at - LEAD for runner in runners if runner.inflight]
        deadline = self.queue.next_deadline()
        if deadline is not None:
            times.append(max(deadline, now + 1))
        return min((time for time in times if time > now), default=None)

    def _batch(
        self, lane: Lane, runners: Sequence[Runner], reserved: Runner | None, now: int
    ) -> Decision | None:
        best: Runner | None = None
        for runner in runners if lane.batched else runners[:1]:
            if (
                runner is not reserved
                and not runner.alone
                and runner.inflight < DEPTH
                and (
                    best is None
                    or runner.inflight < best.inflight
                    or (runner.inflight == best.inflight and runner.free_at < best.free_at)
                )
            ):
                best = runner
        if best is None:
            return None
        if best.inflight:
            overdue = now >= best.late_at  # or nobody knows how long it takes
            early = lane.rows < lane.max_batch and best.free_at - now > LEAD
            if overdue or early:
                return None
        return Decision(best, lane, self.queue.take(lane), False)
