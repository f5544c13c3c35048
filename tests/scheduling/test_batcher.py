"""When a batch leaves, to whom, and with which jobs: the rules one by one."""

from __future__ import annotations

import pytest

from penstock.scheduling.batcher import DEPTH, Batcher, Closed, pays
from penstock.scheduling.queue import LEAD, Job, Lane, Share
from tests.scheduling.bench import CPU, GPU, MS, SECOND, US, Bench, lane_of

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
    lane.gather = 50.0 * US
    bench.occupy(lane)
    for _ in range(4):
        bench.add(lane)
    free_at = bench.workers[0].free_at
    assert bench.step() == []
    assert bench.wakeup() == free_at - LEAD - 200 * US
    assert bench.step(free_at - LEAD - 200 * US - bench.now - 1) == []
    assert bench.one(1).closed is Closed.AHEAD


def test_each_lane_is_woken_for_when_its_own_time_comes() -> None:
    """Also when one that could have left earlier did not."""
    bench, early, late = Bench(), lane_of(GPU), lane_of(GPU)
    early.gather = 50.0 * US
    bench.teach(early, 10 * US)  # it is held back for those whom the worker answers
    bench.occupy(early, rows=8)
    bench.add(early)
    bench.add(late)
    free_at = bench.workers[0].free_at
    wakeups = []
    sent = []
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
        bench.now = bench.workers[0].free_at - flooded.cost(2)
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
        bench.now += running.lane.cost(running.rows)
        bench.finish()
        had[running.lane] += running.lane.cost(running.rows)
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


# ── waiting for clients that were just answered ────────────────────────────────────────────────


def _loop(times: dict[int, int] = GPU, clients: int = 8, workers: int = 1) -> tuple[Bench, Lane]:
    """Clients 1 to `clients` were just answered, and usually come back after 0.2 ms."""
    bench, lane = Bench(workers), lane_of(times)
    bench.teach(lane, 200 * US)
    bench.answered(lane, range(1, clients + 1))
    return bench, lane


def test_a_batch_waits_until_all_are_back() -> None:
    bench, lane = _loop()
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
    bench, lane = _loop()
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
    bench, lane = _loop(clients=64)
    bench.crowd(lane, range(1, 17))
    assert bench.one().closed is Closed.FULL


def test_a_batch_that_waits_leaves_when_it_is_full() -> None:
    bench, lane = _loop(clients=64)
    bench.crowd(lane, range(1, 9))
    assert bench.step() == []
    bench.crowd(lane, range(9, 17))
    assert bench.one(10 * US).closed is Closed.FULL


def test_waiting_does_not_pay_where_time_grows_with_the_rows() -> None:
    bench, lane = _loop(CPU)
    bench.add(lane, fairness=1)
    assert bench.one().closed is Closed.IDLE


def test_nobody_waits_before_it_is_known_how_long_a_batch_takes() -> None:
    bench, lane = _loop({})
    bench.add(lane, fairness=1)
    assert bench.one().closed is Closed.IDLE


@pytest.mark.parametrize(("takes", "waits"), [(1_100 * US, True), (1_400 * US, False)])
def test_nobody_waits_longer_than_half_of_what_the_batch_takes(takes: int, waits: bool) -> None:
    """It would pay: one batch of 8 in 2.4 ms against two in 4.3 ms."""
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
    half = lane.cost(len(decision.jobs) + 4) // 2
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
    assert wakeup == began + lane.cost(16) // 2 + 1
    assert bench.one(wakeup - bench.now).closed is Closed.WAITED


def test_those_who_seldom_come_back_are_not_waited_for() -> None:
    bench, lane = _loop(clients=3)
    for caller in range(1_000, 1_040):
        lane.returns.answered(caller, 1, bench.now - SECOND)
        lane.returns.expected(bench.now)
    bench.answered(lane, range(1, 4))
    bench.add(lane, fairness=1)
    assert bench.one().closed is Closed.IDLE


def test_a_wait_that_was_cancelled_is_forgotten() -> None:
    bench, lane = _loop()
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
    second = lane.cost(4) if workers == 1 else lane.cost(4) * 4 // 6
    even = lane.cost(2) + second - lane.cost(6)
    assert pays(lane, 2, 4, even - 1, workers)
    assert not pays(lane, 2, 4, even, workers)


