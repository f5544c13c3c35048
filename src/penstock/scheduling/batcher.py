"""When a batch leaves, to whom, and with which jobs in it.

The rule is *just in time*. A worker that is busy gets its next batch only when it will be free
within `Ability.lead`, the time that a message takes to reach it and its rows to be gathered, or
when a full one waits: before that, every row that still arrives can join. Nobody overtakes the lane
whose turn it is by being full. A worker that is overdue gets nothing more: it may hang.

A worker that is idle, or about to be, may be left waiting a little all the same: for clients that
were just answered, for another worker that is faster, or to run in turn with the others
(`patience`). Rows that would have to be padded to the next size are left for another batch when the
device then has less to do.

Where a worker has several hands, many rows go round in groups (`groups`): a batch gets no more than
one of them.

Workers differ (`abilities`): a batch is formed for the one that gets it, by what that one can hold
and how long it takes there. What is not full waits for a busy worker that will be done with it
sooner than the one that is free, and a row that would be late on one is left
for another that will be in time.

Every batch has a reason why it was closed (`decisions`).

Deadlines: waiting ends early enough for the rows that have one, and a batch is no larger than they
allow. Rows that can no longer be in time are given back by `expire` and `missed`, as far as
measurements are fresh enough to tell.

Suspects are rows of a batch whose worker died. Nobody is guilty yet: they run one row at a time, on
a worker that has nothing else, after everything that was waiting when they fell under suspicion;
then a worker is kept free for them, so that a stream of new work cannot put them off for ever.
Lanes that are not batched run one request at a time, all on the first worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from penstock.scheduling import groups
from penstock.scheduling.abilities import Ability
from penstock.scheduling.deadlines import (
    in_time,
    in_time_elsewhere,
    in_time_together,
    late_together,
    rows_of,
)
from penstock.scheduling.decisions import Closed, Decision
from penstock.scheduling.lanes import Lane
from penstock.scheduling.patience import Patience
from penstock.scheduling.queue import Job, Queue
from penstock.scheduling.runners import Runner, freest, has_more, overdue


class Batcher:
    """Keeps what waits and says what runs next."""

    def __init__(self) -> None:
        self.queue = Queue()
        self._suspects: deque[Job] = deque()
        self._suspected_rows = 0
        self._missed: list[Job] = []
        self._patience = Patience(self.queue)

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return self.queue.rows + self._suspected_rows

    @property
    def jobs(self) -> int:
        """Jobs that wait."""
        return self.queue.jobs + len(self._suspects)

    @property
    def requests(self) -> int:
        """Requests that wait, or rows of one that wait one by one."""
        return self.queue.requests + len(self._suspects)

    # ── events ─────────────────────────────────────────────────────────────────────────────────

    def add(self, job: Job, now: int = 0, *, again: bool = False) -> None:
        """A job wants to run; `again`: its worker died before it was begun."""
        self.queue.add(job, front=again)
        lane = job.lane
        if not again:
            lane.returns.came(job.fairness, job.rows, now)
        if job.deadline and lane.fresh(job.rows, now):
            self.queue.watch(job, job.deadline - lane.shortest(job.rows) + 1)

    def answered(self, lane: Lane, fairness: int, rows: int, now: int) -> None:
        """Rows of this caller were answered: it may ask again at once."""
        lane.returns.answered(fairness, rows, now)

    def suspect(self, job: Job) -> None:
        """A single row whose worker died: it runs alone, after those who wait now."""
        job.suspect = True
        job.queued = True
        job.ticket = self.queue.last_sequence
        self._suspects.append(job)
        self._suspected_rows += job.rows
        if job.deadline:
            self.queue.watch(job, job.deadline)

    def remove(self, job: Job) -> None:
        """A waiting job is not wanted any more."""
        if job.suspect:
            job.queued = False
            self._suspects.remove(job)
            self._suspected_rows -= job.rows
        else:
            self.queue.remove(job)

    def replace(self, job: Job, parts: Sequence[Job]) -> None:
        """Of a waiting job only these parts are wanted any more; they wait in its place."""
        if parts:
            self.queue.replace(job, parts)
        else:
            self.remove(job)

    def expire(self, runners: Sequence[Runner], now: int) -> Iterator[Job]:
        """Remove and return the waiting jobs whose deadline has passed, or that nobody can meet."""
        for job in self.queue.due(now):
            if job.deadline <= now or not in_time(job, runners, now, begun=True):
                self.remove(job)
                yield job
            # else it is also watched until its deadline itself

    def missed(self) -> list[Job]:
        """Jobs that would have left now, too late for their deadline. They wait no longer."""
        missed, self._missed = self._missed, []
        return missed

    def clear(self) -> Iterator[Job]:
        """Remove and return everything that waits."""
        while self._suspects:
            job = self._suspects.popleft()
            self._suspected_rows -= job.rows
            job.queued = False
            yield job
        while lanes := self.queue.lanes():
            yield from self.queue.take(lanes[0])

    # ── decisions ──────────────────────────────────────────────────────────────────────────────

    def next_batch(self, runners: Sequence[Runner], now: int) -> Decision | None:
        """The next batch that should leave now, or `None`. `runners`: those that are ready."""
        if not runners:
            self._patience.look = None  # until one is ready there is nothing to look at
            return None
        while True:
            missed = len(self._missed)
            decision = self._next_batch(runners, now, missed)
            if decision is not None or len(self._missed) == missed:
                return decision

    def _next_batch(self, runners: Sequence[Runner], now: int, missed: int) -> Decision | None:
        """Or `None` when more than so many have been missed.

        The others are to be looked at anew then: fewer rows may be best done elsewhere, and whom a
        suspect waited for may be gone.
        """
        self._patience.look = None
        kept: list[Runner] = []  # for a suspect, or for a lane whose turn comes before
        if self._suspects and self.queue.oldest() > self._suspects[0].ticket:
            freest = min(runners, key=lambda runner: (overdue(runner, now), runner.inflight))
            if freest.inflight == 0:
                job = self._suspects.popleft()
                self._suspected_rows -= job.rows
                job.queued = False
                return Decision(freest, job.lane, [job], True, Closed.SUSPECT)
            kept.append(freest)
        for lane in self.queue.lanes():
            unfit: list[Runner] = []  # others are better for this lane
            while lane.jobs and (decision := self._batch(lane, runners, kept, unfit, now)):
                if decision.jobs:  # else all of them are too late, or will be in time elsewhere
                    return decision
                if len(self._missed) > missed:
                    return None
        return None

    def wakeup(self, runners: Sequence[Runner], now: int) -> int | None:
        """When `next_batch` or `expire` should be asked again, if nothing else happens.

        What could have left before `now` waits for an event, not for a time.
        """
        times: list[int] = []
        if self.queue.jobs:
            busy = [runner for runner in runners if runner.inflight]
            for lane in self.queue.lanes():
                rows = lane.rows
                times += [runner.free_at - lane.on(runner.index).lead(rows) for runner in busy]
            if self._patience.look is not None:
                times.append(max(self._patience.look, now + 1))
        due = self.queue.next_due()
        if due is not None:
            times.append(max(due, now + 1))
        return min((time for time in times if time > now), default=None)

    def _batch(
        self,
        lane: Lane,
        runners: Sequence[Runner],
        kept: list[Runner],
        unfit: list[Runner],
        now: int,
    ) -> Decision | None:
        passed_over = kept + unfit if unfit else kept
        runner = freest(runners if lane.batched else runners[:1], passed_over, now)
        if runner is None:
            return None
        busy = runner.inflight > 0
        ability = lane.on(runner.index)
        most = groups.most(lane, ability, runner, runners, now)
        if lane.batched and lane.rows >= most:
            full = Closed.FULL if most == ability.max_batch else Closed.PART
            return self._close(lane, ability, runner, runners, unfit, full, most, now)
        if (
            lane.uneven
            and lane.batched
            and self._patience.sooner_elsewhere(lane, runner, runners, kept, now)
        ):
            unfit.append(runner)
            return self._batch(lane, runners, kept, unfit, now)
        if busy and (runner.free_at - now > ability.lead(lane.rows) or has_more(runner)):
            kept.append(runner)
            return None
        if not lane.batched:
            return self._close(lane, ability, runner, runners, unfit, Closed.SINGLE, most, now)
        if busy:
            held = self._patience.holds_back(lane, ability, runner, most, len(runners))
            closed = None if held else Closed.AHEAD
        else:
            closed = self._patience.waits(lane, ability, runner, now, len(runners))
        if closed is None or self._patience.in_step(lane, ability, runner, runners, now):
            return None
        return self._close(lane, ability, runner, runners, unfit, closed, most, now)

    def _close(
        self,
        lane: Lane,
        ability: Ability,
        runner: Runner,
        runners: Sequence[Runner],
        unfit: list[Runner],
        closed: Closed,
        most: int,
        now: int,
    ) -> Decision:
        deadlines = self.queue.next_due() is not None
        fitting = self._fitting(lane, ability, most)
        taken = jobs = self.queue.take(lane, fitting or most, ability.max_batch)
        lane.waiting_since = 0
        start = max(now, runner.free_at)
        late = late_together(ability, taken, start, now) if deadlines else []
        if late:
            elsewhere = {job for job in late if in_time_elsewhere(job, runner, runners, now)}
            jobs = self._timely(ability, taken, late, elsewhere, start)
            if elsewhere:
                unfit.append(runner)
        rows = rows_of(jobs)
        if len(jobs) < len(taken) and any(job.queued for job in taken):
            closed = Closed.DEADLINE
        elif 0 < rows <= fitting and closed not in (Closed.FULL, Closed.PART):
            closed = Closed.FITTING
        if jobs:
            self.queue.charge(lane, ability.cost(rows) or 1)
        return Decision(runner, lane, jobs, False, closed)

    def _timely(
        self,
        ability: Ability,
        jobs: list[Job],
        late: list[Job],
        elsewhere: set[Job],
        start: int,
    ) -> list[Job]:
        """Those that will be in time; the others are missed, or wait for the next batch.

        Others in place of the late ones, or a smaller batch of the first: whichever serves more.
        Late ones that will be in time `elsewhere` wait on.
        """
        end = start + ability.cost(rows_of(jobs))
        rest = [job for job in jobs if not 0 < job.deadline < end]
        alone = [
            job
            for job in jobs
            if not job.deadline or ability.in_time(job.rows, start, job.deadline)
        ]
        few = list(in_time_together(ability, alone, start))
        few_rows, rest_rows = rows_of(few), rows_of(rest)
        if rest and rest_rows * ability.cost(few_rows) >= few_rows * ability.cost(rest_rows):
            chosen = rest + self._in_place_of(late, end)
        else:
            late = [job for job in jobs if job not in alone]
            chosen = few or alone[:1]  # too little is known of it to refuse it
            self.queue.put_back(alone[len(chosen) :])
        self._missed += [job for job in late if job not in elsewhere]
        self.queue.put_back([job for job in late if job in elsewhere])
        return chosen

    def _in_place_of(self, late: list[Job], end: int) -> list[Job]:
        """The next ones that wait, as far as they have room and will be in time."""
        room, lane = rows_of(late), late[0].lane
        taken = self.queue.take(lane, room) if lane.jobs else []
        fit = 0
        for job in taken:
            room -= job.rows
            if room < 0 or not job.rows or 0 < job.deadline < end:
                break
            fit += 1
        self.queue.put_back(taken[fit:])
        return taken[:fit]

    def _fitting(self, lane: Lane, ability: Ability, most: int) -> int:
        """A compiled size that is better filled now than padded to the next one; 0 if none is."""
        rows, ladder = min(lane.rows, most), ability.ladder
        if not lane.batched or not ladder or rows in ladder:
            return 0
        below = max((size for size in ladder if size < rows), default=0)
        if not below:
            return 0
        apart = ability.cost(below) + ability.cost(rows - below)
        return below if apart < ability.cost(rows) else 0
