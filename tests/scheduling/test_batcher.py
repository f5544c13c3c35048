"""When a batch leaves, to whom, and with which jobs: just in time, between models, suspects."""

from __future__ import annotations

import pytest

from penstock.scheduling.abilities import LEAD
from penstock.scheduling.batcher import Batcher
from penstock.scheduling.decisions import Closed, Decision
from penstock.scheduling.lanes import Share
from penstock.scheduling.queue import Job
from penstock.scheduling.runners import DEPTH
from tests.scheduling.bench import (
    CPU,
    GPU,
    MS,
    SECOND,
    US,
    Bench,
    just_answered,
    lane_of,
)

# ── just in time ───────────────────────────────────────────────────────────────────────────────


def test_an_idle_worker_gets_a_batch_at_once() -> None:
    bench, lane = Bench(), lane_of(GPU)
    job = bench.add(lane)
    decision = bench.one()
    assert (decision.runner, decision.lane) == (bench.workers[0], lane)
    assert (decision.jobs, decision.alone, decision.closed) == ([job], False, Closed.IDLE)
    assert bench.batcher.rows == bench.batcher.jobs == 0


def test_a_busy_worker_gets_a_small_batch_only_just_in_time() -> None:
    bench, lane = Bench(), lane_of(GPU)
    bench.add(lane)
    bench.step()
    first = bench.add(lane)
    assert bench.step() == []
    wakeup = bench.wakeup()
    assert wakeup == bench.workers[0].free_at - LEAD
    assert bench.step(wakeup - bench.now - 1) == []
    second = bench.add(lane)
    decision = bench.one(1)
    assert decision.jobs == [first, second]  # what arrived meanwhile has joined
    assert decision.closed is Closed.AHEAD


def test_a_batch_leaves_early_enough_to_be_gathered() -> None:
    bench, lane = Bench(), lane_of(GPU)
    lane.on(0).gather = 50.0 * US
    bench.occupy(lane)
    for _ in range(4):
        bench.add(lane)
    free_at = bench.workers[0].free_at
    assert bench.step() == []
    lead = LEAD + 200 * US + (lane.shortest(4) - lane.shortest(1)) // 8  # it is handed over, too
    assert bench.wakeup() == free_at - lead
    assert bench.step(free_at - lead - bench.now - 1) == []
    assert bench.one(1).closed is Closed.AHEAD


def test_each_lane_is_woken_for_when_its_own_time_comes() -> None:
    """Also when one that could have left earlier did not."""
    bench, early, late = Bench(), lane_of(GPU), lane_of(GPU)
    early.on(0).gather = 50.0 * US
    bench.teach(early, 10 * US)  # it is held back for those whom the worker answers
    bench.occupy(early, rows=8)
    bench.add(early)
    bench.add(late)
    free_at = bench.workers[0].free_at
    wakeups: list[int] = []
    sent: list[Decision] = []
    while not sent:
        wakeup = bench.wakeup()
        assert wakeup is not None
        wakeups.append(wakeup)
        sent = bench.step(wakeup - bench.now)
    assert wakeups == [free_at - LEAD - 50 * US, free_at - LEAD]
    assert sent[0].lane is late


def test_a_busy_worker_gets_a_full_batch_early() -> None:
    bench, lane = Bench(), lane_of(GPU, max_batch=4)
    bench.occupy(lane)
    bench.crowd(lane, range(3))
    assert bench.step() == []
    bench.add(lane)
    decision = bench.one()
    assert (len(decision.jobs), decision.closed) == (4, Closed.FULL)


def test_a_worker_has_no_more_than_two_batches() -> None:
    bench, lane = Bench(), lane_of(GPU, max_batch=1)
    for _ in range(10):
        bench.add(lane)
    assert len(bench.step()) == DEPTH == 2
    assert bench.step(100 * SECOND) == []


def test_the_worker_with_the_least_to_do_is_chosen() -> None:
    bench, lane = Bench(workers=2), lane_of(GPU)
    bench.occupy(lane)
    bench.add(lane)
    assert bench.one().runner is bench.workers[1]