# ── a worker that is about to be free ──────────────────────────────────────────────────────────


def _about_to_finish(times: dict[int, int] = GPU, takes: int = 200 * US) -> tuple[Bench, Lane]:
    """A worker runs 8 rows and is free within the lead; their clients usually come back."""
    bench, lane = Bench(), lane_of(times)
    if takes:
        bench.teach(lane, takes)
    bench.crowd(lane, range(1, 9))
    bench.step()
    bench.now += lane.cost(8) - LEAD
    return bench, lane


def test_a_batch_waits_for_those_whom_its_worker_is_about_to_answer() -> None:
    bench, lane = _about_to_finish()
    bench.add(lane, fairness=20)
    assert bench.step() == []
    bench.now += LEAD
    bench.finish()
    assert bench.step() == []
    bench.crowd(lane, range(1, 9))
    decision = bench.one(100 * US)
    assert (len(decision.jobs), decision.closed) == (9, Closed.COMPLETE)


def test_nobody_is_held_back_before_clients_were_seen_to_come_back() -> None:
    bench, lane = _about_to_finish(takes=0)
    bench.add(lane, fairness=20)
    assert bench.one().closed is Closed.AHEAD


def test_nobody_is_held_back_where_it_does_not_pay() -> None:
    bench, lane = _about_to_finish(CPU)
    bench.add(lane, fairness=20)
    assert bench.one().closed is Closed.AHEAD


def test_nobody_is_held_back_for_clients_that_take_long() -> None:
    """One batch of 9 in 2.5 ms, after 1.4 ms, against two in 4.4 ms."""
    bench, lane = _about_to_finish(takes=1_400 * US)
    bench.add(lane, fairness=20)
    assert bench.one().closed is Closed.AHEAD


def test_nobody_is_held_back_for_clients_that_seldom_come_back() -> None:
    bench, lane = _about_to_finish()
    for caller in range(1_000, 1_007):
        lane.returns.answered(caller, 1, bench.now - SECOND)
        lane.returns.expected(bench.now)
    assert not lane.returns.steady
    bench.add(lane, fairness=20)
    assert bench.one().closed is Closed.AHEAD


def test_a_full_batch_is_not_held_back() -> None:
    bench, lane = _about_to_finish()
    bench.crowd(lane, range(20, 36))
    assert bench.one().closed is Closed.FULL


def test_nobody_is_held_back_for_clients_of_another_model() -> None:
    bench, _ = _about_to_finish()
    other = lane_of(GPU)
    bench.teach(other, 200 * US)
    bench.add(other, fairness=20)
    assert bench.one().closed is Closed.AHEAD


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


# ── deadlines ──────────────────────────────────────────────────────────────────────────────────


def _measured(times: dict[int, int], workers: int = 1, **options: int) -> tuple[Bench, Lane]:
    """A lane whose sizes were measured just now, at work."""
    bench, lane = Bench(workers), lane_of(times, **options)  # type: ignore[arg-type]
    bench.measure(lane, times)
    return bench, lane


def test_what_waits_until_its_deadline_expires() -> None:
    bench, lane = Bench(), lane_of(max_batch=1)
    bench.occupy(lane)
    job = bench.add(lane, deadline=bench.now + MS)
    bench.add(lane)
    bench.step(MS - 1)
    assert bench.expired == []
    assert bench.wakeup() == bench.now + 1
    bench.step(1)
    assert bench.expired == [job]
    assert bench.batcher.jobs == 1


def test_what_cannot_be_met_any_more_expires_before_its_deadline() -> None:
    bench, lane = _measured({1: 5 * MS})
    bench.occupy(lane)
    bench.occupy(lane)
    job = bench.add(lane, deadline=bench.now + 8 * MS)
    bench.step(3 * MS)
    assert bench.expired == []  # it takes 5 ms: now or never
    bench.step(1)
    assert bench.expired == [job]


def test_the_engine_is_woken_when_a_deadline_can_not_be_met_any_more() -> None:
    bench, lane = _measured({1: 5 * MS})
    bench.occupy(lane)
    bench.occupy(lane)
    bench.add(lane, deadline=bench.now + 8 * MS)
    bench.now += 2 * MS
    assert bench.wakeup() == bench.now + MS + 1


