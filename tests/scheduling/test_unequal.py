"""Workers that are not equal: what each can hold, how long each takes, and who gets what."""

from __future__ import annotations

from collections import Counter

from penstock.engine.workers import Worker
from penstock.scheduling.abilities import LEAD
from penstock.scheduling.deadlines import in_time
from penstock.scheduling.decisions import Closed, Decision
from penstock.scheduling.lanes import Lane
from penstock.scheduling.queue import Job
from tests.scheduling.bench import MS, Bench, lane_of

LARGE, SMALL = 0, 1  # workers
FAST, SLOW = 0, 1


def _unequal_memory(batches: tuple[int, ...] = (64, 8), takes: int = 4 * MS) -> tuple[Bench, Lane]:
    """Workers that take equally long, and hold so many rows."""
    bench, lane = Bench(len(batches)), lane_of(max_batch=max(batches))
    for index, most in enumerate(batches):
        lane.tell(index, most, (), [(1, takes), (most, takes)])
    return bench, lane


def _unequal_speed(fast: int = 2 * MS, slow: int = 40 * MS) -> tuple[Bench, Lane]:
    """Two workers that hold 16 rows and take so long, as they were measured just now."""
    bench, lane = Bench(2), lane_of()
    for index, takes in enumerate((fast, slow)):
        for rows in (1, 2, 4, 8, 16):
            lane.observe(index, rows, takes, bench.now)
    return bench, lane


def _rows(decision: Decision) -> int:
    return sum(job.rows for job in decision.jobs)


def _of(decision: Decision) -> int:
    assert isinstance(decision.runner, Worker)
    return decision.runner.index


# ── what each can hold ─────────────────────────────────────────────────────────────────────────


def test_each_worker_gets_as_many_rows_as_it_can_hold() -> None:
    bench, lane = _unequal_memory()
    for _ in range(300):
        bench.add(lane)
    sent = bench.step()
    assert {(_of(each), _rows(each)) for each in sent} == {(LARGE, 64), (SMALL, 8)}
    assert all(each.closed is Closed.FULL for each in sent)


def test_a_worker_that_is_cut_cuts_no_other() -> None:
    bench, lane = _unequal_memory((16, 16, 16))
    lane.tell(1, 2, (), [])
    for _ in range(100):
        bench.add(lane)
    most = Counter[int]()
    for each in bench.step():
        most[_of(each)] = max(most[_of(each)], _rows(each))
    assert most == {0: 16, 1: 2, 2: 16}
    assert lane.max_batch == 16


def test_sizes_are_filled_by_the_ladder_of_the_worker_that_gets_them() -> None:
    for index, rows in enumerate([4, 3]):
        bench, lane = Bench(2), lane_of(max_batch=16)
        for worker, ladder in enumerate([(4, 8, 16), (1, 3, 6)]):
            lane.tell(worker, ladder[-1], ladder, [(size, size * MS) for size in ladder])
        for _ in range(4):
            bench.add(lane)
        decision = bench.batcher.next_batch([bench.workers[index]], bench.now)
        assert decision is not None
        assert _rows(decision) == rows


def test_a_request_that_no_worker_but_one_can_hold_is_cut_for_the_others() -> None:
    bench, lane = _unequal_memory()
    bench.occupy(lane, LARGE, 64)
    bench.occupy(lane, LARGE, 64)
    siblings: list[Job] = []
    job = bench.add(lane, 20, siblings=siblings)
    assert [(each.jobs[0].start, _rows(each)) for each in bench.step()] == [(0, 8), (8, 8)]
    assert (job.start, job.rows, job.queued) == (16, 4, True)
    assert [(part.start, part.rows) for part in siblings] == [(0, 8), (8, 8)]
    assert (bench.batcher.requests, bench.batcher.rows, lane.rows) == (1, 4, 4)
    bench.now += 8 * MS
    bench.finish(SMALL)
    bench.finish(SMALL)
    assert bench.one(5 * MS).jobs == [job]
    assert (bench.batcher.requests, bench.batcher.jobs, lane.rows) == (0, 0, 0)


def test_a_request_is_not_cut_where_it_fits() -> None:
    bench, lane = _unequal_memory()
    bench.occupy(lane, SMALL, 8)
    bench.occupy(lane, SMALL, 8)
    job = bench.add(lane, 20)
    bench.add(lane, 60)
    (first,) = bench.step()
    assert (_of(first), first.jobs) == (LARGE, [job])


