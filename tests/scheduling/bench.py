"""A batcher with real workers, played by hand: what `engine.core` does around it, in small.

Below: situations that several tests begin with, and a queue without a batcher.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.engine.workers import Batch, Worker
from penstock.scheduling.abilities import LEAD
from penstock.scheduling.batcher import Batcher
from penstock.scheduling.decisions import Closed, Decision
from penstock.scheduling.lanes import Lane, Share
from penstock.scheduling.queue import Job, Queue

US = 1_000
MS = 1_000_000
SECOND = 1_000 * MS

GPU = {1: 2_000 * US, 8: 2_400 * US, 16: 3_000 * US}  # a larger batch takes hardly longer
CPU = {size: size * MS for size in (1, 2, 4, 8, 16)}  # time grows with the rows


def lane_of(
    times: dict[int, int] | None = None,
    max_batch: int = 16,
    *,
    batched: bool = True,
    ladder: Sequence[int] = (),
    share: Share | None = None,
) -> Lane:
    """A lane of which warm-up has measured these sizes."""
    measured = tuple((times or {}).items())
    lane = Lane(0, (), max_batch, batched, ladder=ladder, times=measured, share=share)
    lane.on(0)  # the first worker has told
    return lane


class Bench:
    """Time stands still unless it is moved."""

    def __init__(self, workers: int = 1, hands: int = 1) -> None:
        self.batcher = Batcher()
        self.now = 10 * SECOND
        self.workers = [Worker(index) for index in range(workers)]
        self.expired: list[Job] = []
        self.missed: list[Job] = []
        self._numbers = itertools.count(1)
        for worker in self.workers:
            worker.started(1, self.now)
            worker.loaded(self.now, hands)

    def measure(self, lane: Lane, times: dict[int, int]) -> None:
        """These sizes were measured just now, at work, by all workers."""
        for worker in self.workers:
            for size, nanoseconds in times.items():
                lane.observe(worker.index, size, nanoseconds, self.now)

    def add(self, lane: Lane, rows: int = 1, **options: Any) -> Job:
        """A job comes."""
        job = Job(None, lane, rows, **options)
        self.batcher.add(job, self.now)
        return job

    def crowd(self, lane: Lane, callers: Sequence[int]) -> list[Job]:
        """One job of each of these callers."""
        return [self.add(lane, fairness=caller) for caller in callers]

    def suspect(self, lane: Lane, **options: Any) -> Job:
        """A row whose worker died."""
        job = Job(None, lane, 1, **options)
        self.batcher.suspect(job)
        return job

    def answered(self, lane: Lane, callers: Sequence[int]) -> None:
        """One row of each of these callers was answered just now."""
        for caller in callers:
            self.batcher.answered(lane, caller, 1, self.now)

    def teach(self, lane: Lane, takes: int, rounds: int = 50) -> None:
        """Clients in a loop were seen to come back after so long."""
        for _ in range(rounds):
            lane.returns.answered(10**9, 1, self.now)
            lane.returns.came(10**9, 1, self.now + takes)

    def step(self, passes: int = 0) -> list[Decision]:
        """Time passes; what is due happens. Returns the batches that left."""
        self.now += passes
        self.expired += self.batcher.expire(self.workers, self.now)
        sent: list[Decision] = []
        while decision := self.batcher.next_batch(self.workers, self.now):
            self.give(decision)
            sent.append(decision)
            assert len(sent) < 1_000, "there is no end of batches"
        self.missed += self.batcher.missed()
        return sent

    def one(self, passes: int = 0) -> Decision:
        """The same, where one batch should leave."""
        (decision,) = self.step(passes)
        return decision

    def give(self, decision: Decision) -> None:
        """A batch is sent to its worker."""
        worker = decision.runner
        assert isinstance(worker, Worker)
        batch = Batch(next(self._numbers), decision, self.now)
        worker.given(batch, batch.lane.on(worker.index).cost(batch.rows), self.now)

    def occupy(self, lane: Lane, worker: int = 0, rows: int = 1) -> None:
        """A worker has a batch of this lane that nobody here asked for."""
        job = Job(None, lane, rows)
        self.give(Decision(self.workers[worker], lane, [job], False, Closed.IDLE))

    def finish(self, worker: int = 0) -> Batch:
        """A worker's oldest batch is done: what it took is learnt, its callers are answered."""
        runner = self.workers[worker]
        began = runner.running_since
        batch = runner.finished(next(iter(runner.batches)), self.now)
        assert batch is not None
        lane = batch.lane
        size = lane.on(worker).padded(batch.rows)
        lane.observe(worker, size, self.now - began, self.now)
        for job in batch.jobs:
            self.batcher.answered(lane, job.fairness, job.rows, self.now)
        return batch

    def wakeup(self) -> int | None:
        """When to step again."""
        return self.batcher.wakeup(self.workers, self.now)


# ── situations ─────────────────────────────────────────────────────────────────────────────────


def just_answered(
    times: dict[int, int] = GPU, clients: int = 8, workers: int = 1
) -> tuple[Bench, Lane]:
    """Clients 1 to `clients` were just answered, and usually come back after 0.2 ms."""
    bench, lane = Bench(workers), lane_of(times)
    bench.teach(lane, 200 * US)
    bench.answered(lane, range(1, clients + 1))
    return bench, lane


def about_to_finish(times: dict[int, int] = GPU, takes: int = 200 * US) -> tuple[Bench, Lane]:
    """A worker runs 8 rows and is free within the lead; their clients usually come back."""
    bench, lane = Bench(), lane_of(times)
    if takes:
        bench.teach(lane, takes)
    bench.crowd(lane, range(1, 9))
    bench.step()
    bench.now += lane.shortest(8) - LEAD
    return bench, lane


# ── a queue alone ──────────────────────────────────────────────────────────────────────────────


def small_lane(max_batch: int = 4, batched: bool = True, share: Share | None = None) -> Lane:
    """A lane of which nothing is known."""
    return Lane(0, (), max_batch, batched, share=share)


def quick_lane(max_batch: int) -> Lane:
    """A lane whose rows take a microsecond each."""
    lane = small_lane(max_batch)
    lane.observe(0, max_batch, max_batch * US, 0)
    return lane


def put(queue: Queue, lane: Lane, owner: str, rows: int = 1, **options: int) -> Job:
    """A job joins the queue."""
    job = Job(owner, lane, rows, **options)
    queue.add(job)
    return job


def flood(queue: Queue, lane: Lane, caller: int, count: int = 500, rows: int = 1) -> None:
    """Many jobs of one caller, by name `caller:number`."""
    for number in range(count):
        put(queue, lane, f"{caller}:{number}", rows, fairness=caller)


def owners(jobs: list[Job]) -> list[str]:
    """The names of these jobs."""
    return [job.owner for job in jobs]


def rows_by_caller(jobs: list[Job]) -> Counter[int]:
    """How many of these rows are each caller's."""
    rows: Counter[int] = Counter()
    for job in jobs:
        rows[job.fairness] += job.rows
    return rows
