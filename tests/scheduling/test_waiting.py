"""Batches that wait for clients that were just answered, and sizes that are compiled."""

from __future__ import annotations

import pytest

from penstock.scheduling.abilities import LEAD
from penstock.scheduling.decisions import Closed
from penstock.scheduling.lanes import Lane
from penstock.scheduling.patience import pays
from tests.scheduling.bench import (
    CPU,
    GPU,
    MS,
    SECOND,
    US,
    Bench,
    about_to_finish,
    just_answered,
    lane_of,
)

# ── waiting for clients that were just answered ────────────────────────────────────────────────


def test_a_batch_waits_until_all_are_back() -> None:
    bench, lane = just_answered()
    jobs = bench.crowd(lane, [1])
    assert bench.step(50 * US) == []
    for caller in range(2, 8):
        jobs += bench.crowd(lane, [caller])
        assert bench.step(10 * US) == []
        wakeup = bench.wakeup()
        assert wakeup is not None
        assert wakeup > bench.now
    jobs += bench.crowd(lane, [8])
    decision = bench.one(10 * US)
    assert (decision.jobs, decision.closed) == (jobs, Closed.COMPLETE)


@pytest.mark.parametrize("late", [0, 1, 70 * US, 5 * SECOND])
def test_a_batch_does_not_wait_for_those_who_do_not_come(late: int) -> None:
    """Whether the engine is woken on time or a little later, as it usually is."""
    bench, lane = just_answered()
    answered = bench.now
    job = bench.add(lane, fairness=1)
    assert bench.step(50 * US) == []
    until = bench.wakeup()
    assert until == answered + lane.returns.turnaround
    assert bench.step(until - bench.now - 1) == []
    decision = bench.one(1 + late)
    assert (decision.jobs, decision.closed) == ([job], Closed.WAITED)
    assert bench.wakeup() is None


def test_nobody_waits_for_clients_whom_nobody_expects() -> None:
    bench, lane = Bench(), lane_of(GPU)
    bench.teach(lane, 200 * US)
    bench.add(lane)
    assert bench.one().closed is Closed.IDLE


def test_a_batch_does_not_wait_for_what_does_not_fit() -> None:
    bench, lane = just_answered(clients=64)
    bench.crowd(lane, range(1, 17))
    assert bench.one().closed is Closed.FULL


def test_a_batch_that_waits_leaves_when_it_is_full() -> None:
    bench, lane = just_answered(clients=64)
    bench.crowd(lane, range(1, 9))
    assert bench.step() == []
    bench.crowd(lane, range(9, 17))
    assert bench.one(10 * US).closed is Closed.FULL


def test_waiting_does_not_pay_where_time_grows_with_the_rows() -> None:
    bench, lane = just_answered(CPU)
    bench.add(lane, fairness=1)
    assert bench.one().closed is Closed.IDLE


def test_nobody_waits_before_it_is_known_how_long_a_batch_takes() -> None:
    bench, lane = just_answered({})
    bench.add(lane, fairness=1)
    assert bench.one().closed is Closed.IDLE


@pytest.mark.parametrize(("takes", "waits"), [(1_900 * US, True), (1_950 * US, False)])
def test_a_batch_waits_for_slow_clients_as_far_as_that_pays(takes: int, waits: bool) -> None:
    """One batch of 8 in 2.4 ms against two in 4.3 ms."""
    bench, lane = Bench(), lane_of(GPU)
    bench.teach(lane, takes)
    bench.answered(lane, range(1, 8))
    bench.add(lane, fairness=99)
    assert (bench.step() == []) is waits