def test_what_is_not_batched_is_not_cut() -> None:
    bench, lane = Bench(2), lane_of({1: MS}, batched=False)
    lane.tell(0, 2, (), [])
    job = bench.add(lane, 5)
    assert bench.one().jobs == [job]


def test_a_part_whose_worker_dies_comes_again_before_the_rest() -> None:
    bench, lane = _unequal_memory((8,))
    bench.add(lane, 20, siblings=[])
    first, second = (each.jobs[0] for each in bench.step())
    bench.workers[0].exited(bench.now)
    for part in (second, first):
        bench.batcher.add(part, bench.now, again=True)
    assert [job.start for job in bench.batcher.queue.take(lane, 16)] == [0, 8]


# ── how long each takes ────────────────────────────────────────────────────────────────────────


def test_each_worker_is_expected_to_need_what_it_needs() -> None:
    bench, lane = _unequal_speed()
    for _ in range(32):
        bench.add(lane)
    assert len(bench.step()) == 2
    fast, slow = bench.workers
    assert (fast.free_at, fast.late_at) == (bench.now + 2 * MS, bench.now + 4 * MS)
    assert (slow.free_at, slow.late_at) == (bench.now + 40 * MS, bench.now + 80 * MS)


def test_measurements_of_one_do_not_change_what_another_is_expected_to_need() -> None:
    bench, lane = _unequal_speed()
    for _ in range(9):
        lane.observe(SLOW, 16, 400 * MS, bench.now)
    assert lane.on(FAST).cost(16) == 2 * MS


def test_of_whom_nothing_is_known_is_like_the_one_that_was_measured_first() -> None:
    lane = lane_of()
    assert lane.on(1).cost(4) == 0
    lane.observe(0, 4, 3 * MS, 1)
    lane.observe(2, 4, 9 * MS, 1)
    assert (lane.on(1).cost(4), lane.on(3).cost(4)) == (3 * MS, 3 * MS)
    assert not lane.on(1).fresh(4, 1)  # nobody is refused because of another's times
    lane.observe(1, 4, 5 * MS, 1)
    assert lane.on(1).cost(4) == 5 * MS


def test_a_few_rows_go_to_the_one_that_has_them_first_and_never_to_the_slow_one() -> None:
    bench, lane = _unequal_speed()
    for _ in range(5):
        bench.add(lane)
        assert _of(bench.one()) == FAST
        bench.now += 2 * MS
        bench.finish(FAST)
        bench.now += MS


def test_a_busy_worker_is_waited_for_if_it_is_still_the_first_to_be_done() -> None:
    bench, lane = _unequal_speed()
    bench.occupy(lane, FAST)
    bench.add(lane)
    assert bench.step() == []
    assert bench.wakeup() == bench.now + 2 * MS - LEAD
    assert _of(bench.one(2 * MS - LEAD)) == FAST


def test_it_is_not_waited_for_any_longer_when_it_may_hang() -> None:
    bench, lane = _unequal_speed()
    bench.occupy(lane, FAST)
    bench.occupy(lane, FAST)
    bench.add(lane)
    assert bench.step(5 * MS) == []
    assert bench.wakeup() == bench.workers[FAST].late_at
    bench.now = bench.workers[FAST].late_at
    assert _of(bench.one()) == SLOW


def test_it_is_waited_for_no_longer_than_the_free_one_would_have_taken() -> None:
    """It has something that takes longer than expected, long before it is thought to hang."""
    bench, lane = _unequal_speed(fast=3 * MS, slow=8 * MS)
    other = lane_of({1: 15 * MS})
    bench.measure(other, {1: 15 * MS})
    bench.occupy(other, FAST)
    bench.occupy(other, FAST)  # it has as many batches as it may have
    bench.step(26 * MS)
    bench.add(lane)
    assert bench.step() == []  # 7 ms there, 8 here
    assert bench.step(5 * MS) == []  # it should be done by now
    enough = bench.workers[FAST].free_at + 8 * MS
    assert bench.wakeup() == enough < bench.workers[FAST].late_at
    bench.now = enough
    assert _of(bench.one()) == SLOW


def test_the_slow_one_gets_what_fills_it() -> None:
    bench, lane = _unequal_speed()
    for _ in range(48):
        bench.add(lane)
    assert sorted((_of(each), _rows(each)) for each in bench.step()) == [(0, 16), (0, 16), (1, 16)]