def test_of_two_busy_workers_the_one_that_is_free_first_is_chosen() -> None:
    bench, short, long = Bench(workers=2), lane_of({1: MS}), lane_of({1: 9 * MS})
    bench.occupy(long, 0)
    bench.occupy(short, 1)
    bench.add(short)
    assert bench.one(MS - LEAD).runner is bench.workers[1]


def test_a_worker_that_is_overdue_gets_nothing_more() -> None:
    """It may hang, or run for minutes: whatever went to it would wait behind that."""
    bench, lane = Bench(), lane_of({1: 5 * MS}, max_batch=1)
    bench.occupy(lane)
    bench.now += 2 * 5 * MS  # twice what it should take
    bench.add(lane)
    assert bench.step() == []
    bench.now -= 1
    assert len(bench.step()) == 1


def test_a_worker_of_which_nobody_knows_how_long_it_takes_gets_nothing_more() -> None:
    bench, lane = Bench(), lane_of(max_batch=1)
    bench.occupy(lane)
    bench.add(lane)
    assert bench.step() == []
    bench.finish()
    assert bench.one().closed is Closed.FULL


def test_a_worker_that_hangs_does_not_keep_batches_from_the_others() -> None:
    bench, lane = Bench(workers=2), lane_of({1: MS}, max_batch=1)
    bench.occupy(lane, 0)
    bench.now += 10 * MS
    bench.occupy(lane, 1)
    bench.add(lane)
    assert bench.one().runner is bench.workers[1]


def test_a_lane_that_waits_for_its_clients_does_not_hold_up_another() -> None:
    bench, waiting, other = Bench(), lane_of(GPU), lane_of(GPU)
    bench.teach(waiting, 200 * US)
    bench.answered(waiting, range(8))
    bench.add(waiting)
    wanted = bench.add(other)
    assert bench.one().jobs == [wanted]


@pytest.mark.parametrize("batched", [True, False])
def test_a_full_batch_does_not_overtake_the_lane_whose_turn_it_is(batched: bool) -> None:
    """Else a stream of full batches would put it off for ever: there is always one before it."""
    bench, full = Bench(), lane_of({1: 10 * MS}, max_batch=1)
    other = lane_of({1: 10 * MS}, batched=batched)
    for _ in range(20):
        bench.add(full)
    bench.step()
    wanted = bench.add(other)
    sent = []
    for _ in range(3):
        bench.now = bench.workers[0].free_at - 10 * MS
        bench.finish()
        sent += bench.step()
        sent += bench.step(10 * MS - LEAD)
    assert [job for decision in sent[:2] for job in decision.jobs].count(wanted) == 1


def test_a_full_batch_of_a_lower_priority_does_not_overtake() -> None:
    bench, full, urgent = Bench(), lane_of({1: 10 * MS}, max_batch=1), lane_of({1: 10 * MS})
    for _ in range(20):
        bench.add(full)
    bench.step()
    bench.finish()
    wanted = bench.add(urgent, priority=1)
    assert bench.step() == []
    assert bench.one(10 * MS - LEAD).jobs == [wanted]


def test_a_full_batch_may_go_to_a_worker_that_nobody_before_it_waits_for() -> None:
    bench = Bench(workers=2)
    full, first = lane_of({1: 10 * MS}, max_batch=1), lane_of({1: 10 * MS}, batched=False)
    bench.occupy(full, 0)
    bench.occupy(full, 1)
    bench.add(first, priority=1)
    wanted = bench.add(full)
    decision = bench.one()
    assert (decision.runner, decision.jobs) == (bench.workers[1], [wanted])


def test_nothing_happens_without_workers() -> None:
    batcher, lane = Batcher(), lane_of(GPU)
    batcher.add(Job(None, lane, 1), 1)
    batcher.suspect(Job(None, lane, 1))
    assert batcher.next_batch([], 1) is None
    assert batcher.wakeup([], 1) is None


def test_the_engine_does_not_spin_while_nothing_can_leave() -> None:
    """A time to wake up that has passed already would be asked for again and again."""
    bench, lane = Bench(), lane_of(GPU, max_batch=1)
    bench.suspect(lane)
    bench.step()
    bench.add(lane)
    assert bench.step(100 * MS) == []
    assert bench.wakeup() is None


