"""Everything that can happen to a batcher, in every order, against a model that knows it all.

Jobs come, are cancelled, expire, and come again when their worker dies; time passes in steps of any
size, with or without the engine being woken when it asked for it. The workers are the engine's own.
At the end nothing more comes, and only what the batcher asks for happens: everybody must leave.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.engine.workers import Worker
from penstock.scheduling.abilities import LEAD
from penstock.scheduling.decisions import Closed, Decision
from penstock.scheduling.lanes import Lane, Share
from penstock.scheduling.queue import Job
from penstock.scheduling.runners import DEPTH, overdue
from tests.scheduling.bench import CPU, GPU, MS, US, Bench, lane_of

_LADDER = (1, 2, 4, 8)
_UNKNOWN = 500 * US  # what a batch takes of which nothing was measured


def _lanes() -> list[Lane]:
    share = Share()
    return [
        lane_of(GPU, 8, share=share),
        lane_of(CPU, 8, ladder=_LADDER, share=share),
        lane_of(CPU, 4, batched=False, ladder=_LADDER),
        lane_of(CPU, 1, share=Share(3.0)),
        lane_of({}, 5, ladder=_LADDER),
    ]


class BatcherMachine(RuleBasedStateMachine):
    """Lanes with and without a ladder, batched and not; callers, priorities, deadlines, deaths.

    Workers may be unequal: each holds half of what the one before it does, and takes longer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.lanes = _lanes()
        self.broken = False
        self.lines: dict[tuple[Lane, int, int], list[Job]] = {}
        self.passed: dict[tuple[Lane, int, int], Counter[int]] = {}
        self.suspects: dict[Job, set[int]] = {}  # with the numbers of those who were before them
        self.durations: dict[int, deque[int]] = {}  # of the batches that each worker has
        self.idling: dict[Lane, int] = {}  # since when a worker idles while this lane waits
        self.kept: list[Job] = []  # so that no id is used twice

    @initialize(count=st.integers(1, 3), longer=st.sampled_from([0, 0, 1, 4]))
    def workers_start(self, count: int, longer: int) -> None:
        """`longer`: so many times longer than by the first takes what is done by the next."""
        self.bench = Bench(count)
        self.durations = {index: deque() for index in range(count)}
        for lane in self.lanes if longer else ():
            for index in range(count):
                most = max(lane.max_batch >> index, 1)
                sizes = [size for size in lane.on(0).ladder if size <= most]
                times = [(size, lane.on(0).cost(size) * (1 + longer * index)) for size in sizes]
                lane.tell(index, most, sizes, [time for time in times if time[1]])

    # ── what the model knows ────────────────────────────────────────────────────────────────

    @property
    def workers(self) -> list[Worker]:
        return self.bench.workers

    @property
    def queued(self) -> list[Job]:
        return [job for line in self.lines.values() for job in line]

    @property
    def running(self) -> list[Job]:
        batches = (batch for worker in self.workers for batch in worker.batches.values())
        return [job for batch in batches for job in batch.jobs]

    @property
    def waiting(self) -> list[Job]:
        return [*self.queued, *self.suspects]

    def _joins(self, job: Job) -> None:
        key = (job.lane, job.priority, job.fairness)
        line = self.lines.setdefault(key, [])
        line.append(job)
        line.sort(key=lambda one: (one.sequence, one.start))  # whoever comes again has its place
        self.passed.setdefault(key, Counter())
        self.kept.append(job)
        assert job.queued

    def _forget_rejoined(self, leaving: list[Job]) -> None:
        """First rows that were cut off, came back and were put back are part of the rest again."""
        for line in self.lines.values():
            for one, after in list(itertools.pairwise(line)):
                if not one.queued and one.sequence == after.sequence and one not in leaving:
                    again = [job for job in leaving if job.sequence == one.sequence] or [after]
                    assert again[0].start == one.start, "rows of it were left out"
                    line.remove(one)

    def _leaves(self, job: Job) -> None:
        assert not job.queued
        if job in self.suspects:
            del self.suspects[job]
            return
        key = (job.lane, job.priority, job.fairness)
        self.lines[key].remove(job)  # else it has left already: a job leaves once
        if not self.lines[key]:
            del self.lines[key], self.passed[key]
        if not job.lane.jobs:
            self.idling.pop(job.lane, None)

    # ── what happens ────────────────────────────────────────────────────────────────────────

    @rule(
        lane=st.integers(0, 4),
        rows=st.integers(0, 8),
        caller=st.integers(1, 4),
        priority=st.integers(-1, 1),
        deadline=st.none() | st.integers(1, 20 * MS),
    )
    def add(self, lane: int, rows: int, caller: int, priority: int, deadline: int | None) -> None:
        into = self.lanes[lane]
        until = 0 if deadline is None else self.bench.now + deadline
        self._joins(
            self.bench.add(
                into,
                min(rows, into.max_batch),
                fairness=caller,
                priority=priority,
                deadline=until,
            )
        )

    @rule(
        lane=st.integers(0, 4),
        count=st.integers(5, 20),
        caller=st.integers(1, 4),
        priority=st.integers(0, 1),
    )
    def flood(self, lane: int, count: int, caller: int, priority: int) -> None:
        for _ in range(count):
            self.add(lane, 1, caller, priority, None)

    @rule(
        lane=st.sampled_from([0, 1, 4]),
        callers=st.integers(2, 8),
        rounds=st.integers(1, 6),
        thinks=st.integers(0, 400 * US),
        deadline=st.none() | st.integers(MS, 10 * MS),
        missing=st.integers(0, 2),
    )
    def clients_go_round(
        self,
        lane: int,
        callers: int,
        rounds: int,
        thinks: int,
        deadline: int | None,
        missing: int,
    ) -> None:
        """They ask, wait for the answer, think, and ask again, one after the other."""
        for number in range(rounds):
            for caller in range(1, callers + 1 - (missing if number else 0)):
                self.everything_happens_on_time(thinks // callers)
                self.add(lane, 1, caller, 0, deadline)
                self.step(1.0)
            for _ in range(20):
                if not any(job.lane is self.lanes[lane] for job in (*self.queued, *self.running)):
                    break
                time = self._next_event()
                assert time is not None, "nothing happens any more, and somebody waits"
                self._run_to(time)

    @rule(
        lane=st.sampled_from([0, 0, 1, 4]),
        gaps=st.lists(st.integers(0, MS), min_size=1, max_size=6),
    )
    def somebody_waits_while_others_are_answered(self, lane: int, gaps: list[int]) -> None:
        """Elsewhere, as far as the model cares; they do not come back."""
        self.add(lane, 1, 1, 0, None)
        for number, gap in enumerate(gaps):
            first = 100 + 6 * number
            self.bench.answered(self.lanes[lane], range(first, first + 6))
            self.everything_happens_on_time(gap)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        waiting = self.waiting
        job = waiting[data.draw(st.integers(0, len(waiting) - 1))]
        self.bench.batcher.remove(job)
        self._leaves(job)

    @rule(factor=st.sampled_from([0.3, 1.0, 1.0, 3.0]))
    def step(self, factor: float) -> None:
        bench = self.bench
        expired = list(bench.batcher.expire(self.workers, bench.now))
        for job in expired:
            assert self._is_late(job, bench.now), "a job expired that could be in time"
            self._leaves(job)
        assert not any(0 < job.deadline <= bench.now for job in self.waiting)
        for _ in range(1_000):
            decision = bench.batcher.next_batch(self.workers, bench.now)
            for job in bench.batcher.missed():
                assert job.deadline
                assert self._may_be_missed(job), "a job was missed that could be in time"
                if job in self.kept:  # else it was cut off a moment ago
                    self._leaves(job)
            self._forget_rejoined(decision.jobs if decision else [])
            if decision is None:
                break
            self.broken = True  # until the decision has passed
            self._check(decision)
            self.broken = False
            self._give(decision, factor)
            self.idling.pop(decision.lane, None)
        else:
            raise AssertionError("there is no end of batches")
        self._check_what_stays()

    @rule(passes=st.integers(0, 2 * MS) | st.integers(0, 3_000 * MS))
    def time_passes(self, passes: int) -> None:
        """And the engine is woken too late, if it asked for it."""
        self.bench.now += passes
        self.step(1.0)

    @rule(passes=st.integers(0, 30 * MS))
    def everything_happens_on_time(self, passes: int) -> None:
        until = self.bench.now + passes
        for _ in range(2_000):
            time = self._next_event()
            if time is None or time > until:
                break
            self._run_to(time)
        else:
            raise AssertionError("the engine spins")
        self.bench.now = until
        self.step(1.0)

    @precondition(lambda self: any(worker.batches for worker in self.workers))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self._finish(self._any_busy(data))
        self.step(1.0)

    @precondition(lambda self: any(worker.batches for worker in self.workers))
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """The batch that ran is taken apart, those behind it come again in their order."""
        batcher = self.bench.batcher
        index = self._any_busy(data)
        worker = self.workers[index]
        self.durations[index].clear()
        ran, *behind = worker.exited(self.bench.now)
        worker.started(1, self.bench.now)
        worker.loaded(self.bench.now)
        for batch in reversed(behind):
            for job in reversed(batch.jobs):
                assert not job.suspect
                batcher.add(job, self.bench.now, again=True)
                self._joins(job)
        for job in ran.jobs:
            if job.suspect or not job.lane.batched:
                continue
            for row in range(max(job.rows, 1)):
                single = Job(
                    None,
                    job.lane,
                    min(job.rows, 1),
                    start=row,
                    fairness=job.fairness,
                    priority=job.priority,
                    deadline=job.deadline,
                )
                self.kept.append(single)
                self.suspects[single] = {one.sequence for one in (*self.queued, *self.running)}
                batcher.suspect(single)

    # ── workers ─────────────────────────────────────────────────────────────────────────────

    def _any_busy(self, data: st.DataObject) -> int:
        busy = [worker.index for worker in self.workers if worker.batches]
        return data.draw(st.sampled_from(busy), label="worker")

    def _give(self, decision: Decision, factor: float) -> None:
        assert isinstance(decision.runner, Worker)
        rows = sum(job.rows for job in decision.jobs)
        takes = int(factor * (decision.lane.on(decision.runner.index).cost(rows) or _UNKNOWN))
        self.durations[decision.runner.index].append(max(takes, 1))
        self.bench.give(decision)

    def _finish(self, index: int) -> None:
        self.durations[index].popleft()
        self.bench.finish(index)

    def _next_event(self) -> int | None:
        times = [
            self.workers[index].running_since + durations[0]
            for index, durations in self.durations.items()
            if durations
        ]
        wakeup = self.bench.wakeup()
        if wakeup is not None:
            times.append(wakeup)
        return min(times, default=None)

    def _run_to(self, time: int) -> None:
        self.bench.now = max(self.bench.now, time)
        for index, durations in self.durations.items():
            if durations and self.workers[index].running_since + durations[0] <= self.bench.now:
                self._finish(index)
        self.step(1.0)

    # ── what must hold ──────────────────────────────────────────────────────────────────────

    def _is_late(self, job: Job, start: int) -> bool:
        every = [job.lane.on(worker.index) for worker in self.workers]
        for ability in every if job.lane.batched else every[:1]:
            if ability.in_time(job.rows, start, job.deadline):
                return job.deadline <= start
        return True

    def _may_be_missed(self, job: Job) -> bool:
        """Late in some batch that could be formed, for some worker; and alone for all others."""
        lane, now = job.lane, self.bench.now
        starts = {worker: max(now, worker.free_at) for worker in self.workers}
        could = [
            worker
            for worker, start in starts.items()
            if lane.batched
            and start + lane.on(worker.index).cost(job.rows) <= job.deadline
            and not worker.alone
            and not overdue(worker, now)
        ]
        for worker, start in starts.items():
            ability = lane.on(worker.index)
            sizes = [rows for rows in range(lane.max_batch + 1) if ability.fresh(rows, now)]
            late = any(start + ability.cost(rows) > job.deadline for rows in sizes)
            if late and could in ([], [worker]):
                return True
        return False

    def _check(self, decision: Decision) -> None:
        runner, lane, jobs, alone, closed = decision
        assert isinstance(runner, Worker)
        assert not runner.alone, "a worker that runs a suspect got more"
        assert runner.inflight < DEPTH
        assert not runner.batches or self.bench.now < runner.late_at, "it may hang"
        assert jobs
        assert all(job.lane is lane for job in jobs)
        assert alone == (closed is Closed.SUSPECT)
        ready = [job for job, before in self.suspects.items() if not self._still(before)]
        if ready and not alone:
            assert all(other.inflight for other in self.workers), "a suspect was put off"
            assert len(self.workers) > 1
        if alone:
            (job,) = jobs
            assert runner.inflight == 0
            assert job.rows <= 1
            assert job in ready, "a suspect did not wait for the innocent"
            self._leaves(job)
            return
        if not lane.batched:
            assert runner is self.workers[0]
            assert len(jobs) == 1
            assert closed is Closed.SINGLE
        elif len(jobs) > 1:
            assert all(job.rows for job in jobs)
        if lane.batched:
            assert sum(job.rows for job in jobs) <= lane.on(runner.index).max_batch
        if runner.batches and closed not in (Closed.FULL, Closed.DEADLINE):
            assert runner.free_at - self.bench.now <= LEAD, "a small batch left early"
        for job in jobs:
            first = next(
                one
                for one in self.lines[lane, job.priority, job.fairness]
                if one.sequence == job.sequence or not self._left_for_another(one)
            )
            self._passes(job)
            if first is job:
                self._leaves(job)
            else:
                assert first.sequence == job.sequence, "a caller's own order was not kept"
                assert job.start + job.rows == first.start, "rows of it were left out"
                assert jobs == [job]
                assert job.rows == lane.on(runner.index).max_batch, "it was cut without need"
        lowest = min(job.priority for job in jobs)
        for (other, priority, _), line in self.lines.items():
            if other is lane and priority > lowest:
                assert all(map(self._left_for_another, line)), "a higher priority waits"

    def _left_for_another(self, job: Job) -> bool:
        """Whether it may wait for a worker that will do it in time."""
        return job.queued and job.deadline > 0 and len(self.workers) > 1

    def _still(self, numbers: set[int]) -> bool:
        """Whether anything of these waits, as far as the model knows."""
        return any(job.sequence in numbers for job in self.queued)

    def _passes(self, job: Job) -> None:
        """Whoever waits may be passed over by another caller, but only for so many rows."""
        lane = job.lane
        rounds = -(-lane.max_batch // lane.quantum) + 2
        most = 2 * rounds * (lane.quantum + lane.max_batch)
        for (other, priority, caller), passed in self.passed.items():
            if other is not lane or priority != job.priority:
                continue
            if caller == job.fairness:
                passed.clear()
            else:
                passed[job.fairness] += max(job.rows, 1)
                assert passed[job.fairness] <= most, "a caller starves"

    def _check_what_stays(self) -> None:
        """Whoever stays while a worker idles does so for a reason, and not for long."""
        wakeup = self.bench.wakeup()
        assert wakeup is None or wakeup > self.bench.now, "the engine would spin"
        if self.suspects or all(worker.inflight for worker in self.workers):
            self.idling.clear()
            return
        for lane in {job.lane for job in self.queued}:
            if not lane.batched:
                assert self.workers[0].inflight, "its worker idles"
                continue
            if self._in_time_when_free(lane):
                self.idling.pop(lane, None)
                continue
            since = self.idling.setdefault(lane, self.bench.now)
            reason = lane.returns.away > 0 or self._last_free_beside(lane) or self._slower(lane)
            assert reason, "a worker idles while there is work for it"
            every = [lane.on(worker.index) for worker in self.workers]
            most = max(each.cost(rows) for each in every for rows in range(each.max_batch + 1))
            longest = most // 2 + (most + LEAD if len(self.workers) > 1 else 0)
            if self._slower(lane):
                longest += 2 * most + LEAD
            assert self.bench.now - since <= longest, "it waits for too long"
            assert wakeup is not None, "nobody will notice when it has waited enough"
            assert wakeup <= since + longest + 1

    def _last_free_beside(self, lane: Lane) -> bool:
        """Whether all workers but one are busy, one of them with more of this than waits."""
        busy = [worker for worker in self.workers if worker.inflight]
        more = any(worker.rows_of(lane) > lane.rows for worker in busy)
        return len(busy) == len(self.workers) - 1 and more

    def _in_time_when_free(self, lane: Lane) -> bool:
        """Whether busy workers will be in time for each, and one that is free would not for all."""
        now = self.bench.now
        waiting = [job for job in self.queued if job.lane is lane]
        rows = min(sum(job.rows for job in waiting), lane.max_batch)
        idle = [lane.on(worker.index) for worker in self.workers if not worker.inflight]
        busy = [worker for worker in self.workers if worker.inflight and not worker.alone]
        return all(
            0 < job.deadline < now + max(ability.cost(rows) for ability in idle)
            and any(
                max(now, worker.free_at) + lane.on(worker.index).cost(job.rows) <= job.deadline
                for worker in busy
            )
            for job in waiting
        )

    def _slower(self, lane: Lane) -> bool:
        """Whether an idle worker takes longer for what waits than one that is busy."""
        costs = [(lane.on(w.index).cost(lane.rows), w.inflight > 0) for w in self.workers]
        slowest = max((cost for cost, busy in costs if not busy), default=0)
        return any(busy and cost < slowest for cost, busy in costs)

    @invariant()
    def counters_are_right(self) -> None:
        batcher, queued = self.bench.batcher, self.queued
        assert batcher.jobs == len(self.waiting)
        assert batcher.rows == sum(job.rows for job in self.waiting)
        assert batcher.queue.jobs == len(queued)
        assert batcher.queue.rows == sum(job.rows for job in queued)
        for lane in self.lanes:
            own = [job for job in queued if job.lane is lane]
            assert (lane.jobs, lane.rows) == (len(own), sum(job.rows for job in own))
            for priority, level in lane.levels.items():
                assert level.jobs == sum(job.priority == priority for job in own) > 0
                lines = [*level.fresh, *level.served]
                assert len(lines) == len(level.lines) == len({line.key for line in lines})
        assert all(job.queued for job in self.waiting)

    def teardown(self) -> None:
        if self.broken or not self.durations:
            return
        self.broken = True  # unless it ends well
        self.step(1.0)
        for _ in range(100 + 20 * len(self.waiting)):
            time = self._next_event()
            if time is None:
                break
            self._run_to(time)
        assert not self.waiting, "nothing happens any more, and somebody waits"
        assert not self.running
        assert (self.bench.batcher.jobs, self.bench.batcher.rows) == (0, 0)


TestBatcher = BatcherMachine.TestCase
TestBatcher.settings = settings(max_examples=200, stateful_step_count=40)
