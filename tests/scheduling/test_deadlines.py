"""Deadlines in the batcher: what expires, what ends a wait, and who is in time together."""

from __future__ import annotations

import pytest

from penstock.scheduling.abilities import LEAD
from penstock.scheduling.deadlines import in_time
from penstock.scheduling.decisions import Closed
from penstock.scheduling.lanes import Lane
from penstock.scheduling.queue import Job
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
    assert bench.batcher.wakeup([], bench.now) == job.deadline
    bench.step(8 * MS - 1)
    assert bench.expired == []
    bench.step(1)
    assert bench.expired == [job]


def test_in_time_as_far_as_is_known() -> None:
    bench, lane = _measured({1: 5 * MS})
    job = Job(None, lane, 1, deadline=bench.now + 5 * MS)
    workers = bench.workers
    assert in_time(job, workers, bench.now)
    assert not in_time(job, workers, bench.now + 1)
    assert in_time(job, workers, bench.now + 2 * SECOND)  # nothing is known then
    assert in_time(Job(None, lane, 1), workers, bench.now + 1)
    assert in_time(Job(None, lane_of({1: 5 * MS}), 1, deadline=1), workers, bench.now)
    assert in_time(job, [], bench.now + 1)  # whoever is started may be quicker


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
    assert wakeup == job.deadline - lane.shortest(8) - LEAD
    bench.crowd(lane, range(2, 7))
    assert bench.step(wakeup - bench.now - 1) == []
    decision = bench.one(1)
    assert (len(decision.jobs), decision.closed) == (6, Closed.DEADLINE)
    assert bench.now + lane.shortest(6) <= job.deadline
    assert bench.missed == []


def test_a_deadline_that_is_near_keeps_a_batch_from_waiting_at_all() -> None:
    bench, lane = just_answered()
    bench.measure(lane, GPU)
    bench.add(lane, fairness=1, deadline=bench.now + lane.shortest(8) + LEAD)
    assert bench.one().closed is Closed.DEADLINE


def test_a_deadline_that_is_far_keeps_nobody_from_waiting() -> None:
    bench, lane = just_answered()
    bench.measure(lane, GPU)
    bench.add(lane, fairness=1, deadline=bench.now + SECOND)
    assert bench.step() == []
    assert bench.wakeup() == bench.now + lane.returns.turnaround


def test_a_deadline_of_another_lane_ends_no_wait() -> None:
    """Its batch cannot leave anyway: what is not batched waits for the first worker."""
    bench, lane = just_answered(workers=2)
    other = lane_of({1: 100 * MS}, batched=False)
    bench.occupy(other)
    bench.add(other, deadline=bench.now + LEAD)
    bench.add(lane, fairness=1)
    assert bench.step() == []


@pytest.mark.parametrize(("left", "held"), [(-1, False), (0, True)])
def test_nobody_is_held_back_past_a_deadline(left: int, held: bool) -> None:
    bench, lane = about_to_finish()
    back = bench.workers[0].free_at + lane.returns.turnaround
    latest = back + lane.shortest(9) + LEAD
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


def test_whoever_waits_gets_the_places_of_those_who_are_late() -> None:
    bench, lane = _measured(GPU)
    late = [bench.add(lane, fairness=n, deadline=bench.now + 2_500 * US) for n in range(1, 5)]
    others = bench.crowd(lane, range(5, 20))
    decision = bench.one()
    assert (len(decision.jobs), decision.closed) == (15, Closed.FULL)
    assert set(decision.jobs) == set(others)
    assert bench.missed == late


@pytest.mark.parametrize("waits", ["late", "large", "empty"])
def test_only_who_fits_and_is_in_time_gets_the_place_of_one_who_is_late(waits: str) -> None:
    bench, lane = _measured(GPU)
    bench.add(lane, fairness=1, deadline=bench.now + 2_500 * US)
    others = bench.crowd(lane, range(2, 17))
    options = {
        "late": {"deadline": bench.now + 2_900 * US},
        "large": {"rows": 2},
        "empty": {"rows": 0},
    }
    last = bench.add(lane, fairness=99, **options[waits])
    decision = bench.one()
    assert decision.jobs == others
    assert last.queued


def test_a_batch_is_made_smaller_where_that_serves_more() -> None:
    """Eight in 6 ms, better than the one that has no deadline in 2.5 ms."""
    bench, lane = _measured({1: 2_500 * US, 16: 10 * MS})
    jobs = [bench.add(lane, fairness=n, deadline=bench.now + 6 * MS) for n in range(11)]
    bench.add(lane, fairness=99)
    decision = bench.one()
    assert (decision.jobs, decision.closed) == (jobs[:8], Closed.DEADLINE)


def test_of_those_who_may_all_be_late_one_is_tried() -> None:
    """A size that was measured long ago says that nobody can be in time; it may be wrong."""
    bench, lane = _measured({1: 50 * MS})
    bench.now += 2 * SECOND
    bench.measure(lane, {16: 20 * MS})
    jobs = [bench.add(lane, fairness=n, deadline=bench.now + 10 * MS) for n in range(16)]
    assert bench.one().jobs == jobs[:1]
    assert bench.missed == []
    bench.now += MS
    bench.finish()
    assert len(bench.one().jobs) > 1


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
    jobs = [bench.add(lane, deadline=bench.now + MS), bench.add(lane)]
    assert bench.one().jobs == jobs
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
    assert lane.shortest(16) == 10 * MS
    assert bench.expired + bench.missed == []


def test_a_suspect_runs_when_those_before_it_were_too_late() -> None:
    """Nothing else would happen that lets the batcher be asked again."""
    bench, lane = _measured({1: 5 * MS})
    late = bench.add(lane, deadline=bench.now + 5 * MS)
    suspect = bench.suspect(lane)
    bench.measure(lane, {1: 9 * MS})
    bench.measure(lane, {1: 9 * MS})
    bench.measure(lane, {1: 9 * MS})
    assert [each.jobs for each in bench.step()] == [[suspect]]
    assert bench.missed == [late]