@pytest.mark.parametrize("suspects", [0, 1])
def test_what_is_not_batched_runs_on_the_first_worker_only(suspects: int) -> None:
    """Its rows, or its calls, may depend on each other: they meet in one process."""
    bench, lane, other = Bench(workers=2), lane_of({1: MS}, batched=False), lane_of({1: MS})
    bench.occupy(other, 0)
    bench.occupy(other, 1)
    for _ in range(suspects):
        bench.suspect(other)
    jobs = [bench.add(lane, rows=3) for _ in range(6)]
    ran: list[Job] = []
    for _ in range(40):
        for decision in bench.step(MS):
            if decision.lane is lane:
                assert decision.runner is bench.workers[0]
                assert decision.closed is Closed.SINGLE
                assert len(decision.jobs) == 1
                ran += decision.jobs
        if bench.workers[0].batches:
            bench.finish()
    assert ran == jobs


def test_what_is_not_batched_leaves_just_in_time_too() -> None:
    bench, lane = Bench(), lane_of({1: MS}, max_batch=1, batched=False)
    bench.occupy(lane)
    bench.add(lane)
    assert bench.step(MS - LEAD - 1) == []
    assert bench.one(1).closed is Closed.SINGLE


def test_a_lane_never_waits_for_others_if_it_is_not_batched() -> None:
    bench, lane = Bench(), lane_of(GPU, batched=False)
    bench.teach(lane, 200 * US)
    bench.answered(lane, range(8))
    bench.add(lane)
    assert bench.one().closed is Closed.SINGLE


# ── between models ─────────────────────────────────────────────────────────────────────────────


def test_a_flooder_in_another_lane_delays_nobody_for_long() -> None:
    bench, flooded, quiet = Bench(), lane_of(GPU, max_batch=2), lane_of(GPU, max_batch=2)
    for _ in range(1_000):
        bench.add(flooded, fairness=1)
    bench.step()
    for _ in range(20):  # one that runs, one behind it, and then its own
        bench.now = bench.workers[0].free_at - flooded.shortest(2)
        bench.finish()
        bench.step()
        wanted = bench.add(quiet, fairness=2)
        order = [batch.jobs for batch in bench.workers[0].batches.values()]
        for _ in range(2):
            bench.now = max(bench.now, bench.workers[0].free_at - LEAD)
            order += [decision.jobs for decision in bench.step()]
            bench.finish()
            order += [decision.jobs for decision in bench.step()]
        assert [wanted] in order[:3]


@pytest.mark.parametrize("times", [GPU, CPU])
def test_models_get_device_time_by_weight_when_there_is_too_much_to_do(
    times: dict[int, int],
) -> None:
    """Whatever their batches cost; what each got is measured at the device."""
    bench = Bench()
    light = lane_of(CPU, share=Share(1.0))
    heavy = lane_of(times, share=Share(3.0))
    had = {light: 0, heavy: 0}
    for _ in range(1_000):
        for lane in (light, heavy):
            while lane.rows < 40:
                bench.add(lane)
        bench.step()
        worker = bench.workers[0]
        running = next(iter(worker.batches.values()))
        bench.now += running.lane.shortest(running.rows)
        bench.finish()
        had[running.lane] += running.lane.shortest(running.rows)
    assert had[heavy] / had[light] == pytest.approx(3.0, rel=0.1)


def test_a_model_of_which_nothing_is_known_has_its_turns_all_the_same() -> None:
    bench, known, new = Bench(), lane_of(GPU, max_batch=1), lane_of(max_batch=1)
    for _ in range(20):
        bench.add(known)
        bench.add(new)
    lanes = []
    for _ in range(20):
        lanes += [decision.lane for decision in bench.step(2 * MS)]
        bench.finish()
    assert new in lanes[:3]
    assert known in lanes[:4]


# ── suspects ───────────────────────────────────────────────────────────────────────────────────


