"""What waits: batches in the order of arrival, what comes again, counters, deadlines, lanes."""

from __future__ import annotations

from penstock.scheduling.abilities import LEAD
from penstock.scheduling.lanes import Lane
from penstock.scheduling.queue import Job, Queue
from tests.scheduling.bench import flood, owners, put, rows_by_caller, small_lane

# ── batches ────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_queue_has_nothing() -> None:
    queue = Queue()
    assert queue.lanes() == []
    assert queue.next_due() is None
    assert list(queue.due(1 << 62)) == []
    assert queue.oldest() == queue.last_sequence + 1


def test_a_batch_is_filled_in_the_order_of_arrival() -> None:
    queue, lane = Queue(), small_lane(max_batch=3)
    for owner in "abcd":
        put(queue, lane, owner)
    assert owners(queue.take(lane)) == ["a", "b", "c"]
    assert owners(queue.take(lane)) == ["d"]
    assert queue.lanes() == []


def test_a_batch_may_be_smaller_than_it_could() -> None:
    queue, lane = Queue(), small_lane(max_batch=8)
    for owner in "abcd":
        put(queue, lane, owner)
    assert owners(queue.take(lane, 3)) == ["a", "b", "c"]


def test_a_job_that_does_not_fit_waits_for_the_next_batch() -> None:
    """Also for those behind it that would fit: nobody overtakes."""
    queue, lane = Queue(), small_lane(max_batch=4)
    put(queue, lane, "three", rows=3)
    put(queue, lane, "two", rows=2)
    put(queue, lane, "one", rows=1)
    assert owners(queue.take(lane)) == ["three"]
    assert owners(queue.take(lane)) == ["two", "one"]


def test_jobs_without_rows_run_alone() -> None:
    queue, lane = Queue(), small_lane(max_batch=4)
    for owner, rows in (("a", 1), ("empty", 0), ("b", 1), ("c", 1)):
        put(queue, lane, owner, rows=rows)
    assert owners(queue.take(lane)) == ["a"]
    assert owners(queue.take(lane)) == ["empty"]
    assert owners(queue.take(lane)) == ["b", "c"]


def test_what_is_not_batched_leaves_one_by_one() -> None:
    queue, lane = Queue(), small_lane(max_batch=4, batched=False)
    for owner, rows in (("a", 100), ("b", 1), ("c", 0)):
        put(queue, lane, owner, rows=rows)
    assert [owners(queue.take(lane)) for _ in range(3)] == [["a"], ["b"], ["c"]]


# ── what comes again, what stays after all ─────────────────────────────────────────────────────


def test_what_comes_again_goes_to_the_front_of_its_line() -> None:
    queue, lane = Queue(), small_lane(max_batch=1)
    first = put(queue, lane, "first")
    assert queue.take(lane) == [first]
    put(queue, lane, "second")
    queue.add(first, front=True)
    assert queue.oldest() == first.sequence
    assert queue.take(lane) == [first]


def test_what_comes_again_keeps_its_place_whoever_died_first() -> None:
    queue, lane = Queue(), small_lane(max_batch=1)
    first, second, third = (put(queue, lane, owner) for owner in "abc")
    for _ in range(2):
        queue.take(lane)
    queue.add(first, front=True)
    queue.add(second, front=True)
    assert queue.oldest() == first.sequence
    assert [queue.take(lane)[0] for _ in range(3)] == [first, second, third]


def test_what_is_put_back_keeps_its_place_and_its_turn() -> None:
    queue, lane = Queue(), small_lane(max_batch=16)
    flood(queue, lane, 1)
    flood(queue, lane, 2)
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
    rows = rows_by_caller(left)
    assert abs(rows[1] - rows[2]) <= 2 * lane.quantum


def test_what_is_put_back_brings_its_caller_no_rows() -> None:
    """Also when nothing else was left, so that its line had been forgotten."""
    queue, lane = Queue(), small_lane(max_batch=16)
    for number in range(12):
        put(queue, lane, str(number), fairness=1)
    queue.put_back(queue.take(lane))
    flood(queue, lane, 2)
    assert [job.fairness for job in queue.take(lane, 8)] == [1] * 4 + [2] * 4


def test_rows_that_a_worker_has_had_are_part_of_the_rest_again() -> None:
    """They came back, and are put back: it is not forgotten that they may have run."""
    queue, lane = Queue(), small_lane(max_batch=4)
    whole = put(queue, lane, "whole", 6)
    (first,) = queue.take(lane, 4, 4)
    first.begun = True
    queue.add(first, front=True)  # its worker died
    queue.put_back(queue.take(lane, 4, 4))
    assert (whole.start, whole.rows, whole.begun) == (0, 6, True)
    assert (queue.jobs, queue.rows) == (1, 6)


# ── counters and deadlines ─────────────────────────────────────────────────────────────────────


def test_counters_follow_what_comes_and_leaves() -> None:
    queue, lane, other = Queue(), small_lane(), small_lane()
    job = put(queue, lane, "a", rows=3)
    put(queue, other, "b", rows=2)
    assert (queue.rows, queue.jobs, lane.rows, other.rows) == (5, 2, 3, 2)
    assert (lane.jobs, other.jobs) == (1, 1)
    queue.remove(job)
    assert (queue.rows, queue.jobs, lane.rows, lane.jobs) == (2, 1, 0, 0)
    assert queue.lanes() == [other]
    assert not job.queued
    queue.take(other)
    assert (queue.rows, queue.jobs) == (0, 0)