def test_old_measurements_let_nothing_expire() -> None:
    bench, lane = _measured({1: 5 * MS})
    bench.now += 2 * SECOND
    bench.occupy(lane)
    bench.occupy(lane)
    job = bench.add(lane, deadline=bench.now + 8 * MS)
    bench.step(8 * MS - 1)
    assert bench.expired == []
    bench.step(1)
    assert bench.expired == [job]


def test_in_time_as_far_as_is_known() -> None:
    bench, lane = _measured({1: 5 * MS})
    job = Job(None, lane, 1, deadline=bench.now + 5 * MS)
    assert bench.batcher.in_time(job, bench.now)
    assert not bench.batcher.in_time(job, bench.now + 1)
    assert bench.batcher.in_time(job, bench.now + 2 * SECOND)  # nothing is known then
    assert bench.batcher.in_time(Job(None, lane, 1), bench.now + 1)
    assert bench.batcher.in_time(Job(None, lane_of({1: 5 * MS}), 1, deadline=1), bench.now)


@pytest.mark.parametrize("measured", [True, False])
def test_a_deadline_ends_a_wait_in_time(measured: bool) -> None:
    """For the whole batch, not only its own row; also if nothing was measured when it came."""
    bench, lane = Bench(), lane_of({1: 2 * MS, 8: 4 * MS, 16: 5 * MS})
    bench.teach(lane, 500 * US)
    if measured:
        bench.measure(lane, {1: 2 * MS, 8: 4 * MS, 16: 5 * MS})
    job = bench.add(lane, fairness=1, deadline=bench.now + 4_300 * US)
    bench.measure(lane, {1: 2 * MS, 8: 4 * MS, 16: 5 * MS})
    bench.answered(lane, range(2, 9))
    assert bench.step() == []
    wakeup = bench.wakeup()
    assert wakeup == job.deadline - lane.cost(8) - LEAD
    bench.crowd(lane, range(2, 7))
    assert bench.step(wakeup - bench.now - 1) == []
    decision = bench.one(1)
    assert (len(decision.jobs), decision.closed) == (6, Closed.DEADLINE)
    assert bench.now + lane.cost(6) <= job.deadline
    assert bench.missed == []


def test_a_deadline_that_is_near_keeps_a_batch_from_waiting_at_all() -> None:
    bench, lane = _loop()
    bench.measure(lane, GPU)
    bench.add(lane, fairness=1, deadline=bench.now + lane.cost(8) + LEAD)
    assert bench.one().closed is Closed.DEADLINE


def test_a_deadline_that_is_far_keeps_nobody_from_waiting() -> None:
    bench, lane = _loop()
    bench.measure(lane, GPU)
    bench.add(lane, fairness=1, deadline=bench.now + SECOND)
    assert bench.step() == []
    assert bench.wakeup() == bench.now + lane.returns.turnaround


def test_a_deadline_of_another_lane_ends_no_wait() -> None:
    """Its batch cannot leave anyway: what is not batched waits for the first worker."""
    bench, lane = _loop(workers=2)
    other = lane_of({1: 100 * MS}, batched=False)
    bench.occupy(other)
    bench.add(other, deadline=bench.now + LEAD)
    bench.add(lane, fairness=1)
    assert bench.step() == []


@pytest.mark.parametrize(("left", "held"), [(-1, False), (0, True)])
def test_nobody_is_held_back_past_a_deadline(left: int, held: bool) -> None:
    bench, lane = _about_to_finish()
    back = bench.workers[0].free_at + lane.returns.turnaround
    latest = back + lane.cost(9) + LEAD
    bench.add(lane, fairness=20, deadline=latest + left)
    assert (bench.step() == []) is held


def test_those_who_would_be_late_are_not_run() -> None:
    bench, lane = _measured(GPU)
    late = [bench.add(lane, fairness=n, deadline=bench.now + 2_100 * US) for n in range(2)]
    others = bench.crowd(lane, range(10, 16))
    decision = bench.one()
    assert decision.jobs == others
    assert bench.missed == late
    assert bench.batcher.jobs == 0
    assert not any(job.queued for job in late)


def test_a_job_behind_a_batch_that_runs_is_late_by_that() -> None:
    bench, lane = _measured({1: 2 * MS})
    bench.occupy(lane)
    late = bench.add(lane, deadline=bench.now + 4 * MS - 1)
    other = bench.add(lane, deadline=bench.now + 9 * MS)
    decision = bench.one(2 * MS - LEAD)
    assert decision.jobs == [other]
    assert bench.missed == [late]