def test_a_wait_ends_after_half_of_what_the_batch_takes_whoever_is_still_expected() -> None:
    """Another worker's answers go on, so that there is always somebody to wait for."""
    bench, lane = Bench(workers=2), lane_of({1: 20 * MS, 64: 21 * MS}, max_batch=64)
    bench.teach(lane, 2 * MS)
    bench.answered(lane, range(100, 104))
    began = bench.now
    bench.add(lane, fairness=1)
    assert bench.step() == []
    for caller in range(100, 200, 2):
        if sent := bench.step(MS):
            break
        bench.crowd(lane, range(caller, caller + 2))
        bench.answered(lane, range(caller + 4, caller + 6))
    (decision,) = sent
    assert decision.closed is Closed.WAITED
    half = lane.shortest(len(decision.jobs) + 4) // 2
    assert half - MS <= bench.now - began <= half + MS


def test_the_engine_is_woken_when_a_wait_has_lasted_long_enough() -> None:
    bench, lane = Bench(), lane_of({1: 20 * MS, 16: 21 * MS})
    bench.teach(lane, 9 * MS)
    bench.answered(lane, range(100, 115))
    began = bench.now
    bench.add(lane, fairness=1)
    assert bench.step() == []
    bench.now += 5 * MS
    bench.answered(lane, range(200, 203))
    assert bench.step() == []
    wakeup = bench.wakeup()
    assert wakeup is not None
    assert wakeup < bench.now + lane.returns.turnaround
    assert wakeup == began + lane.shortest(16) // 2 + 1
    assert bench.one(wakeup - bench.now).closed is Closed.WAITED


def test_those_who_seldom_come_back_are_not_waited_for() -> None:
    bench, lane = just_answered(clients=3)
    for caller in range(1_000, 1_040):
        lane.returns.answered(caller, 1, bench.now - SECOND)
        lane.returns.expected(bench.now)
    bench.answered(lane, range(1, 4))
    bench.add(lane, fairness=1)
    assert bench.one().closed is Closed.IDLE


def test_a_wait_that_was_cancelled_is_forgotten() -> None:
    bench, lane = just_answered()
    job = bench.add(lane, fairness=1)
    assert bench.step() == []
    bench.batcher.remove(job)
    bench.now += 10 * SECOND
    bench.answered(lane, range(20, 28))
    bench.add(lane, fairness=20)
    assert bench.step() == []  # a new one: it has not waited before
    bench.batcher.remove(next(iter(next(iter(lane.levels.values())).heads())))
    bench.now += 10 * SECOND
    bench.add(lane, fairness=99)
    assert bench.one().closed is Closed.IDLE


def test_what_is_left_of_a_batch_that_waited_has_not_waited_itself() -> None:
    bench, lane = just_answered(clients=64, workers=2)
    bench.add(lane, fairness=1)
    assert bench.step() == []
    bench.crowd(lane, range(2, 18))
    assert bench.one(100 * US).closed is Closed.FULL
    assert (lane.rows, lane.waiting_since) == (1, bench.now)


def test_with_several_workers_only_the_waiting_of_those_who_wait_counts() -> None:
    """Whoever comes later may be served by another worker meanwhile."""
    for workers, waits in ((1, True), (2, False)):
        bench, lane = Bench(workers), lane_of({1: 2_000 * US, 2: 2_400 * US, 16: 3 * MS})
        bench.teach(lane, 700 * US)
        bench.answered(lane, [1, 2])
        bench.add(lane, fairness=1)
        assert (bench.step() == []) is waits


@pytest.mark.parametrize("workers", [1, 2])
def test_waiting_pays_if_a_round_is_shorter(workers: int) -> None:
    lane = lane_of(GPU)
    second = lane.shortest(4) if workers == 1 else lane.shortest(4) * 4 // 6
    even = lane.shortest(2) + second - lane.shortest(6)
    assert pays(lane.on(0), 2, 4, even - 1, workers)
    assert not pays(lane.on(0), 2, 4, even, workers)


# ── a worker that is about to be free ──────────────────────────────────────────────────────────