def test_a_lane_that_was_emptied_does_not_wait_any_more() -> None:
    queue, lane = Queue(), small_lane()
    jobs = [put(queue, lane, "a"), put(queue, lane, "b")]
    lane.waiting_since = 5
    queue.remove(jobs[0])
    assert lane.waiting_since == 5
    queue.remove(jobs[1])
    assert lane.waiting_since == 0


def test_jobs_are_noticed_in_order_and_only_if_they_wait() -> None:
    queue, lane = Queue(), small_lane(max_batch=1)
    taken = put(queue, lane, "taken", deadline=5)
    queue.take(lane)
    late = put(queue, lane, "late", deadline=20)
    soon = put(queue, lane, "soon", deadline=10)
    put(queue, lane, "never")
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
    queue, lane = Queue(), small_lane(max_batch=1)
    job = put(queue, lane, "a", deadline=10)
    queue.take(lane)
    queue.add(job, front=True)
    expired = []
    for one in queue.due(10):
        queue.remove(one)
        expired.append(one)
    assert expired == [job]


def test_deadlines_of_jobs_that_left_do_not_pile_up() -> None:
    queue, lane = Queue(), small_lane(max_batch=1)
    for number in range(10_000):
        put(queue, lane, "a", deadline=1_000_000 + number)
        queue.take(lane)
    assert len(queue._deadlines) < 1_000


def test_the_first_deadline_of_a_lane() -> None:
    queue, lane, other = Queue(), small_lane(max_batch=1), small_lane()
    assert lane.first_deadline() is None
    put(queue, lane, "none")
    assert lane.first_deadline() is None
    put(queue, other, "other", deadline=5)
    put(queue, lane, "late", deadline=30)
    soon = put(queue, lane, "soon", deadline=20, fairness=7, priority=-1)
    assert lane.first_deadline() == 20
    queue.remove(soon)
    assert lane.first_deadline() == 30


# ── lanes ──────────────────────────────────────────────────────────────────────────────────────


def test_rows_are_padded_to_the_next_size_of_the_ladder() -> None:
    lane = Lane(0, (), 8, ladder=(1, 4, 8))
    assert [lane.on(0).padded(rows) for rows in (0, 1, 2, 4, 5, 8, 9)] == [1, 1, 4, 4, 8, 8, 9]
    assert small_lane().on(0).padded(3) == 3


def test_a_batch_costs_as_much_as_the_size_at_which_it_runs() -> None:
    lane = Lane(0, (), 8, ladder=(1, 4, 8))
    lane.on(0).estimates.seed(1, 1_000)
    lane.on(0).estimates.seed(4, 4_000)
    assert lane.shortest(2) == lane.shortest(4) == 4_000
    lane.observe(0, 4, 5_000, 1)
    assert lane.fresh(2, 1)
    assert not lane.fresh(1, 1)


def test_a_batch_leaves_early_enough_to_be_gathered() -> None:
    queue, lane = Queue(), small_lane(max_batch=4)
    assert lane.on(0).lead(lane.rows) == LEAD
    lane.on(0).gather = 1_000.0
    flood(queue, lane, 1, 3)
    assert lane.on(0).lead(lane.rows) == LEAD + 3_000
    flood(queue, lane, 1, 90)
    assert lane.on(0).lead(lane.rows) == LEAD + 4_000  # only so many rows leave at once


# ── jobs that are several requests ─────────────────────────────────────────────────────────────


def _several(queue: Queue, lane: Lane, owner: str, rows: int) -> list[Job]:
    kept: list[Job] = []
    kept.append(Job(owner, lane, rows, siblings=kept, series=True))
    queue.add(kept[0])
    return kept


def test_of_several_requests_as_many_leave_as_have_room() -> None:
    queue, lane = Queue(), small_lane(max_batch=4)
    put(queue, lane, "a", rows=3)
    kept = _several(queue, lane, "six", 6)
    assert (queue.rows, queue.requests, queue.jobs, lane.rows) == (9, 7, 2, 9)
    batches = []
    while lane.jobs:
        before = queue.rows
        jobs = queue.take(lane)
        batches.append([(job.owner, job.start, job.rows) for job in jobs])
        left = before - sum(job.rows for job in jobs)
        assert queue.rows == lane.rows == queue.requests == left
    assert batches == [[("a", 0, 3), ("six", 0, 1)], [("six", 1, 4)], [("six", 5, 1)]]
    assert queue.requests == queue.jobs == 0
    assert sorted((job.start, job.rows) for job in kept) == [(0, 1), (1, 4), (5, 1)]


def test_some_of_them_are_put_back_before_the_others() -> None:
    queue, lane = Queue(), small_lane(max_batch=4)
    _several(queue, lane, "six", 6)
    put(queue, lane, "after")
    queue.put_back(queue.take(lane))
    assert (queue.rows, queue.requests, lane.rows) == (7, 7, 7)
    taken = [(job.owner, job.start, job.rows) for _ in range(2) for job in queue.take(lane)]
    assert taken == [("six", 0, 4), ("six", 4, 2), ("after", 0, 1)]
