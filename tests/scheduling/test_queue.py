"""What waits, and in which order it leaves: priorities, turns between callers, shares of models."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduling.queue import LEAD, Job, Lane, Queue, Share


def _lane(max_batch: int = 4, batched: bool = True, share: Share | None = None) -> Lane:
    return Lane(0, (), max_batch, batched, share=share)


def _add(queue: Queue, lane: Lane, owner: str, rows: int = 1, **options: int) -> Job:
    job = Job(owner, lane, rows, **options)
    queue.add(job)
    return job


def _flood(queue: Queue, lane: Lane, caller: int, count: int = 500, rows: int = 1) -> None:
    for number in range(count):
        _add(queue, lane, f"{caller}:{number}", rows, fairness=caller)


def _owners(jobs: list[Job]) -> list[str]:
    return [job.owner for job in jobs]


def _callers(jobs: list[Job]) -> Counter[int]:
    rows: Counter[int] = Counter()
    for job in jobs:
        rows[job.fairness] += job.rows
    return rows


# ── batches ────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_queue_has_nothing() -> None:
    queue = Queue()
    assert queue.lanes() == []
    assert queue.next_due() is None
    assert list(queue.due(1 << 62)) == []
    assert queue.oldest() == queue.last_sequence + 1


def test_a_batch_is_filled_in_the_order_of_arrival() -> None:
    queue, lane = Queue(), _lane(max_batch=3)
    for owner in "abcd":
        _add(queue, lane, owner)
    assert _owners(queue.take(lane)) == ["a", "b", "c"]
    assert _owners(queue.take(lane)) == ["d"]
    assert queue.lanes() == []


def test_a_batch_may_be_smaller_than_it_could() -> None:
    queue, lane = Queue(), _lane(max_batch=8)
    for owner in "abcd":
        _add(queue, lane, owner)
    assert _owners(queue.take(lane, 3)) == ["a", "b", "c"]


def test_a_job_that_does_not_fit_waits_for_the_next_batch() -> None:
    """Also for those behind it that would fit: nobody overtakes."""
    queue, lane = Queue(), _lane(max_batch=4)
    _add(queue, lane, "three", rows=3)
    _add(queue, lane, "two", rows=2)
    _add(queue, lane, "one", rows=1)
    assert _owners(queue.take(lane)) == ["three"]
    assert _owners(queue.take(lane)) == ["two", "one"]


def test_jobs_without_rows_run_alone() -> None:
    queue, lane = Queue(), _lane(max_batch=4)
    for owner, rows in (("a", 1), ("empty", 0), ("b", 1), ("c", 1)):
        _add(queue, lane, owner, rows=rows)
    assert _owners(queue.take(lane)) == ["a"]
    assert _owners(queue.take(lane)) == ["empty"]
    assert _owners(queue.take(lane)) == ["b", "c"]


def test_what_is_not_batched_leaves_one_by_one() -> None:
    queue, lane = Queue(), _lane(max_batch=4, batched=False)
    for owner, rows in (("a", 100), ("b", 1), ("c", 0)):
        _add(queue, lane, owner, rows=rows)
    assert [_owners(queue.take(lane)) for _ in range(3)] == [["a"], ["b"], ["c"]]


# ── priorities ─────────────────────────────────────────────────────────────────────────────────


def test_the_highest_priority_goes_first() -> None:
    queue, lane = Queue(), _lane(max_batch=2)
    _add(queue, lane, "low", priority=-5)
    _add(queue, lane, "middle")
    _add(queue, lane, "high", priority=7)
    assert _owners(queue.take(lane)) == ["high", "middle"]
    assert _owners(queue.take(lane)) == ["low"]


def test_priorities_go_before_turns() -> None:
    """Whoever floods a higher priority goes first with all of it, also before new callers."""
    queue, lane = Queue(), _lane(max_batch=1)
    _add(queue, lane, "patient", fairness=2)
    for number in range(20):
        _add(queue, lane, f"urgent {number}", fairness=1, priority=1)
    order = [queue.take(lane)[0].owner for _ in range(21)]
    assert order == [*(f"urgent {number}" for number in range(20)), "patient"]


def test_a_lane_with_a_higher_priority_goes_first() -> None:
    queue, old, new = Queue(), _lane(), _lane()
    _add(queue, old, "old")
    _add(queue, new, "new", priority=1)
    queue.charge(new, 1_000_000)  # whatever its model has had
    assert queue.lanes() == [new, old]
    queue.take(new)
    assert queue.lanes() == [old]


# ── turns between callers ──────────────────────────────────────────────────────────────────────


def test_callers_take_turns() -> None:
    queue, lane = Queue(), _lane(max_batch=1)
    _flood(queue, lane, 1, 50)
    _add(queue, lane, "second", fairness=2)
    _add(queue, lane, "third", fairness=3)
    order = [queue.take(lane)[0].owner for _ in range(4)]
    assert order == ["1:0", "second", "third", "1:1"]


def test_a_turn_has_a_quarter_of_a_batch() -> None:
    """A few rows of one caller stay together: it is woken once for all of them."""
    queue, lane = Queue(), _lane(max_batch=16)
    for caller in (1, 2, 3):
        _flood(queue, lane, caller)
    callers = [job.fairness for job in queue.take(lane)]
    assert callers == [1] * 4 + [2] * 4 + [3] * 4 + [1] * 4
    assert [job.fairness for job in queue.take(lane)] == [2] * 4 + [3] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize("max_batch", [1, 2, 3])
def test_in_small_batches_a_turn_has_one_row(max_batch: int) -> None:
    queue, lane = Queue(), _lane(max_batch)
    _flood(queue, lane, 1)
    _flood(queue, lane, 2)
    callers = [job.fairness for _ in range(6) for job in queue.take(lane)]
    assert callers == [1, 2] * (3 * max_batch)


def test_a_turn_goes_on_in_the_next_batch() -> None:
    queue, lane = Queue(), _lane(max_batch=16)
    _flood(queue, lane, 1)
    _flood(queue, lane, 2)
    first = queue.take(lane, 6)
    assert [job.fairness for job in first] == [1] * 4 + [2] * 2
    assert [job.fairness for job in queue.take(lane, 4)] == [2] * 2 + [1] * 2


def test_callers_get_as_many_rows_whatever_the_size_of_their_requests() -> None:
    """Deficit round robin: what one turn took too much, the next ones are short of."""
    queue, lane = Queue(), _lane(max_batch=16)
    _flood(queue, lane, 1, 400, rows=1)
    _flood(queue, lane, 2, 100, rows=16)
    _flood(queue, lane, 3, 100, rows=7)
    had: Counter[int] = Counter()
    for _ in range(60):
        had += _callers(queue.take(lane))
    assert min(had.values()) > 0.85 * max(had.values()), had


def test_whoever_was_given_too_much_waits_also_when_it_asks_late() -> None:
    """A debt is not forgiven because its caller had nothing waiting for a moment."""
    queue, lane = Queue(), _lane(max_batch=16)
    _flood(queue, lane, 1)
    had: Counter[int] = Counter()
    _add(queue, lane, "large", 16, fairness=2)
    for _ in range(60):
        jobs = queue.take(lane)
        had += _callers(jobs)
        if any(job.fairness == 2 for job in jobs):
            _add(queue, lane, "large", 16, fairness=2)
    assert had[2] <= 1.2 * had[1], had


def test_a_turn_that_nobody_used_is_not_saved_up() -> None:
    queue, lane = Queue(), _lane(max_batch=16)
    _flood(queue, lane, 1)
    _flood(queue, lane, 3)
    _add(queue, lane, "now and then", fairness=2)
    for _ in range(20):
        queue.take(lane)
    _flood(queue, lane, 2)
    rows = _callers([job for _ in range(3) for job in queue.take(lane)])
    assert rows[2] <= 16 + lane.quantum


def test_one_huge_request_costs_no_more_than_a_batch() -> None:
    """What is not batched may have any number of rows; its caller does not pay for ever."""
    queue, lane = Queue(), _lane(max_batch=4, batched=False)
    _add(queue, lane, "huge", 1 << 31, fairness=1)
    _flood(queue, lane, 1, 5)
    _flood(queue, lane, 2, 50)
    order = [queue.take(lane)[0].fairness for _ in range(20)]
    assert order.count(1) >= 5


@given(
    st.integers(1, 40),
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=12), min_size=1, max_size=5),
)
def test_everybody_leaves_in_their_own_order(max_batch: int, sizes: list[list[int]]) -> None:
    queue, lane = Queue(), _lane(max_batch)
    for caller, rows in enumerate(sizes):
        for number, count in enumerate(rows):
            _add(queue, lane, str(number), min(count, max_batch), fairness=caller)
    taken: list[Job] = []
    while queue.jobs:
        jobs = queue.take(lane)
        assert jobs
        assert sum(job.rows for job in jobs) <= max_batch
        taken += jobs
    for caller, rows in enumerate(sizes):
        own = [int(job.owner) for job in taken if job.fairness == caller]
        assert own == list(range(len(rows)))
    assert (queue.rows, lane.rows, lane.jobs, lane.levels) == (0, 0, 0, {})


@pytest.mark.parametrize("rows", [0, 1, 5, 16])
def test_a_flood_delays_nobody_by_more_than_a_round(rows: int) -> None:
    """Of those who wait, each has a turn before the flood has its next."""
    queue, lane = Queue(), _lane(max_batch=16)
    _flood(queue, lane, 1, 200, rows)
    for _ in range(5):
        queue.take(lane)
    for caller in range(2, 10):
        _add(queue, lane, "quiet", fairness=caller)
    flooded = 0
    quiet: set[int] = set()
    while len(quiet) < 8:
        for job in queue.take(lane):
            if job.fairness == 1 and len(quiet) < 8:
                flooded += job.rows
            else:
                quiet.add(job.fairness)
    assert flooded <= rows + lane.quantum


def test_a_flood_of_requests_without_rows_has_turns_too() -> None:
    queue, lane = Queue(), _lane(max_batch=16)
    _flood(queue, lane, 1, 500, rows=0)
    _flood(queue, lane, 2, 500, rows=1)
    batches = [queue.take(lane) for _ in range(50)]
    assert sum(job.fairness == 2 for jobs in batches for job in jobs) >= 30


def test_a_caller_that_had_nothing_waiting_goes_before_those_that_were_served() -> None:
    queue, lane = Queue(), _lane(max_batch=4)
    for caller in (1, 2, 3):
        _flood(queue, lane, caller)
    queue.take(lane)
    _add(queue, lane, "new", fairness=9)
    assert _owners(queue.take(lane))[0] == "new"


def test_new_callers_go_in_the_order_in_which_they_came() -> None:
    queue, lane = Queue(), _lane(max_batch=4)
    _flood(queue, lane, 1)
    queue.take(lane)
    for caller in (7, 8, 9):
        _add(queue, lane, str(caller), fairness=caller)
    assert _owners(queue.take(lane))[:3] == ["7", "8", "9"]


def test_a_caller_that_is_back_within_the_round_is_not_new() -> None:
    """Else whoever asks for one row at a time would always go first, and flood that way."""
    queue, lane = Queue(), _lane(max_batch=1)
    for caller in (1, 2, 3):
        _flood(queue, lane, caller)
    _add(queue, lane, "again", fairness=9)
    had: Counter[int] = Counter()
    for _ in range(80):
        (job,) = queue.take(lane)
        had[job.fairness] += 1
        if job.fairness == 9:
            _add(queue, lane, "again", fairness=9)
    assert had[9] == pytest.approx(20, abs=1)


def test_a_caller_that_was_away_for_a_whole_round_is_new_again() -> None:
    queue, lane = Queue(), _lane(max_batch=1)
    for caller in (1, 2, 3):
        _flood(queue, lane, caller)
    _add(queue, lane, "first", fairness=9)
    for _ in range(4 + 2 * 4):  # its own turn, one that finds it empty, one that forgets it
        queue.take(lane)
    _add(queue, lane, "again", fairness=9)
    assert _owners(queue.take(lane)) == ["again"]


def test_a_stream_of_new_callers_does_not_put_off_those_who_wait() -> None:
    queue, lane = Queue(), _lane(max_batch=4)
    _flood(queue, lane, 1)
    served = 0
    for caller in range(100, 1_100):
        _add(queue, lane, "new", fairness=caller)
        if caller % 4 == 3:
            served += _callers(queue.take(lane))[1]
    assert served >= 1_000 / 4 / 5


def test_callers_that_left_are_forgotten() -> None:
    queue, lane = Queue(), _lane(max_batch=4)
    _flood(queue, lane, 1, 3_000)
    for caller in range(100, 3_100):
        _add(queue, lane, "new", fairness=caller)
        if caller % 3 == 0:
            queue.take(lane)
    (level,) = lane.levels.values()
    waiting = sum(1 for line in level.lines.values() if line.jobs)
    assert len(level.lines) <= waiting + 20
    assert len(level.fresh) + len(level.served) == len(level.lines)


def test_callers_that_cancelled_are_forgotten() -> None:
    """Also while nothing leaves, because the worker hangs."""
    queue, lane = Queue(), _lane(max_batch=4)
    stays = _add(queue, lane, "stays", fairness=1)
    for caller in range(2, 10_000):
        queue.remove(_add(queue, lane, "gone", fairness=caller))
    (level,) = lane.levels.values()
    assert len(level.lines) < 200
    assert len(level.fresh) + len(level.served) == len(level.lines)
    assert queue.take(lane) == [stays]


# ── what comes again, what stays after all ─────────────────────────────────────────────────────


def test_what_comes_again_goes_to_the_front_of_its_line() -> None:
    queue, lane = Queue(), _lane(max_batch=1)
    first = _add(queue, lane, "first")
    assert queue.take(lane) == [first]
    _add(queue, lane, "second")
    queue.add(first, front=True)
    assert queue.oldest() == first.sequence
    assert queue.take(lane) == [first]


def test_what_comes_again_keeps_its_place_whoever_died_first() -> None:
    queue, lane = Queue(), _lane(max_batch=1)
    first, second, third = (_add(queue, lane, owner) for owner in "abc")
    for _ in range(2):
        queue.take(lane)
    queue.add(first, front=True)
    queue.add(second, front=True)
    assert queue.oldest() == first.sequence
    assert [queue.take(lane)[0] for _ in range(3)] == [first, second, third]


def test_what_is_put_back_keeps_its_place_and_its_turn() -> None:
    queue, lane = Queue(), _lane(max_batch=16)
    _flood(queue, lane, 1)
    _flood(queue, lane, 2)
    left: list[Job] = []
    for _ in range(10):  # of each batch, nothing but the first rows may leave
        taken = queue.take(lane)
        left += taken[:6]
        queue.put_back(taken[6:])
        assert (queue.jobs, queue.rows, lane.rows) == (1_000 - len(left),) * 3
        assert all(job.queued for job in taken[6:])
    for caller in (1, 2):
        own = [job.owner for job in left if job.fairness == caller]
        assert own == [f"{caller}:{number}" for number in range(len(own))]
    rows = _callers(left)
    assert abs(rows[1] - rows[2]) <= 2 * lane.quantum


def test_what_is_put_back_brings_its_caller_no_rows() -> None:
    """Also when nothing else was left, so that its line had been forgotten."""
    queue, lane = Queue(), _lane(max_batch=16)
    for number in range(12):
        _add(queue, lane, str(number), fairness=1)
    queue.put_back(queue.take(lane))
    _flood(queue, lane, 2)
    assert [job.fairness for job in queue.take(lane, 8)] == [1] * 4 + [2] * 4


# ── shares of models ───────────────────────────────────────────────────────────────────────────


def _worked_off(queue: Queue, costs: dict[Lane, int], batches: int) -> dict[Lane, int]:
    """Device time that each lane got while all of them always had enough to do."""
    had = dict.fromkeys(costs, 0)
    for _ in range(batches):
        lane = queue.lanes()[0]
        queue.take(lane)
        queue.charge(lane, costs[lane])
        had[lane] += costs[lane]
    return had


@pytest.mark.parametrize("cost", [10, 3_000])
def test_models_get_device_time_by_weight(cost: int) -> None:
    """Whatever one batch of each costs."""
    queue = Queue()
    light, heavy = _lane(share=Share(1.0)), _lane(share=Share(3.0))
    for lane in (light, heavy):
        _flood(queue, lane, 1, 5_000)
    had = _worked_off(queue, {light: cost, heavy: 100}, 1_000)
    assert had[heavy] / had[light] == pytest.approx(3.0, rel=0.1)


def test_shapes_of_one_model_share_its_share() -> None:
    queue, share = Queue(), Share(1.0)
    shapes = [_lane(share=share) for _ in range(5)]
    other = _lane(share=Share(1.0))
    for lane in (*shapes, other):
        _flood(queue, lane, 1, 5_000)
    had = _worked_off(queue, dict.fromkeys((*shapes, other), 100), 500)
    assert had[other] == pytest.approx(sum(had[lane] for lane in shapes), rel=0.1)
    assert len({had[lane] for lane in shapes}) == 1  # they take turns


def test_an_idle_model_saves_up_nothing() -> None:
    queue = Queue()
    idle, busy = _lane(share=Share()), _lane(share=Share())
    _flood(queue, idle, 1, 4)
    _flood(queue, busy, 1, 5_000)
    _worked_off(queue, {idle: 100, busy: 100}, 400)
    _flood(queue, idle, 1, 5_000)
    had = _worked_off(queue, {idle: 100, busy: 100}, 100)
    assert had[idle] == pytest.approx(had[busy], rel=0.1)


def test_a_model_that_was_kept_from_running_brings_nobody_credit() -> None:
    """It may catch up; one that was idle meanwhile may not."""
    queue = Queue()
    kept, busy, idle = (_lane(share=Share()) for _ in range(3))
    _flood(queue, kept, 1, 8)
    _flood(queue, busy, 1, 5_000)
    for _ in range(400):  # the worker for `kept` hangs, say
        queue.take(busy)
        queue.charge(busy, 100)
    queue.take(kept)
    queue.charge(kept, 100)
    _flood(queue, idle, 1, 5_000)
    had = _worked_off(queue, dict.fromkeys((kept, busy, idle), 100), 100)
    assert had[idle] <= had[busy] + 200


def test_a_stream_of_new_shapes_does_not_put_off_an_old_one() -> None:
    queue, share = Queue(), Share()
    old = _lane(max_batch=1, share=share)
    _flood(queue, old, 1, 100)
    had = 0
    for _ in range(100):
        new = _lane(max_batch=1, share=share)
        _flood(queue, new, 2, 3)
        for _ in range(2):
            lane = queue.lanes()[0]
            queue.take(lane)
            queue.charge(lane, 100)
            had += lane is old
    assert had >= 1


# ── counters and deadlines ─────────────────────────────────────────────────────────────────────


def test_counters_follow_what_comes_and_leaves() -> None:
    queue, lane, other = Queue(), _lane(), _lane()
    job = _add(queue, lane, "a", rows=3)
    _add(queue, other, "b", rows=2)
    assert (queue.rows, queue.jobs, lane.rows, other.rows) == (5, 2, 3, 2)
    assert (lane.jobs, other.jobs) == (1, 1)
    queue.remove(job)
    assert (queue.rows, queue.jobs, lane.rows, lane.jobs) == (2, 1, 0, 0)
    assert queue.lanes() == [other]
    assert not job.queued
    queue.take(other)
    assert (queue.rows, queue.jobs) == (0, 0)


def test_a_lane_that_was_emptied_does_not_wait_any_more() -> None:
    queue, lane = Queue(), _lane()
    jobs = [_add(queue, lane, "a"), _add(queue, lane, "b")]
    lane.waiting_since = 5
    queue.remove(jobs[0])
    assert lane.waiting_since == 5
    queue.remove(jobs[1])
    assert lane.waiting_since == 0


def test_jobs_are_noticed_in_order_and_only_if_they_wait() -> None:
    queue, lane = Queue(), _lane(max_batch=1)
    taken = _add(queue, lane, "taken", deadline=5)
    queue.take(lane)
    late = _add(queue, lane, "late", deadline=20)
    soon = _add(queue, lane, "soon", deadline=10)
    _add(queue, lane, "never")
    assert not taken.queued
    assert queue.next_due() == 10
    assert list(queue.due(9)) == []
    assert list(queue.due(10)) == [soon]
    queue.remove(soon)
    assert queue.next_due() == 20
    queue.watch(late, 15)
    assert queue.next_due() == 15
    assert list(queue.due(15)) == [late]
    assert list(queue.due(99)) == [late]


def test_a_job_that_comes_again_is_noticed_once() -> None:
    queue, lane = Queue(), _lane(max_batch=1)
    job = _add(queue, lane, "a", deadline=10)
    queue.take(lane)
    queue.add(job, front=True)
    expired = []
    for one in queue.due(10):
        queue.remove(one)
        expired.append(one)
    assert expired == [job]


def test_deadlines_of_jobs_that_left_do_not_pile_up() -> None:
    queue, lane = Queue(), _lane(max_batch=1)
    for number in range(10_000):
        _add(queue, lane, "a", deadline=1_000_000 + number)
        queue.take(lane)
    assert len(queue._deadlines) < 1_000


def test_the_first_deadline_of_a_lane() -> None:
    queue, lane, other = Queue(), _lane(max_batch=1), _lane()
    assert lane.first_deadline() is None
    _add(queue, lane, "none")
    assert lane.first_deadline() is None
    _add(queue, other, "other", deadline=5)
    _add(queue, lane, "late", deadline=30)
    soon = _add(queue, lane, "soon", deadline=20, fairness=7, priority=-1)
    assert lane.first_deadline() == 20
    queue.remove(soon)
    assert lane.first_deadline() == 30


# ── lanes ──────────────────────────────────────────────────────────────────────────────────────


def test_rows_are_padded_to_the_next_size_of_the_ladder() -> None:
    lane = Lane(0, (), 8, ladder=(1, 4, 8))
    assert [lane.padded(rows) for rows in (0, 1, 2, 4, 5, 8, 9)] == [1, 1, 4, 4, 8, 8, 9]
    assert _lane().padded(3) == 3


def test_a_batch_costs_as_much_as_the_size_at_which_it_runs() -> None:
    lane = Lane(0, (), 8, ladder=(1, 4, 8))
    lane.estimates.seed(1, 1_000)
    lane.estimates.seed(4, 4_000)
    assert lane.cost(2) == lane.cost(4) == 4_000
    lane.estimates.observe(4, 5_000, 1)
    assert lane.fresh(2, 1)
    assert not lane.fresh(1, 1)


def test_a_batch_leaves_early_enough_to_be_gathered() -> None:
    queue, lane = Queue(), _lane(max_batch=4)
    assert lane.lead() == LEAD
    lane.gather = 1_000.0
    _flood(queue, lane, 1, 3)
    assert lane.lead() == LEAD + 3_000
    _flood(queue, lane, 1, 90)
    assert lane.lead() == LEAD + 4_000  # only so many rows leave at once