def test_a_batch_waits_for_those_whom_its_worker_is_about_to_answer() -> None:
    bench, lane = about_to_finish()
    bench.add(lane, fairness=20)
    assert bench.step() == []
    bench.now += LEAD
    bench.finish()
    assert bench.step() == []
    bench.crowd(lane, range(1, 9))
    decision = bench.one(100 * US)
    assert (len(decision.jobs), decision.closed) == (9, Closed.COMPLETE)


def test_nobody_is_held_back_before_clients_were_seen_to_come_back() -> None:
    bench, lane = about_to_finish(takes=0)
    bench.add(lane, fairness=20)
    assert bench.one().closed is Closed.AHEAD


def test_nobody_is_held_back_where_it_does_not_pay() -> None:
    bench, lane = about_to_finish(CPU)
    bench.add(lane, fairness=20)
    assert bench.one().closed is Closed.AHEAD


@pytest.mark.parametrize(("takes", "waits"), [(1_200 * US, True), (1_300 * US, False)])
def test_nobody_is_held_back_for_clients_that_take_long(takes: int, waits: bool) -> None:
    """One batch of 9 in 2.5 ms, after the wait, against two in 4.4 ms: both would pay."""
    bench, lane = about_to_finish(takes=takes)
    bench.add(lane, fairness=20)
    assert (bench.step() == []) is waits


def test_nobody_is_held_back_for_clients_that_seldom_come_back() -> None:
    bench, lane = about_to_finish()
    for caller in range(1_000, 1_007):
        lane.returns.answered(caller, 1, bench.now - SECOND)
        lane.returns.expected(bench.now)
    assert not lane.returns.steady
    bench.add(lane, fairness=20)
    assert bench.one().closed is Closed.AHEAD


def test_a_full_batch_is_not_held_back() -> None:
    bench, lane = about_to_finish()
    bench.crowd(lane, range(20, 36))
    assert bench.one().closed is Closed.FULL


def test_nobody_is_held_back_for_clients_of_another_model() -> None:
    bench, _ = about_to_finish()
    other = lane_of(GPU)
    bench.teach(other, 200 * US)
    bench.add(other, fairness=20)
    assert bench.one().closed is Closed.AHEAD


# ── several workers, in turn ───────────────────────────────────────────────────────────────────


FLAT = {1: 2 * MS, 16: 2 * MS}


def begun(times: dict[int, int] = FLAT, theirs: int = 4, workers: int = 2) -> tuple[Bench, Lane]:
    """All workers but the last have just begun a batch of so many rows."""
    bench, lane = Bench(workers), lane_of(times)
    for worker in range(workers - 1):
        bench.occupy(lane, worker, theirs)
    return bench, lane


@pytest.mark.parametrize("workers", [2, 3])
def test_the_last_free_worker_keeps_its_distance_from_the_next(workers: int) -> None:
    bench, lane = begun(workers=workers)
    job = bench.add(lane)
    assert bench.step() == []
    until = bench.wakeup()
    assert until == bench.workers[0].free_at - 2 * MS // workers
    assert bench.step(until - bench.now - 1) == []
    more = bench.add(lane)
    decision = bench.one(1)
    assert (decision.jobs, decision.closed) == ([job, more], Closed.IDLE)


def test_a_worker_that_is_not_the_last_free_one_does_not_wait() -> None:
    bench, lane = Bench(3), lane_of(FLAT)
    bench.occupy(lane, rows=4)
    bench.add(lane)
    assert bench.one().closed is Closed.IDLE


def test_as_many_rows_as_the_other_has_do_not_wait() -> None:
    bench, lane = begun()
    bench.crowd(lane, range(4))
    assert bench.one().closed is Closed.IDLE


def test_workers_may_run_in_step_where_more_rows_take_longer() -> None:
    bench, lane = begun(CPU)
    bench.add(lane)
    assert bench.one().closed is Closed.IDLE


def test_nobody_keeps_a_distance_from_a_worker_with_other_work() -> None:
    bench, _ = begun()
    other = lane_of(FLAT)
    bench.add(other)
    assert bench.one().closed is Closed.IDLE


