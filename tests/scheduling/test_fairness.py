"""Who goes first: by priority, in turn between callers, by share between models."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduling.lanes import Lane, Share
from penstock.scheduling.queue import Job, Queue
from tests.scheduling.bench import (
    MS,
    US,
    flood,
    owners,
    put,
    quick_lane,
    rows_by_caller,
    small_lane,
)

# ── priorities ─────────────────────────────────────────────────────────────────────────────────


def test_the_highest_priority_goes_first() -> None:
    queue, lane = Queue(), small_lane(max_batch=2)
    put(queue, lane, "low", priority=-5)
    put(queue, lane, "middle")
    put(queue, lane, "high", priority=7)
    assert owners(queue.take(lane)) == ["high", "middle"]
    assert owners(queue.take(lane)) == ["low"]


def test_priorities_go_before_turns() -> None:
    """Whoever floods a higher priority goes first with all of it, also before new callers."""
    queue, lane = Queue(), small_lane(max_batch=1)
    put(queue, lane, "patient", fairness=2)
    for number in range(20):
        put(queue, lane, f"urgent {number}", fairness=1, priority=1)
    order = [queue.take(lane)[0].owner for _ in range(21)]
    assert order == [*(f"urgent {number}" for number in range(20)), "patient"]


def test_a_lane_with_a_higher_priority_goes_first() -> None:
    queue, old, new = Queue(), small_lane(), small_lane()
    put(queue, old, "old")
    put(queue, new, "new", priority=1)
    queue.charge(new, 1_000_000)  # whatever its model has had
    assert queue.lanes() == [new, old]
    queue.take(new)
    assert queue.lanes() == [old]


# ── turns between callers ──────────────────────────────────────────────────────────────────────


def test_callers_take_turns() -> None:
    queue, lane = Queue(), small_lane(max_batch=1)
    flood(queue, lane, 1, 50)
    put(queue, lane, "second", fairness=2)
    put(queue, lane, "third", fairness=3)
    order = [queue.take(lane)[0].owner for _ in range(4)]
    assert order == ["1:0", "second", "third", "1:1"]


def test_a_turn_has_a_quarter_of_a_batch() -> None:
    """A few rows of one caller stay together: it is woken once for all of them."""
    queue, lane = Queue(), small_lane(max_batch=16)
    for caller in (1, 2, 3):
        flood(queue, lane, caller)
    callers = [job.fairness for job in queue.take(lane)]
    assert callers == [1] * 4 + [2] * 4 + [3] * 4 + [1] * 4
    assert [job.fairness for job in queue.take(lane)] == [2] * 4 + [3] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize("max_batch", [1, 2, 3])
def test_in_small_batches_a_turn_has_one_row(max_batch: int) -> None:
    queue, lane = Queue(), small_lane(max_batch)
    flood(queue, lane, 1)
    flood(queue, lane, 2)
    callers = [job.fairness for _ in range(6) for job in queue.take(lane)]
    assert callers == [1, 2] * (3 * max_batch)


@pytest.mark.parametrize("max_batch", [1, 2, 3, 8, 16])
def test_a_small_batch_is_of_one_caller_at_a_time_where_rows_take_no_time(max_batch: int) -> None:
    """A quarter of a small batch is not worth waking a process for."""
    queue, lane = Queue(), quick_lane(max_batch)
    flood(queue, lane, 1)
    flood(queue, lane, 2)
    callers = [job.fairness for _ in range(6) for job in queue.take(lane)]
    assert callers == ([1] * max_batch + [2] * max_batch) * 3


def test_a_turn_in_a_batch_of_32_has_16_rows() -> None:
    queue, lane = Queue(), quick_lane(max_batch=32)
    for caller in (1, 2, 3):
        flood(queue, lane, caller)
    callers = [job.fairness for _ in range(3) for job in queue.take(lane)]
    assert callers == ([1] * 16 + [2] * 16 + [3] * 16) * 2


def test_a_small_batch_has_room_for_all_who_wait() -> None:
    """A turn that goes on for longer leaves nobody out where all have room."""
    queue, lane = Queue(), quick_lane(max_batch=8)
    for number in range(5):
        put(queue, lane, str(number), fairness=1)
    put(queue, lane, "second", fairness=2)
    put(queue, lane, "third", fairness=3)
    assert rows_by_caller(queue.take(lane)) == {1: 5, 2: 1, 3: 1}


@given(st.integers(1, 100), st.integers(2, 6), st.lists(st.integers(1, 100), max_size=40))
def test_a_longer_turn_is_paid_back(max_batch: int, callers: int, rooms: list[int]) -> None:
    """Nobody is ever further ahead than by a longer turn, and what newcomers leave to others."""
    queue, lane = Queue(), quick_lane(max_batch)
    for caller in range(callers):
        flood(queue, lane, caller, sum(rooms) + 1)
    had: Counter[int] = Counter(dict.fromkeys(range(callers), 0))
    for room in rooms:
        had.update(rows_by_caller(queue.take(lane, min(room, max_batch))))
        assert (
            max(had.values()) - min(had.values()) <= lane.overdraft + (callers + 1) * lane.quantum
        )


def test_a_turn_does_not_go_on_where_others_would_wait_for_it() -> None:
    """Beside what a batch takes here, waking a process is nothing."""
    queue, lane = Queue(), quick_lane(max_batch=8)
    flood(queue, lane, 1)
    flood(queue, lane, 2)
    for a_row, extra in ((100 * US, 6), (400 * US, 2), (2 * MS, 0)):
        lane.observe(0, 8, 8 * a_row, 0)
        assert lane.overdraft == extra
    assert [job.fairness for job in queue.take(lane)] == [1, 1, 2, 2, 1, 1, 2, 2]


def test_a_turn_goes_on_in_the_next_batch() -> None:
    queue, lane = Queue(), small_lane(max_batch=16)
    flood(queue, lane, 1)
    flood(queue, lane, 2)
    first = queue.take(lane, 6)
    assert [job.fairness for job in first] == [1] * 4 + [2] * 2
    assert [job.fairness for job in queue.take(lane, 4)] == [2] * 2 + [1] * 2


def test_callers_get_as_many_rows_whatever_the_size_of_their_requests() -> None:
    """Deficit round robin: what one turn took too much, the next ones are short of."""
    queue, lane = Queue(), small_lane(max_batch=16)
    flood(queue, lane, 1, 400, rows=1)
    flood(queue, lane, 2, 100, rows=16)
    flood(queue, lane, 3, 100, rows=7)
    had: Counter[int] = Counter()
    for _ in range(60):
        had += rows_by_caller(queue.take(lane))
    assert min(had.values()) > 0.85 * max(had.values()), had


def test_whoever_was_given_too_much_waits_also_when_it_asks_late() -> None:
    """A debt is not forgiven because its caller had nothing waiting for a moment."""
    queue, lane = Queue(), small_lane(max_batch=16)
    flood(queue, lane, 1)
    had: Counter[int] = Counter()
    put(queue, lane, "large", 16, fairness=2)
    for _ in range(60):
        jobs = queue.take(lane)
        had += rows_by_caller(jobs)
        if any(job.fairness == 2 for job in jobs):
            put(queue, lane, "large", 16, fairness=2)
    assert had[2] <= 1.2 * had[1], had


def test_a_turn_that_nobody_used_is_not_saved_up() -> None:
    queue, lane = Queue(), small_lane(max_batch=16)
    flood(queue, lane, 1)
    flood(queue, lane, 3)
    for _ in range(20):
        put(queue, lane, "one a round", fairness=2)
        queue.take(lane, 1 + 2 * lane.quantum)
    flood(queue, lane, 2)
    callers = [job.fairness for _ in range(6) for job in queue.take(lane)]
    turns = [len(list(turn)) for caller, turn in itertools.groupby(callers) if caller == 2]
    assert max(turns) <= lane.quantum


def test_one_huge_request_costs_no_more_than_a_batch() -> None:
    """What is not batched may have any number of rows; its caller does not pay for ever."""
    queue, lane = Queue(), small_lane(max_batch=4, batched=False)
    put(queue, lane, "huge", 1 << 31, fairness=1)
    flood(queue, lane, 1, 5)
    flood(queue, lane, 2, 50)
    order = [queue.take(lane)[0].fairness for _ in range(20)]
    assert order.count(1) >= 5


@given(
    st.integers(1, 40),
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=12), min_size=1, max_size=5),
)
def test_everybody_leaves_in_their_own_order(max_batch: int, sizes: list[list[int]]) -> None:
    queue, lane = Queue(), small_lane(max_batch)
    for caller, rows in enumerate(sizes):
        for number, count in enumerate(rows):
            put(queue, lane, str(number), min(count, max_batch), fairness=caller)
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
    queue, lane = Queue(), small_lane(max_batch=16)
    flood(queue, lane, 1, 200, rows)
    for _ in range(5):
        queue.take(lane)
    for caller in range(2, 10):
        put(queue, lane, "quiet", fairness=caller)
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
    queue, lane = Queue(), small_lane(max_batch=16)
    flood(queue, lane, 1, 500, rows=0)
    flood(queue, lane, 2, 500, rows=1)
    batches = [queue.take(lane) for _ in range(50)]
    assert sum(job.fairness == 2 for jobs in batches for job in jobs) >= 30


def test_a_caller_that_had_nothing_waiting_goes_before_those_that_were_served() -> None:
    queue, lane = Queue(), small_lane(max_batch=4)
    for caller in (1, 2, 3):
        flood(queue, lane, caller)
    queue.take(lane)
    put(queue, lane, "new", fairness=9)
    assert owners(queue.take(lane))[0] == "new"


def test_new_callers_go_in_the_order_in_which_they_came() -> None:
    queue, lane = Queue(), small_lane(max_batch=4)
    flood(queue, lane, 1)
    queue.take(lane)
    for caller in (7, 8, 9):
        put(queue, lane, str(caller), fairness=caller)
    assert owners(queue.take(lane))[:3] == ["7", "8", "9"]


@pytest.mark.parametrize("thinks", [0, 1, 2])
def test_a_caller_that_is_back_within_the_round_is_not_new(thinks: int) -> None:
    """Else whoever asks for one row at a time would always go first, and flood that way."""
    queue, lane = Queue(), small_lane(max_batch=1)
    for caller in (1, 2, 3):
        flood(queue, lane, caller)
    had: Counter[int] = Counter()
    back = 0
    for time in range(80):
        if time == back:
            put(queue, lane, "again", fairness=9)
        (job,) = queue.take(lane)
        had[job.fairness] += 1
        if job.fairness == 9:
            back = time + 1 + thinks
    assert had[9] == pytest.approx(20, abs=1)


def test_a_caller_that_was_away_for_a_whole_round_is_new_again() -> None:
    queue, lane = Queue(), small_lane(max_batch=1)
    for caller in (1, 2, 3):
        flood(queue, lane, caller)
    put(queue, lane, "first", fairness=9)
    for _ in range(4 + 2 * 4):  # its own turn, one that finds it empty, one that forgets it
        queue.take(lane)
    put(queue, lane, "again", fairness=9)
    assert owners(queue.take(lane)) == ["again"]


def test_a_stream_of_new_callers_does_not_put_off_those_who_wait() -> None:
    queue, lane = Queue(), small_lane(max_batch=4)
    flood(queue, lane, 1)
    served = 0
    for caller in range(100, 1_100):
        put(queue, lane, "new", fairness=caller)
        if caller % 4 == 3:
            served += rows_by_caller(queue.take(lane))[1]
    assert served >= 1_000 / 4 / 5


@pytest.mark.parametrize("max_batch", [4, 8, 16, 32, 64])
def test_new_callers_of_many_rows_put_off_nobody_for_long(max_batch: int) -> None:
    """Room for four turns, however many rows each of them takes."""
    queue, lane = Queue(), quick_lane(max_batch)
    flood(queue, lane, 1, 4_000)
    served: list[int] = []
    for caller in range(100, 300):
        put(queue, lane, "new", max_batch, fairness=caller)
        if rows_by_caller(queue.take(lane))[1]:
            served.append(caller)
    gaps = [after - before for before, after in itertools.pairwise(served)]
    assert len(gaps) > 20
    assert max(gaps) <= 5


def test_callers_that_left_are_forgotten() -> None:
    queue, lane = Queue(), small_lane(max_batch=4)
    flood(queue, lane, 1, 3_000)
    for caller in range(100, 3_100):
        put(queue, lane, "new", fairness=caller)
        if caller % 3 == 0:
            queue.take(lane)
    (level,) = lane.levels.values()
    waiting = sum(1 for line in level.lines.values() if line.jobs)
    assert len(level.lines) <= waiting + 20
    assert len(level.fresh) + len(level.served) == len(level.lines)


def test_callers_that_cancelled_are_forgotten() -> None:
    """Also while nothing leaves, because the worker hangs."""
    queue, lane = Queue(), small_lane(max_batch=4)
    stays = put(queue, lane, "stays", fairness=1)
    for caller in range(2, 10_000):
        queue.remove(put(queue, lane, "gone", fairness=caller))
    (level,) = lane.levels.values()
    assert len(level.lines) < 200
    assert len(level.fresh) + len(level.served) == len(level.lines)
    assert queue.take(lane) == [stays]


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
    light, heavy = small_lane(share=Share(1.0)), small_lane(share=Share(3.0))
    for lane in (light, heavy):
        flood(queue, lane, 1, 5_000)
    had = _worked_off(queue, {light: cost, heavy: 100}, 1_000)
    assert had[heavy] / had[light] == pytest.approx(3.0, rel=0.1)


def test_shapes_of_one_model_share_its_share() -> None:
    queue, share = Queue(), Share(1.0)
    shapes = [small_lane(share=share) for _ in range(5)]
    other = small_lane(share=Share(1.0))
    for lane in (*shapes, other):
        flood(queue, lane, 1, 5_000)
    had = _worked_off(queue, dict.fromkeys((*shapes, other), 100), 500)
    assert had[other] == pytest.approx(sum(had[lane] for lane in shapes), rel=0.1)
    assert len({had[lane] for lane in shapes}) == 1  # they take turns


def test_an_idle_model_saves_up_nothing() -> None:
    queue = Queue()
    idle, busy = small_lane(share=Share()), small_lane(share=Share())
    flood(queue, idle, 1, 4)
    flood(queue, busy, 1, 5_000)
    _worked_off(queue, {idle: 100, busy: 100}, 400)
    flood(queue, idle, 1, 5_000)
    had = _worked_off(queue, {idle: 100, busy: 100}, 100)
    assert had[idle] == pytest.approx(had[busy], rel=0.1)


def test_a_model_that_was_kept_from_running_brings_nobody_credit() -> None:
    """It may catch up; one that was idle meanwhile may not."""
    queue = Queue()
    kept, busy, idle = (small_lane(share=Share()) for _ in range(3))
    flood(queue, kept, 1, 8)
    flood(queue, busy, 1, 5_000)
    for _ in range(400):  # the worker for `kept` hangs, say
        queue.take(busy)
        queue.charge(busy, 100)
    queue.take(kept)
    queue.charge(kept, 100)
    flood(queue, idle, 1, 5_000)
    had = _worked_off(queue, dict.fromkeys((kept, busy, idle), 100), 100)
    assert had[idle] <= had[busy] + 200


def test_a_stream_of_new_shapes_does_not_put_off_an_old_one() -> None:
    queue, share = Queue(), Share()
    old = small_lane(max_batch=1, share=share)
    flood(queue, old, 1, 100)
    had = 0
    for _ in range(100):
        new = small_lane(max_batch=1, share=share)
        flood(queue, new, 2, 3)
        for _ in range(2):
            lane = queue.lanes()[0]
            queue.take(lane)
            queue.charge(lane, 100)
            had += lane is old
    assert had >= 1