def test_equal_workers_share_a_few_rows_as_they_come() -> None:
    bench, lane = _unequal_speed(20 * MS, 21 * MS)
    bench.add(lane)
    bench.step()
    bench.add(lane)
    bench.step(MS)
    assert [worker.inflight for worker in bench.workers] == [1, 1]


def test_another_model_may_have_the_slow_worker_meanwhile() -> None:
    bench, lane = _unequal_speed()
    other = lane_of({1: MS})
    bench.occupy(lane, FAST)
    bench.add(lane)
    bench.add(other)
    assert [(_of(each), each.lane) for each in bench.step()] == [(SLOW, other)]


# ── deadlines ──────────────────────────────────────────────────────────────────────────────────


def test_what_would_be_late_on_the_slow_one_waits_for_the_fast_one() -> None:
    bench, lane = _unequal_speed()
    bench.occupy(lane, FAST)
    bench.occupy(lane, FAST)
    for _ in range(16):  # a full batch
        bench.add(lane, deadline=bench.now + 10 * MS)
    assert bench.step() == []
    assert (bench.missed, bench.expired) == ([], [])
    bench.now += 2 * MS
    bench.finish(FAST)
    assert (_of(sent := bench.one()), _rows(sent)) == (FAST, 16)


def test_what_was_cut_and_would_be_late_there_is_whole_again() -> None:
    bench, lane = _unequal_speed()
    lane.tell(SLOW, 4, (), [])
    bench.occupy(lane, FAST)
    bench.occupy(lane, FAST)
    siblings: list[Job] = []
    job = bench.add(lane, 10, deadline=bench.now + 10 * MS, siblings=siblings)
    assert bench.step() == []
    assert (job.start, job.rows, job.queued, siblings) == (0, 10, True, [])
    assert (lane.rows, lane.jobs, bench.batcher.rows, bench.batcher.requests) == (10, 1, 10, 1)
    bench.now += 2 * MS
    bench.finish(FAST)
    assert bench.one(2 * MS - LEAD).jobs == [job]


def test_others_have_the_slow_one_in_their_place() -> None:
    bench, lane = _unequal_speed()
    bench.occupy(lane, FAST)
    bench.occupy(lane, FAST)
    urgent = [bench.add(lane, fairness=n, deadline=bench.now + 10 * MS) for n in range(4)]
    patient = [bench.add(lane, fairness=n) for n in range(4, 24)]
    (sent,) = bench.step()
    assert _of(sent) == SLOW
    assert set(sent.jobs) <= set(patient)
    assert len(sent.jobs) == 16
    assert bench.missed == []
    assert all(job.queued for job in urgent)


def test_only_what_nobody_can_do_in_time_is_refused() -> None:
    bench, lane = _unequal_speed()
    within = Job(None, lane, 1, deadline=bench.now + 5 * MS)
    assert in_time(within, bench.workers, bench.now)
    assert not in_time(within, bench.workers[SLOW:], bench.now)
    bench.occupy(lane, FAST)
    assert in_time(within, bench.workers, bench.now)
    bench.occupy(lane, FAST)
    assert not in_time(within, bench.workers, bench.now)
    assert in_time(within, bench.workers, bench.now, begun=True)


def test_what_nobody_can_do_in_time_any_more_expires_then() -> None:
    bench, lane = _unequal_speed()
    for index in (FAST, FAST, SLOW, SLOW):
        bench.occupy(lane, index)
    job = bench.add(lane, deadline=bench.now + 10 * MS)
    bench.step(8 * MS)
    assert bench.expired == []
    bench.step(1)
    assert bench.expired == [job]


def test_what_is_left_when_others_were_too_late_is_looked_at_anew() -> None:
    """Five rows are best done there, four at a time; the fifth is not, and a worker is free."""
    bench, lane = Bench(2), lane_of(max_batch=8)
    for index, most, one, many in ((0, 8, 1 * MS, 8 * MS), (1, 4, 2 * MS, 2 * MS)):
        lane.tell(index, most, (), [(1, one), (most, many)])
    for rows, takes in ((1, 2 * MS), (4, 2 * MS)):
        lane.observe(SMALL, rows, takes, bench.now)
    job = bench.add(lane, 5, deadline=bench.now + MS)
    (decision,) = bench.step()
    assert (_of(decision), _rows(decision)) == (LARGE, 1)
    assert [missed.rows for missed in bench.missed] == [4]
    assert not job.queued