def test_nobody_keeps_a_distance_from_a_worker_that_is_busy_for_longer() -> None:
    """This one is free again before."""
    bench, lane = begun()
    bench.occupy(lane, 0, 4)
    bench.add(lane)
    assert bench.one().closed is Closed.IDLE


@pytest.mark.parametrize(("theirs", "waits"), [(1, False), (4, True)])
def test_a_worker_about_to_be_free_keeps_its_distance_too(theirs: int, waits: bool) -> None:
    bench, lane = Bench(2), lane_of(FLAT)
    bench.occupy(lane, 0)
    bench.now += 2 * MS - LEAD
    bench.occupy(lane, 1, theirs)
    bench.add(lane)
    assert [decision.closed for decision in bench.step()] == ([] if waits else [Closed.AHEAD])


def test_nobody_misses_a_deadline_for_the_distance() -> None:
    bench, lane = begun()
    bench.measure(lane, FLAT)
    job = bench.add(lane, deadline=bench.now + 2 * MS + 2 * LEAD)
    assert bench.step() == []
    until = bench.wakeup()
    assert until == bench.now + LEAD
    assert bench.one(until - bench.now).jobs == [job]


# ── sizes that are compiled ────────────────────────────────────────────────────────────────────


LADDER = (1, 2, 4, 8, 16)


def test_a_size_is_filled_and_the_rest_left_where_padding_costs_more() -> None:
    bench, lane = Bench(), lane_of(CPU, ladder=LADDER)
    jobs = bench.crowd(lane, range(5))
    decision = bench.one()
    assert (decision.jobs, decision.closed) == (jobs[:4], Closed.FITTING)
    assert bench.batcher.jobs == 1
    bench.finish()
    bench.now += MS
    assert bench.one().jobs == jobs[4:]


def test_a_batch_is_padded_where_that_costs_little() -> None:
    bench, lane = Bench(), lane_of(GPU, ladder=LADDER)
    jobs = bench.crowd(lane, range(5))
    decision = bench.one()
    assert (decision.jobs, decision.closed) == (jobs, Closed.IDLE)


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_a_batch_that_fits_leaves_whole(rows: int) -> None:
    bench, lane = Bench(), lane_of(CPU, ladder=LADDER)
    jobs = bench.crowd(lane, range(rows))
    decision = bench.one()
    assert (decision.jobs, decision.closed) == (jobs, Closed.IDLE)


def test_a_size_that_is_filled_is_not_taken_apart() -> None:
    """Not even where two small batches take less than a large one."""
    bench = Bench()
    lane = lane_of({1: MS, 2: 2 * MS, 4: 5 * MS, 8: 12 * MS}, max_batch=8, ladder=(1, 2, 4, 8))
    jobs = bench.crowd(lane, range(4))
    decision = bench.one()
    assert (decision.jobs, decision.closed) == (jobs, Closed.IDLE)


def test_the_rest_goes_to_another_worker_at_once() -> None:
    bench, lane = Bench(workers=2), lane_of(CPU, ladder=LADDER)
    bench.crowd(lane, range(5))
    first, second = bench.step()
    assert [len(first.jobs), len(second.jobs)] == [4, 1]
    assert first.runner is not second.runner


def test_a_request_that_is_larger_than_the_size_is_not_taken_apart() -> None:
    bench, lane = Bench(), lane_of(CPU, ladder=LADDER)
    job = bench.add(lane, rows=5)
    decision = bench.one()
    assert (decision.jobs, decision.closed) == ([job], Closed.IDLE)


def test_a_full_batch_is_full_also_when_its_size_is_none_of_the_ladder() -> None:
    bench, lane = Bench(), lane_of(CPU, max_batch=6, ladder=(1, 2, 4, 8))
    bench.crowd(lane, range(9))
    decision = bench.one()
    assert (len(decision.jobs), decision.closed) == (4, Closed.FULL)
