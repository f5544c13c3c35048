"""A worker's life in the engine, and the budget that keeps it from being restarted for ever.

::

    STARTING ──Loaded──▶ READY ──kill──▶ ENDING ──exit──▶ DOWN ──restart──▶ STARTING
        └──────exit, LoadFailed, kill──────▲──exit──────────▲

One that runs out of a GPU's memory as it loads is followed by another that knows what did not fit
(`squeezed`), a few times.

Its exit is *observed* (by pidfd) before anything that it was given goes elsewhere: until then it
might still write into slots.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Iterator

from penstock.engine.cards import Means
from penstock.engine.failures import Texts
from penstock.engine.requests import PartRecord
from penstock.engine.segments import Segment
from penstock.scheduling.abilities import LEAD
from penstock.scheduling.decisions import Decision
from penstock.scheduling.lanes import Lane
from penstock.scheduling.runners import DEPTH
from penstock.spec import Signature
from penstock.transport.layouts import LayoutNumbers
from penstock.transport.messages import ItemFailed


class WorkerState(enum.Enum):
    """What a worker can be given: only READY ones get batches."""

    STARTING = "starting"
    READY = "ready"
    ENDING = "ending"
    DOWN = "down"


class Batch:
    """Jobs that a worker was given together."""

    __slots__ = (
        "alone",
        "closed",
        "expected",
        "jobs",
        "lane",
        "number",
        "outcomes",
        "rows",
        "sent",
        "texts",
    )

    def __init__(self, number: int, decision: Decision, now: int) -> None:
        _, self.lane, self.jobs, self.alone, self.closed = decision
        self.number = number
        self.rows = sum(job.rows for job in self.jobs)
        self.sent = now
        self.expected = 0  # nanoseconds that it will probably take
        self.outcomes: list[tuple[int, PartRecord | ItemFailed]] = []  # and of which job
        self.texts: Texts | None = None  # of those that failed

    def callers(self) -> Iterator[tuple[int, int]]:
        """Whose rows these are, and how many: a caller's lie together."""
        jobs = self.jobs
        caller, rows = jobs[0].fairness, 0
        for job in jobs:
            if job.fairness != caller:
                yield caller, rows
                caller, rows = job.fairness, 0
            rows += job.rows
        yield caller, rows

    def failed(self, record: ItemFailed) -> None:
        """The model raised on some of its rows."""
        if self.texts is None:
            self.texts = Texts()
        self.outcomes.append((record.item, record._replace(text=self.texts.keep(record.text))))


class Worker:
    """One worker process's place; processes come and go in it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.device = ""  # for people
        self.on_gpu = False
        self.means: dict[int, Means] = {}  # by model, as the last process in this place told
        self.state = WorkerState.DOWN
        self.pid = 0
        self.serving = False
        self.warm = False
        self.starts = 0
        self.since = 0
        self.restart_at: int | None = 0
        self.replaced = True  # once it is down: the budget had a restart for it
        self.kill_reason = ""
        self.batches: OrderedDict[int, Batch] = OrderedDict()
        self.hands = 1
        self.depth = DEPTH
        self.running_since = 0  # the last batch was finished, or the first one given
        self.oldest_since = 0  # the same of the oldest batch: others may overtake it
        self.free_at = 0
        self.late_at = 0
        self.alone = False
        self.run_layouts: LayoutNumbers[Lane] = LayoutNumbers(256)
        self.output_layouts: dict[int, Signature] = {}
        self.mapped: set[Segment] = set()
        self.load_error: tuple[int, str] | None = None
        self.squeezed = 0  # how often it ran out of its device's memory as it loaded
        self.batches_done = 0
        self.rows_done = 0
        self.busy_ns = 0

    @property
    def inflight(self) -> int:
        """Batches that it has."""
        return len(self.batches)

    def rows_of(self, lane: Lane) -> int:
        """Rows of this lane that it has."""
        return sum(batch.rows for batch in self.batches.values() if batch.lane is lane)

    def started(self, pid: int, now: int) -> None:
        """A new process has this place."""
        assert self.state is WorkerState.DOWN
        self.state = WorkerState.STARTING
        self.pid = pid
        self.serving = self.warm = False
        self.starts += 1
        self.since = now
        self.restart_at = None
        self.kill_reason = ""
        self.load_error = None
        self.run_layouts = LayoutNumbers(256)
        self.output_layouts = {}

    def loaded(self, now: int, hands: int = 1) -> None:
        """Its models are loaded; it works on so many batches at a time."""
        assert self.state is WorkerState.STARTING
        self.hands = hands
        self.depth = max(DEPTH, hands)
        self.state = WorkerState.READY
        self.serving = True
        self.squeezed = 0  # what has fitted is remembered with the model
        self.since = now

    def ending(self, reason: str) -> None:
        """It was told, or forced, to exit."""
        assert self.state in (WorkerState.STARTING, WorkerState.READY)
        self.state = WorkerState.ENDING
        self.kill_reason = reason

    def exited(self, now: int) -> list[Batch]:
        """Its exit was observed; returns the batches that it still had, oldest first."""
        assert self.state is not WorkerState.DOWN
        self.state = WorkerState.DOWN
        self.pid = 0
        self.since = now
        self.alone = False
        batches = list(self.batches.values())
        self.batches.clear()
        self.free_at = now  # whoever comes in its place has nothing to finish
        return batches

    def given(self, batch: Batch, expected: int, now: int) -> None:
        """It got a batch that will probably take `expected` nanoseconds."""
        assert self.state is WorkerState.READY
        if not self.batches:
            self.running_since = self.oldest_since = self.free_at = now
        self.batches[batch.number] = batch
        batch.expected = expected
        self.free_at += expected
        self.late_at = self.free_at + max(expected, LEAD) if expected else now
        self.alone = batch.alone

    def finished(self, number: int, now: int) -> Batch | None:
        """It finished a batch; `None` for one that it was not given."""
        oldest = next(iter(self.batches), number)
        batch = self.batches.pop(number, None)
        if batch is not None:
            self.running_since = now
            if number == oldest:
                self.oldest_since = now
            self.alone = False
            self.batches_done += 1
            self.rows_done += batch.rows
            self.free_at = now
            for other in self.batches.values():
                self.free_at += other.expected
                self.late_at = self.free_at + max(other.expected, LEAD) if other.expected else now
        return batch


class RestartBudget:
    """A bucket of restarts: each takes one, one flows back every `refill` nanoseconds."""

    def __init__(self, size: int, refill: int) -> None:
        self.size = size
        self._refill = refill
        self._level = float(size)
        self._at = 0

    def next_restart(self, now: int, failures: int) -> int:
        """Take one restart; returns when it may happen: at once, later after repeated failures."""
        self._level = min(self.size, self._level + (now - self._at) / self._refill)
        self._at = now
        self._level -= 1
        wait = 0 if failures == 0 else min(int(50_000_000 * 2 ** min(failures, 8)), 5_000_000_000)
        if self._level < 0:
            wait = max(wait, int(-self._level * self._refill))
        return now + wait

    @property
    def used_up(self) -> bool:
        """Whether the next restart has to wait for a refill."""
        return self._level < 0
