"""Queue, batches and blame of an engine, all in the caller's thread.

The parts that decide are the real ones: `scheduling.Batcher` forms the batches, `worker.isolate`
takes a batch apart that raised, `client.Call` joins the answers. What is missing is what lies
between processes: sockets, slots, processes.

Whoever adds work also does it (`work_off`), unless another thread is at it: that one then takes the
new work along, so threads that ask at the same time share batches. One lock guards everything but
the model's run. Answers are resolved under it: callbacks of users run elsewhere (`Answer`).
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from penstock.client.call import Call
from penstock.errors import (
    DeadlineExceeded,
    EngineClosed,
    Kind,
    Overloaded,
    PenstockError,
    WorkerLost,
    from_message,
)
from penstock.model.function import Runnable
from penstock.scheduling.batcher import Batcher
from penstock.scheduling.decisions import Decision
from penstock.scheduling.lanes import Lane
from penstock.scheduling.queue import Job
from penstock.spec import Signature
from penstock.testing.clock import Clock
from penstock.testing.faults import Faults
from penstock.transport.tensors import Array, structure
from penstock.worker.hand import describe
from penstock.worker.isolate import Answered, outcomes


class LocalBatch(NamedTuple):
    """A batch that was run: the model, its rows, how many came from each request, the inputs.

    `alone` marks a row that ran by itself because a worker had died with it.
    """

    model: str
    rows: int
    parts: tuple[int, ...]
    inputs: Any
    alone: bool


class Request:
    """Rows of a call that travel together: what would be one request to a real engine."""

    __slots__ = ("arrays", "call", "failed", "jobs", "rows", "start", "unsettled")

    def __init__(self, call: Call, start: int, rows: int, arrays: list[Array]) -> None:
        self.call = call
        self.start = start
        self.rows = rows
        self.arrays = arrays
        self.unsettled = rows
        self.failed = 0
        self.jobs: list[Job] = []


class _Runner:
    """The one worker, as the batcher sees it: always idle when it is asked for."""

    index = 0
    free_at = 0
    late_at = 0
    depth = 1
    alone = False
    inflight = 0

    def rows_of(self, lane: Lane) -> int:
        return 0


class InlineCore:
    """What waits, what runs, and what became of it."""

    def __init__(
        self,
        names: list[str],
        runnables: list[Runnable],
        clock: Clock,
        faults: Faults,
        queue_rows: int,
    ) -> None:
        self.names = names
        self.runnables = runnables
        self.queue_rows = queue_rows
        self.held = False
        self.closed = False
        self.batches: list[LocalBatch] = []
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.rows_done = 0
        self.deaths = 0
        self.busy_ns = 0
        self.batcher = Batcher()
        self.open: dict[Call, list[Request]] = {}
        self._clock = clock
        self._faults = faults
        self._lanes: dict[tuple[int, Signature], Lane] = {}
        self._runner = _Runner()
        self._running = False
        self.lock = threading.RLock()

    # ── callers ────────────────────────────────────────────────────────────────────────────────

    def submit(self, call: Call, arrays: list[Array]) -> None:
        """Queue a call's rows, a piece at a time, or refuse them."""
        step = call.kind.piece_rows
        with self.lock:
            if self.closed:
                raise EngineClosed("the engine was closed")
            self.open[call] = []
            injected = self._faults.next_error()
            for start in range(0, max(call.rows, 1), step):
                stop = min(start + step, call.rows)
                request = Request(call, start, stop - start, [a[start:stop] for a in arrays])
                self._admit(request, injected)
            self._forget_if_over(call)

    def cancel(self, call: Call) -> None:
        """Nobody waits for this call any more."""
        with self.lock:
            call.over = True
            self._drop(call, "cancelled")

    def expire(self) -> None:
        """Calls whose deadline has passed end now, waiting or running."""
        with self.lock:
            now = self._clock.now_ns()
            for call in [call for call in self.open if call.deadline and call.deadline <= now]:
                text = "the deadline passed before the answer was there"
                call.give_up(DeadlineExceeded(text))
                self._drop(call, "deadline")

    def close(self) -> None:
        """Take nothing more; what waits or runs is not answered any more."""
        with self.lock:
            self.closed = True
            for call in list(self.open):
                call.give_up(EngineClosed("the engine shut down before this was run"))
                self._drop(call, "failed")

    def work_off(self) -> None:
        """Run batches until nothing is left to run, unless another thread does already."""
        while not self.held and self.run_batch() is not None:
            pass

    def run_batch(self) -> LocalBatch | None:
        """Run the next batch, if there is one and no other thread runs one."""
        with self.lock:
            self.expire()
            if self._running:
                return None
            now = self._clock.now_ns()
            decision = self.batcher.next_batch([self._runner], now)
            if decision is None:
                return None
            self._running = True
        try:
            return self._run(decision)
        finally:
            self._running = False

    def renew_lock(self) -> None:
        """After a fork, in the child: no other thread is there that would release it."""
        self.lock = threading.RLock()
        self._running = False

    # ── one batch ──────────────────────────────────────────────────────────────────────────────

    def _run(self, decision: Decision) -> LocalBatch:
        lane, jobs = decision.lane, decision.jobs
        runnable = self.runnables[lane.model]
        arrays = [
            np.concatenate(rows) for rows in zip(*(_rows_of(job) for job in jobs), strict=True)
        ]
        rows = sum(job.rows for job in jobs)
        parts = tuple(job.rows for job in jobs)
        inputs = structure(lane.signature, arrays)
        batch = LocalBatch(self.names[lane.model], rows, parts, inputs, decision.alone)
        self.batches.append(batch)
        began = self._clock.now_ns()

        def run(start: int, stop: int) -> tuple[Signature, list[Array]]:
            chosen = [array[start:stop].copy() for array in arrays]
            return runnable(structure(lane.signature, chosen), stop - start)

        try:
            if self._faults.seconds_a_batch:
                self._clock.sleep(self._faults.seconds_a_batch)
            lost = self._faults.kills_worker(batch.model, lane.signature, arrays, rows)
            results = [] if lost else list(outcomes(run, rows, lane.batched))
        except BaseException as error:  # an interrupt, or a test that fails inside the model
            self._finish(decision, [], f"{type(error).__name__} was raised in it")
            raise
        self.busy_ns += self._clock.now_ns() - began
        self._finish(decision, results, "a test lost it on purpose" if lost else "")
        return batch

    def _finish(self, decision: Decision, results: list[Any], lost: str) -> None:
        with self.lock:
            self.expire()
            if lost:
                self.deaths += 1
                for job in decision.jobs:
                    if job.owner.call in self.open:
                        self._blame(job, lost)
                return
            self.rows_done += sum(job.rows for job in decision.jobs)
            first = 0
            for job in decision.jobs:
                if job.owner.call in self.open:
                    self._settle(job, first, results)
                first += job.rows

    def _settle(self, job: Job, first: int, results: list[Any]) -> None:
        request: Request = job.owner
        for result in results:
            begin = max(first, result.start)
            end = min(first + job.rows, result.start + result.rows)
            if begin >= end and job.rows:
                continue
            start = request.start + job.start + begin - first
            if isinstance(result, Answered):
                skip = begin - result.start
                arrays = [array[skip : skip + end - begin].copy() for array in result.arrays]
                request.call.put(start, result.signature, arrays)
                self._settled(request, end - begin)
            else:
                kind, text = describe(result.error)
                message, _, remote = text.partition("\0")
                self._fail(request, start, end - begin, from_message(kind, message, remote))

    def _blame(self, job: Job, how: str) -> None:
        """As the engine does: whoever was in the batch is a suspect, and runs alone."""
        request: Request = job.owner
        if job.suspect or not job.lane.batched:
            error = WorkerLost(f"the worker ended while it ran this row alone: {how}")
            self._fail(request, request.start + job.start, job.rows, error)
            return
        request.jobs.remove(job)
        for row in range(job.start, job.start + max(job.rows, 1)):
            single = Job(
                request,
                job.lane,
                min(job.rows, 1),
                start=row,
                priority=job.priority,
                deadline=job.deadline,
            )
            request.jobs.append(single)
            self.batcher.suspect(single)

    # ── requests ───────────────────────────────────────────────────────────────────────────────

    def _admit(self, request: Request, injected: PenstockError | None) -> None:
        call = request.call
        refusal = injected
        waits = self.batcher.rows
        if refusal is None and waits and waits + request.rows > self.queue_rows:
            waiting = f"{waits} of {self.queue_rows} rows wait already"
            refusal = Overloaded(f"the engine's queue is full: {waiting}")
        if refusal is not None:
            self.refused[_kind_name(refusal)] += 1
            call.fail(request.start, request.rows, refusal)
            return
        self.counts["admitted"] += 1
        self.open[call].append(request)
        lane = self._lane(call.kind.model, call.kind.signature)
        job = Job(request, lane, request.rows, 0, call.caller, call.priority, call.deadline)
        request.jobs.append(job)
        self.batcher.add(job)

    def _lane(self, model: int, signature: Signature) -> Lane:
        lane = self._lanes.get((model, signature))
        if lane is None:
            runnable = self.runnables[model]
            lane = Lane(model, signature, runnable.max_batch, runnable.batched)
            self._lanes[model, signature] = lane
        return lane

    def _fail(self, request: Request, start: int, rows: int, error: PenstockError) -> None:
        request.failed += rows or 1
        request.call.fail(start, rows, error)
        self._settled(request, rows)

    def _settled(self, request: Request, rows: int) -> None:
        request.unsettled -= rows
        if request.unsettled == 0:
            whole = request.failed >= max(request.rows, 1)
            self.counts["failed" if whole else "partial" if request.failed else "done"] += 1
            self.open[request.call].remove(request)
        self._forget_if_over(request.call)

    def _drop(self, call: Call, how: str) -> None:
        """A call ended early: what of it still waits is taken out of the queue."""
        for request in self.open.pop(call, ()):
            (self.refused if how == "deadline" else self.counts)[how] += 1
            for job in request.jobs:
                if job.queued:
                    self.batcher.remove(job)

    def _forget_if_over(self, call: Call) -> None:
        if call.over:
            self.open.pop(call, None)


def _rows_of(job: Job) -> list[Array]:
    return [array[job.start : job.start + job.rows] for array in job.owner.arrays]


def _kind_name(error: PenstockError) -> str:
    for kind in Kind:
        if type(from_message(kind, "")) is type(error):
            return kind.name.lower()
    return type(error).__name__