def test_suspects_run_alone_after_those_who_waited() -> None:
    bench, lane = Bench(), lane_of()
    before = bench.add(lane)
    suspects = [bench.suspect(lane) for _ in range(2)]
    after = bench.add(lane)
    assert (bench.batcher.jobs, bench.batcher.rows) == (4, 4)
    order: list[list[Job]] = []
    for _ in range(10):
        for decision in bench.step(MS):
            assert decision.alone == (decision.jobs[0] in suspects)
            assert decision.alone == (decision.closed is Closed.SUSPECT)
            assert not decision.alone or len(bench.workers[0].batches) == 1
            order.append(decision.jobs)
        if bench.workers[0].batches:
            bench.finish()
    # Whoever shares the queue with those who waited may share their batch.
    assert order == [[before, after], [suspects[0]], [suspects[1]]]


def test_suspects_are_not_put_off_by_new_work() -> None:
    bench, lane = Bench(), lane_of({1: 10 * MS}, max_batch=1)
    bench.occupy(lane)
    suspect = bench.suspect(lane)
    for _ in range(3):
        bench.add(lane)
        assert bench.step(MS) == []
    bench.finish()
    assert bench.one().jobs == [suspect]


def test_a_worker_that_runs_a_suspect_gets_nothing_else() -> None:
    bench, lane = Bench(), lane_of({1: 10 * MS}, max_batch=1)
    bench.suspect(lane)
    assert bench.one().alone
    bench.add(lane)
    assert bench.step(10 * MS - LEAD) == []
    bench.finish()
    assert bench.one().closed is Closed.FULL


def test_the_others_work_on_while_one_is_kept_free_for_a_suspect() -> None:
    bench, lane = Bench(workers=2), lane_of({1: 10 * MS}, max_batch=1)
    bench.occupy(lane, 0)
    bench.occupy(lane, 1)
    bench.suspect(lane)
    bench.add(lane)
    bench.add(lane)
    decision = bench.one(MS)
    assert not decision.alone
    kept = next(worker for worker in bench.workers if worker is not decision.runner)
    bench.now += 9 * MS
    bench.finish(kept.index)
    assert bench.step()[0].alone


def test_no_worker_that_hangs_is_kept_free_for_a_suspect() -> None:
    bench, lane = Bench(workers=2), lane_of({1: MS}, max_batch=1)
    bench.occupy(lane, 0)
    bench.now += 50 * MS
    bench.occupy(lane, 1)
    suspect = bench.suspect(lane)
    bench.add(lane)
    assert bench.step() == []  # else new work would put the suspect off until the first one dies
    bench.finish(1)
    assert bench.step()[0].jobs == [suspect]


def test_suspects_with_one_deadline_expire_together() -> None:
    bench, lane = Bench(), lane_of()
    suspects = [bench.suspect(lane, deadline=bench.now + 100) for _ in range(3)]
    assert bench.batcher.wakeup([], bench.now) == bench.now + 100
    assert list(bench.batcher.expire(bench.workers, bench.now + 99)) == []
    assert sorted(map(id, bench.batcher.expire(bench.workers, bench.now + 100))) == sorted(
        map(id, suspects)
    )
    assert bench.batcher.jobs == 0


def test_suspects_can_be_removed_and_cleared() -> None:
    bench, lane = Bench(), lane_of()
    one, other = bench.suspect(lane), bench.suspect(lane)
    waiting = bench.add(lane)
    bench.batcher.remove(one)
    assert not one.queued
    assert list(bench.batcher.clear()) == [other, waiting]
    assert (bench.batcher.jobs, bench.batcher.rows) == (0, 0)
    assert not other.queued


def test_a_suspect_without_rows_counts_none() -> None:
    bench, lane = Bench(), lane_of()
    bench.batcher.suspect(Job(None, lane, 0))
    assert (bench.batcher.jobs, bench.batcher.rows) == (1, 0)


# ── what comes again ───────────────────────────────────────────────────────────────────────────


def test_what_comes_again_goes_first_and_is_nobody_who_came_back() -> None:
    bench, lane = just_answered()
    (first,) = bench.crowd(lane, [1])
    bench.add(lane, fairness=1)
    bench.answered(lane, [1])
    away = lane.returns.away
    bench.batcher.remove(first)
    bench.batcher.add(first, bench.now, again=True)
    assert lane.returns.away == away
    assert bench.batcher.queue.take(lane)[0] is first
