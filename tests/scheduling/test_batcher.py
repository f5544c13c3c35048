"""When a batch leaves, to whom, and with which jobs: rules one by one, then all against a model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.scheduling.batcher import DEPTH, LEAD, Batcher, Decision
from penstock.scheduling.queue import Job, Lane


@dataclass
class FakeRunner:
    """A worker as the batcher sees it."""

    name: int = 0
    free_at: int = 0
    late_at: int = 1 << 62
    alone: bool = False
    batches: list[Decision] = field(default_factory=list)

    @property
    def inflight(self) -> int:
        return len(self.batches)

    def give(self, decision: Decision, now: int, takes: int) -> None:
        if not self.batches:
            self.free_at = now
        self.batches.append(decision)
        self.free_at += takes
        self.alone = decision.alone

    def finish(self, now: int) -> Decision:
        self.alone = False
        done = self.batches.pop(0)
        if not self.batches:
            self.free_at = now
        return done


def _lane(max_batch: int = 4, batched: bool = True) -> Lane:
    return Lane(0, (), max_batch, batched)


def _added(batcher: Batcher, lane: Lane, rows: int = 1, **options: Any) -> Job:
    job = Job(None, lane, rows, **options)
    batcher.add(job)
    return job


def _suspected(batcher: Batcher, lane: Lane, **options: Any) -> Job:
    job = Job(None, lane, 1, **options)
    batcher.suspect(job)
    return job


# ── when a batch leaves ────────────────────────────────────────────────────────────────────────


def test_an_idle_worker_gets_a_batch_at_once() -> None:
    batcher, lane, runner = Batcher(), _lane(), FakeRunner()
    job = _added(batcher, lane)
    decision = batcher.next_batch([runner], 0)
    assert decision == Decision(runner, lane, [job], False)
    assert batcher.next_batch([runner], 0) is None
    assert batcher.rows == batcher.jobs == 0


def test_a_busy_worker_gets_a_small_batch_only_just_in_time() -> None:
    batcher, lane, runner = Batcher(), _lane(max_batch=4), FakeRunner()
    _added(batcher, lane)
    runner.give(batcher.next_batch([runner], 0), 0, takes=10 * LEAD)  # type: ignore[arg-type]
    _added(batcher, lane)
    assert batcher.next_batch([runner], 0) is None
    wakeup = batcher.wakeup([runner], 0)
    assert wakeup == runner.free_at - LEAD
    assert batcher.next_batch([runner], wakeup - 1) is None
    _added(batcher, lane)
    decision = batcher.next_batch([runner], wakeup)
    assert decision is not None
    assert len(decision.jobs) == 2  # what arrived meanwhile has joined


def test_a_busy_worker_gets_a_full_batch_early() -> None:
    batcher, lane, runner = Batcher(), _lane(max_batch=2), FakeRunner()
    runner.give(Decision(runner, lane, [], False), 0, takes=10 * LEAD)
    _added(batcher, lane)
    _added(batcher, lane)
    assert batcher.next_batch([runner], 0) is not None


def test_a_worker_has_no_more_than_two_batches() -> None:
    batcher, lane, runner = Batcher(), _lane(max_batch=1), FakeRunner()
    for _ in range(10):
        _added(batcher, lane)
    sent = 0
    while decision := batcher.next_batch([runner], 0):
        runner.give(decision, 0, takes=0)
        sent += 1
    assert sent == DEPTH == 2


def test_the_worker_with_the_least_to_do_is_chosen() -> None:
    batcher, lane = Batcher(), _lane()
    busy, idle = FakeRunner(0), FakeRunner(1)
    busy.give(Decision(busy, lane, [], False), 0, takes=0)
    _added(batcher, lane)
    decision = batcher.next_batch([busy, idle], 0)
    assert decision is not None
    assert decision.runner is idle


def test_a_lane_that_must_wait_does_not_hold_up_another() -> None:
    batcher, small, full = Batcher(), _lane(max_batch=4), _lane(max_batch=1)
    runner = FakeRunner()
    runner.give(Decision(runner, small, [], False), 0, takes=10 * LEAD)
    _added(batcher, small)
    wanted = _added(batcher, full)
    decision = batcher.next_batch([runner], 0)
    assert decision is not None
    assert decision.jobs == [wanted]


def test_nothing_happens_without_workers() -> None:
    batcher, lane = Batcher(), _lane()
    _added(batcher, lane)
    _suspected(batcher, lane)
    assert batcher.next_batch([], 0) is None
    assert batcher.wakeup([], 0) is None


@pytest.mark.parametrize("suspects", [0, 1])
def test_what_is_not_batched_runs_on_the_first_worker_only(suspects: int) -> None:
    """Its rows, or its calls, may depend on each other: they meet in one process."""
    batcher, lane, other = Batcher(), _lane(batched=False), _lane()
    first, second = FakeRunner(0), FakeRunner(1)
    for runner in (first, second):
        runner.give(Decision(runner, other, [], False), 0, takes=0)
    for _ in range(suspects):
        _suspected(batcher, other)
    jobs = [_added(batcher, lane, rows=3) for _ in range(6)]
    ran: list[Job] = []
    for _ in range(40):
        while decision := batcher.next_batch([first, second], 0):
            decision.runner.give(decision, 0, takes=0)  # type: ignore[attr-defined]
            if decision.lane is lane:
                assert decision.runner is first
                assert len(decision.jobs) == 1
                ran += decision.jobs
        if first.batches:
            first.finish(0)
    assert ran == jobs


def test_a_flooder_in_another_lane_delays_nobody_for_long() -> None:
    """A lane is a model and a shape: who floods one must not close the other."""
    batcher, flooded, quiet = Batcher(), _lane(max_batch=2), _lane(max_batch=2)
    runner = FakeRunner()
    for _ in range(1_000):
        _added(batcher, flooded, fairness=1)
    wanted = _added(batcher, quiet, fairness=2)
    for _ in range(3):
        decision = batcher.next_batch([runner], 0)
        assert decision is not None
        if wanted in decision.jobs:
            return
    raise AssertionError("three batches of the flooder went first")


def test_a_stream_of_new_shapes_does_not_put_off_an_old_one() -> None:
    batcher, old, runner = Batcher(), _lane(max_batch=1), FakeRunner()
    _added(batcher, old, fairness=1)
    assert batcher.next_batch([runner], 0) is not None
    wanted = _added(batcher, old, fairness=1)
    for _ in range(5):
        _added(batcher, _lane(max_batch=1), fairness=2)
        decision = batcher.next_batch([runner], 0)
        assert decision is not None
        if wanted in decision.jobs:
            return
    raise AssertionError("five others, who came later, went first")


# ── suspects ───────────────────────────────────────────────────────────────────────────────────


def test_suspects_run_alone_after_those_who_waited() -> None:
    batcher, lane, runner = Batcher(), _lane(), FakeRunner()
    before = _added(batcher, lane)
    suspects = [_suspected(batcher, lane) for _ in range(2)]
    after = _added(batcher, lane)
    assert (batcher.jobs, batcher.rows) == (4, 4)
    order: list[list[Job]] = []
    for _ in range(10):
        while decision := batcher.next_batch([runner], 0):
            assert decision.alone == (decision.jobs[0] in suspects)
            assert not decision.alone or runner.inflight == 0
            runner.give(decision, 0, takes=0)
            order.append(decision.jobs)
        if runner.batches:
            runner.finish(0)
    # Whoever shares the queue with those who waited may share their batch.
    assert order == [[before, after], [suspects[0]], [suspects[1]]]


def test_suspects_are_not_put_off_by_new_work() -> None:
    batcher, lane, runner = Batcher(), _lane(max_batch=1), FakeRunner()
    runner.give(Decision(runner, lane, [], False), 0, takes=0)
    suspect = _suspected(batcher, lane)
    for _ in range(3):
        _added(batcher, lane)
        assert batcher.next_batch([runner], 0) is None
    runner.finish(0)
    decision = batcher.next_batch([runner], 0)
    assert decision is not None
    assert decision.jobs == [suspect]


def test_a_worker_that_runs_a_suspect_gets_nothing_else() -> None:
    batcher, lane, runner = Batcher(), _lane(max_batch=1), FakeRunner()
    _suspected(batcher, lane)
    runner.give(batcher.next_batch([runner], 0), 0, takes=0)  # type: ignore[arg-type]
    _added(batcher, lane)
    assert batcher.next_batch([runner], 10 * LEAD) is None
    runner.finish(0)
    assert batcher.next_batch([runner], 0) is not None


def test_suspects_with_one_deadline_expire_together() -> None:
    batcher, lane = Batcher(), _lane()
    suspects = [_suspected(batcher, lane, deadline=100) for _ in range(3)]
    assert batcher.wakeup([], 0) == 100
    assert list(batcher.expire(99)) == []
    assert sorted(map(id, batcher.expire(100))) == sorted(map(id, suspects))
    assert batcher.jobs == 0


def test_suspects_can_be_removed_and_cleared() -> None:
    batcher, lane = Batcher(), _lane()
    one, other = _suspected(batcher, lane), _suspected(batcher, lane)
    waiting = _added(batcher, lane)
    batcher.remove(one)
    assert not one.queued
    assert list(batcher.clear()) == [other, waiting]
    assert (batcher.jobs, batcher.rows) == (0, 0)
    assert not other.queued


def test_a_suspect_without_rows_counts_none() -> None:
    batcher, lane = Batcher(), _lane()
    batcher.suspect(Job(None, lane, 0))
    assert (batcher.jobs, batcher.rows) == (1, 0)


def test_the_engine_does_not_spin_while_nothing_can_leave() -> None:
    """A time to wake up that has passed already would be asked for again and again."""
    batcher, lane, runner = Batcher(), _lane(max_batch=1), FakeRunner()
    _suspected(batcher, lane)
    runner.give(batcher.next_batch([runner], 0), 0, takes=0)  # type: ignore[arg-type]
    _added(batcher, lane)
    now = 10 * LEAD
    assert batcher.next_batch([runner], now) is None
    wakeup = batcher.wakeup([runner], now)
    assert wakeup is None or wakeup > now


def test_of_two_busy_workers_the_one_that_is_free_first_is_chosen() -> None:
    batcher, lane = Batcher(), _lane()
    late, soon = FakeRunner(0), FakeRunner(1)
    late.give(Decision(late, lane, [], False), 0, takes=100 * LEAD)
    soon.give(Decision(soon, lane, [], False), 0, takes=0)
    _added(batcher, lane)
    decision = batcher.next_batch([late, soon], 0)
    assert decision is not None
    assert decision.runner is soon


def test_a_worker_that_is_overdue_gets_nothing_more() -> None:
    """It may hang, or run for minutes: whatever went to it would wait behind that."""
    batcher, lane = Batcher(), _lane(max_batch=1)
    runner = FakeRunner(late_at=10)
    runner.give(Decision(runner, lane, [], False), 0, takes=5)
    _added(batcher, lane)
    assert batcher.next_batch([runner], 10) is None
    assert batcher.next_batch([runner], 9) is not None


# ── everything at once, against a model ────────────────────────────────────────────────────────


class BatcherMachine(RuleBasedStateMachine):
    """Jobs come, leave, expire, and come again when their runner dies; a plain list knows all."""

    def __init__(self) -> None:
        super().__init__()
        self.batcher = Batcher()
        self.lanes = [_lane(4), _lane(1), _lane(3, batched=False)]
        self.runners: list[FakeRunner] = []
        self.broken = False
        self.now = 1_000
        self.lines: dict[tuple[Lane, int, int], list[Job]] = {}
        self.suspects: dict[Job, set[Job]] = {}  # with those who were there before them
        self.turns: dict[tuple[Lane, int, int], Counter[int]] = {}
        self.kept: list[Job] = []  # so that no id is used twice

    @initialize(count=st.integers(1, 3))
    def runners_start(self, count: int) -> None:
        self.runners = [FakeRunner(number) for number in range(count)]

    # ── what the model knows ────────────────────────────────────────────────────────────────

    @property
    def queued(self) -> list[Job]:
        return [job for line in self.lines.values() for job in line]

    @property
    def running(self) -> list[Job]:
        return [job for runner in self.runners for given in runner.batches for job in given.jobs]

    @property
    def waiting(self) -> list[Job]:
        return [*self.queued, *self.suspects]

    def _joins(self, job: Job) -> None:
        key = (job.lane, job.priority, job.fairness)
        line = self.lines.setdefault(key, [])
        if not line:
            self.turns[key] = Counter()
        line.append(job)
        line.sort(key=lambda one: one.sequence)  # whoever comes again keeps its place
        self.kept.append(job)
        assert job.queued

    def _leaves(self, job: Job) -> None:
        assert not job.queued
        if job in self.suspects:
            del self.suspects[job]
            return
        key = (job.lane, job.priority, job.fairness)
        self.lines[key].remove(job)
        if not self.lines[key]:
            del self.lines[key], self.turns[key]

    # ── what happens ────────────────────────────────────────────────────────────────────────

    @rule(
        lane=st.integers(0, 2),
        rows=st.integers(0, 4),
        fairness=st.integers(1, 3),
        priority=st.integers(-1, 1),
        deadline=st.none() | st.integers(1, 4 * LEAD),
    )
    def add(self, lane: int, rows: int, fairness: int, priority: int, deadline: int | None) -> None:
        into = self.lanes[lane]
        rows = min(rows, into.max_batch)
        until = 0 if deadline is None else self.now + deadline
        job = Job(None, into, rows, fairness=fairness, priority=priority, deadline=until)
        self.batcher.add(job)
        self._joins(job)

    @rule(lane=st.integers(0, 2), count=st.integers(5, 30), fairness=st.integers(1, 3))
    def flood(self, lane: int, count: int, fairness: int) -> None:
        for _ in range(count):
            self.add(lane, 1, fairness, 0, None)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        waiting = self.waiting
        job = waiting[data.draw(st.integers(0, len(waiting) - 1))]
        self.batcher.remove(job)
        self._leaves(job)

    @rule(passes=st.integers(0, 3 * LEAD))
    def expire(self, passes: int) -> None:
        self.now += passes
        due = {id(job) for job in self.waiting if job.deadline and job.deadline <= self.now}
        expired = list(self.batcher.expire(self.now))
        assert len(expired) == len(due)
        assert {id(job) for job in expired} == due
        for job in expired:
            self._leaves(job)

    @rule(takes=st.sampled_from([0, LEAD // 2, 5 * LEAD]))
    def schedule(self, takes: int) -> None:
        self.expire(0)
        for _ in range(1_000):
            decision = self.batcher.next_batch(self.runners, self.now)
            if decision is None:
                break
            self.broken = True  # until the decision has passed
            self._check(decision)
            self.broken = False
            assert isinstance(decision.runner, FakeRunner)
            decision.runner.give(decision, self.now, takes)
        else:
            raise AssertionError("there is no end of batches")
        self._check_nothing_more_can_leave()

    @precondition(lambda self: any(runner.batches for runner in self.runners))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        busy = [runner for runner in self.runners if runner.batches]
        runner = busy[data.draw(st.integers(0, len(busy) - 1))]
        runner.finish(self.now)

    @precondition(lambda self: any(runner.batches for runner in self.runners))
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """The batch that ran is taken apart, those behind it come again in their order."""
        busy = [runner for runner in self.runners if runner.batches]
        runner = busy[data.draw(st.integers(0, len(busy) - 1))]
        ran, *behind = runner.batches
        runner.batches, runner.alone = [], False
        for decision in reversed(behind):
            for job in reversed(decision.jobs):
                assert not job.suspect
                self.batcher.add(job, again=True)
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
                self.suspects[single] = {*self.queued, *self.running}
                self.batcher.suspect(single)

    # ── what must hold ──────────────────────────────────────────────────────────────────────

    def _check(self, decision: Decision) -> None:
        runner, lane, jobs, alone = decision
        assert isinstance(runner, FakeRunner)
        assert not runner.alone, "a worker that runs a suspect got more"
        assert runner.inflight < DEPTH
        assert jobs
        assert all(job.lane is lane for job in jobs)
        for ready in [job for job, before in self.suspects.items() if not self._still(before)]:
            if alone:
                break
            assert all(other.inflight for other in self.runners), f"{ready} was put off"
            assert len(self.runners) > 1
        if alone:
            (job,) = jobs
            assert runner.inflight == 0
            assert job.rows <= 1
            assert not self._still(self.suspects[job]), "a suspect did not wait for the innocent"
            self._leaves(job)
            return
        if not lane.batched:
            assert runner is self.runners[0]
            assert len(jobs) == 1
        elif len(jobs) > 1:
            assert all(job.rows for job in jobs)
        if lane.batched:
            assert sum(job.rows for job in jobs) <= lane.max_batch
        for job in jobs:
            key = (lane, job.priority, job.fairness)
            assert self.lines[key][0] is job, "a client's own order was not kept"
            self._take_turn(job)
            self._leaves(job)
        lowest = min(job.priority for job in jobs)
        for lane_, priority, _ in self.lines:
            assert lane_ is not lane or priority <= lowest, "a higher priority waits"

    def _still(self, jobs: set[Job]) -> bool:
        """Whether any of these waits, as far as the model knows."""
        return not jobs.isdisjoint(self.queued)

    def _take_turn(self, job: Job) -> None:
        for (lane, priority, fairness), turns in self.turns.items():
            if lane is not job.lane or priority != job.priority:
                continue
            if fairness == job.fairness:
                turns.clear()
            else:
                turns[job.fairness] += 1
                assert turns[job.fairness] <= 1, "a client was passed over twice"

    def _check_nothing_more_can_leave(self) -> None:
        wakeup = self.batcher.wakeup(self.runners, self.now)
        assert wakeup is None or wakeup > self.now, "the engine would spin"
        if self.suspects:
            return
        idle = [runner for runner in self.runners if not runner.inflight]
        if idle and any(job.lane.batched or idle[0].name == 0 for job in self.queued):
            raise AssertionError("a worker idles while there is work for it")

    @invariant()
    def counters_are_right(self) -> None:
        assert self.batcher.jobs == len(self.waiting)
        assert self.batcher.rows == sum(job.rows for job in self.waiting)
        for lane in self.lanes:
            assert lane.rows == sum(job.rows for job in self.queued if job.lane is lane)
        assert all(job.queued for job in self.waiting)

    def teardown(self) -> None:
        if self.broken:
            return
        left = list(self.batcher.clear())
        assert len(left) == len(self.waiting)
        assert {id(job) for job in left} == {id(job) for job in self.waiting}
        assert (self.batcher.jobs, self.batcher.rows) == (0, 0)
        assert not any(job.queued for job in left)


TestBatcher = BatcherMachine.TestCase
TestBatcher.settings = settings(max_examples=120, stateful_step_count=50)
