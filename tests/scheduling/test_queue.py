"""What waits, and in which order it leaves."""

from __future__ import annotations

from penstock.scheduling.queue import Job, Lane, Queue


def _lane(max_batch: int = 4, batched: bool = True) -> Lane:
    return Lane(0, (), max_batch, batched)


def _add(queue: Queue, lane: Lane, owner: str, rows: int = 1, **options: int) -> Job:
    job = Job(owner, lane, rows, **options)
    queue.add(job)
    return job


def _owners(jobs: list[Job]) -> list[str]:
    return [job.owner for job in jobs]


def test_an_empty_queue_has_nothing() -> None:
    queue = Queue()
    assert queue.best_lane() is None
    assert queue.next_deadline() is None
    assert list(queue.expired(1 << 62)) == []
    assert queue.oldest() == queue.last_sequence + 1


def test_a_batch_is_filled_in_the_order_of_arrival() -> None:
    queue, lane = Queue(), _lane(max_batch=3)
    for owner in "abcd":
        _add(queue, lane, owner)
    assert _owners(queue.take(lane)) == ["a", "b", "c"]
    assert _owners(queue.take(lane)) == ["d"]
    assert queue.best_lane() is None


def test_the_highest_priority_goes_first() -> None:
    queue, lane = Queue(), _lane(max_batch=2)
    _add(queue, lane, "low", priority=-5)
    _add(queue, lane, "middle")
    _add(queue, lane, "high", priority=7)
    assert _owners(queue.take(lane)) == ["high", "middle"]
    assert _owners(queue.take(lane)) == ["low"]


def test_a_lane_with_a_higher_priority_goes_first() -> None:
    queue, old, new = Queue(), _lane(), _lane()
    _add(queue, old, "old")
    _add(queue, new, "new", priority=1)
    assert queue.best_lane() is new
    queue.take(new)
    assert queue.best_lane() is old


def test_clients_take_turns() -> None:
    queue, lane = Queue(), _lane(max_batch=1)
    for number in range(50):
        _add(queue, lane, f"flood {number}", fairness=1)
    _add(queue, lane, "second", fairness=2)
    _add(queue, lane, "third", fairness=3)
    order = [queue.take(lane)[0].owner for _ in range(4)]
    assert order == ["flood 0", "second", "third", "flood 1"]


def test_a_batch_is_shared_between_clients() -> None:
    queue, lane = Queue(), _lane(max_batch=4)
    for number in range(20):
        _add(queue, lane, f"a{number}", fairness=1)
        _add(queue, lane, f"b{number}", fairness=2)
    assert sorted(_owners(queue.take(lane))) == ["a0", "a1", "b0", "b1"]


def test_a_job_that_does_not_fit_waits_for_the_next_batch() -> None:
    queue, lane = Queue(), _lane(max_batch=4)
    _add(queue, lane, "three", rows=3)
    _add(queue, lane, "two", rows=2)
    assert _owners(queue.take(lane)) == ["three"]
    assert _owners(queue.take(lane)) == ["two"]


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


def test_counters_follow_what_comes_and_leaves() -> None:
    queue, lane, other = Queue(), _lane(), _lane()
    job = _add(queue, lane, "a", rows=3)
    _add(queue, other, "b", rows=2)
    assert (queue.rows, queue.jobs, lane.rows, other.rows) == (5, 2, 3, 2)
    queue.remove(job)
    assert (queue.rows, queue.jobs, lane.rows) == (2, 1, 0)
    assert queue.lanes() == [other]
    assert not job.queued
    queue.take(other)
    assert (queue.rows, queue.jobs) == (0, 0)


def test_deadlines_are_noticed_in_order_and_only_of_what_waits() -> None:
    queue, lane = Queue(), _lane(max_batch=1)
    taken = _add(queue, lane, "taken", deadline=5)
    queue.take(lane)
    late = _add(queue, lane, "late", deadline=20)
    soon = _add(queue, lane, "soon", deadline=10)
    _add(queue, lane, "never")
    assert not taken.queued
    assert queue.next_deadline() == 10
    assert list(queue.expired(9)) == []
    assert list(queue.expired(10)) == [soon]
    queue.remove(soon)
    assert queue.next_deadline() == 20
    assert list(queue.expired(99)) == [late]


def test_a_job_that_comes_again_expires_once() -> None:
    queue, lane = Queue(), _lane(max_batch=1)
    job = _add(queue, lane, "a", deadline=10)
    queue.take(lane)
    queue.add(job, front=True)
    expired = []
    for one in queue.expired(10):
        queue.remove(one)
        expired.append(one)
    assert expired == [job]


def test_deadlines_of_jobs_that_left_do_not_pile_up() -> None:
    queue, lane = Queue(), _lane(max_batch=1)
    for number in range(10_000):
        _add(queue, lane, "a", deadline=1_000_000 + number)
        queue.take(lane)
    assert len(queue._deadlines) < 1_000