def test_a_batch_is_as_small_as_its_deadlines_demand() -> None:
    """All of them would be late together: better a few than nobody."""
    bench, lane = _measured(CPU)
    jobs = [bench.add(lane, fairness=n, deadline=bench.now + 5 * MS) for n in range(12)]
    decision = bench.one()
    assert (decision.jobs, decision.closed) == (jobs[:5], Closed.DEADLINE)
    assert bench.batcher.jobs == 7
    bench.step(MS)
    assert sorted(map(id, bench.expired + bench.missed)) == []
    bench.step(3 * MS + 1)
    assert sorted(map(id, bench.expired + bench.missed)) == sorted(map(id, jobs[5:]))


def test_a_batch_is_not_made_smaller_for_a_few_who_are_late() -> None:
    """On a GPU a large batch serves more than a small one; whoever is late is refused."""
    bench, lane = _measured({1: 2 * MS, 16: 3 * MS})
    tight = bench.add(lane, fairness=1, deadline=bench.now + 2_500 * US)
    others = [bench.add(lane, fairness=n, deadline=bench.now + 9 * MS) for n in range(2, 17)]
    decision = bench.one()
    assert decision.jobs == others
    assert bench.missed == [tight]


def test_what_was_put_back_is_served_if_its_deadline_allows() -> None:
    bench, lane = _measured(CPU)
    near = [bench.add(lane, fairness=n, deadline=bench.now + 5 * MS) for n in range(6)]
    far = [bench.add(lane, fairness=n, deadline=bench.now + 7 * MS) for n in range(10, 12)]
    assert bench.one().jobs == near[:5]
    bench.now += 5 * MS
    bench.finish()
    assert bench.one().jobs == far
    assert bench.expired + bench.missed == near[5:]


def test_when_all_are_late_nothing_leaves() -> None:
    bench, lane = _measured({1: 2 * MS})
    bench.occupy(lane)
    late = [bench.add(lane, fairness=n, deadline=bench.now + 3 * MS) for n in range(3)]
    bench.now += 2 * MS - LEAD
    assert bench.batcher.next_batch(bench.workers, bench.now) is None
    assert sorted(map(id, bench.batcher.missed())) == sorted(map(id, late))
    assert bench.batcher.missed() == []
    assert (bench.batcher.jobs, bench.batcher.rows, lane.rows) == (0, 0, 0)


def test_when_all_of_a_lane_are_late_the_next_lane_has_its_turn() -> None:
    bench, lane = _measured({1: 2 * MS})
    other = lane_of({1: MS})
    bench.occupy(other)
    late = bench.add(lane, deadline=bench.now + 2_950 * US)
    wanted = bench.add(other)
    assert bench.one(MS - LEAD).jobs == [wanted]
    assert bench.missed == [late]


def test_what_was_measured_long_ago_refuses_nobody() -> None:
    bench, lane = _measured({1: 5 * MS})
    bench.now += 2 * SECOND
    job = bench.add(lane, deadline=bench.now + MS)
    assert bench.one().jobs == [job]
    assert bench.missed == []


def test_a_size_that_was_measured_long_ago_refuses_nobody() -> None:
    """A first run that was compiled, say; small batches that keep coming do not make it new."""
    bench, lane = _measured({16: 5 * SECOND})
    bench.now += 6 * SECOND
    bench.measure(lane, {1: MS})
    job = bench.add(lane, rows=16, deadline=bench.now + 50 * MS)
    assert bench.one().jobs == [job]
    bench.now += 10 * MS
    bench.finish()
    assert lane.cost(16) == 10 * MS
    assert bench.expired + bench.missed == []


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
    assert list(bench.batcher.expire(bench.now + 99)) == []
    assert sorted(map(id, bench.batcher.expire(bench.now + 100))) == sorted(map(id, suspects))
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
    bench, lane = _loop()
    (first,) = bench.crowd(lane, [1])
    bench.add(lane, fairness=1)
    away = lane.returns.away
    bench.batcher.remove(first)
    bench.batcher.add(first, again=True)
    assert lane.returns.away == away
    assert bench.batcher.queue.take(lane)[0] is first
