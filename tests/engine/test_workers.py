"""A worker's place: what it has, when it will be free, and when it is overdue."""

from __future__ import annotations

from penstock.engine.workers import Batch, Worker
from penstock.scheduling.abilities import LEAD
from penstock.scheduling.decisions import Closed, Decision
from penstock.scheduling.lanes import Lane
from penstock.scheduling.queue import Job

MS = 1_000_000
LANE = Lane(0, (), 16)


def _worker() -> Worker:
    worker = Worker(0)
    worker.started(1, 0)
    worker.loaded(0)
    return worker


def _batch(number: int, rows: int = 1, lane: Lane = LANE, *, alone: bool = False) -> Batch:
    jobs = [Job(None, lane, 1) for _ in range(rows)]
    return Batch(number, Decision(_worker(), lane, jobs, alone, Closed.IDLE), 7)


def test_a_batch_remembers_its_decision() -> None:
    batch = _batch(3, rows=2)
    assert (batch.number, batch.rows, batch.sent, batch.closed) == (3, 2, 7, Closed.IDLE)
    assert batch.lane is LANE
    assert not batch.alone


def test_a_worker_is_free_when_all_that_it_has_is_done() -> None:
    worker = _worker()
    worker.given(_batch(1), 5 * MS, 100)
    assert worker.free_at == 100 + 5 * MS
    assert worker.running_since == 100
    worker.given(_batch(2), 3 * MS, 200)
    assert worker.free_at == 100 + 8 * MS
    assert worker.inflight == 2


def test_what_is_left_counts_from_the_end_of_the_batch_before() -> None:
    """Whether that was earlier or later than expected."""
    for ended in (2 * MS, 9 * MS):
        worker = _worker()
        worker.given(_batch(1), 5 * MS, 0)
        worker.given(_batch(2), 3 * MS, 0)
        worker.finished(1, ended)
        assert worker.running_since == ended
        assert worker.free_at == ended + 3 * MS
        assert worker.late_at == ended + 6 * MS


def test_an_idle_worker_is_free_now() -> None:
    worker = _worker()
    worker.given(_batch(1), 5 * MS, 0)
    worker.finished(1, MS)
    assert worker.free_at == MS


def test_a_worker_is_overdue_after_twice_what_was_expected() -> None:
    worker = _worker()
    worker.given(_batch(1), 5 * MS, 0)
    assert worker.late_at == 10 * MS
    worker.given(_batch(2), 3 * MS, 0)
    assert worker.late_at == 8 * MS + 3 * MS


def test_short_batches_are_not_overdue_because_of_a_message() -> None:
    worker = _worker()
    worker.given(_batch(1), 10, 0)
    assert worker.late_at == 10 + LEAD


def test_a_worker_is_overdue_at_once_if_nobody_knows_how_long_it_takes() -> None:
    worker = _worker()
    worker.given(_batch(1), 5 * MS, 0)
    worker.given(_batch(2), 0, 4)
    assert worker.late_at == 4
    worker.finished(1, 6 * MS)
    assert worker.late_at == 6 * MS


def test_rows_of_a_lane() -> None:
    worker, other = _worker(), Lane(1, (), 16)
    worker.given(_batch(1, rows=3), MS, 0)
    worker.given(_batch(2, rows=2, lane=other), MS, 0)
    assert (worker.rows_of(LANE), worker.rows_of(other)) == (3, 2)
    worker.finished(1, MS)
    assert (worker.rows_of(LANE), worker.rows_of(other)) == (0, 2)
    assert (worker.batches_done, worker.rows_done) == (1, 3)


def test_a_batch_that_it_was_not_given_changes_nothing() -> None:
    worker = _worker()
    worker.given(_batch(1), 5 * MS, 0)
    assert worker.finished(9, MS) is None
    assert (worker.inflight, worker.free_at, worker.running_since) == (1, 5 * MS, 0)


def test_a_worker_runs_a_suspect_until_it_is_done() -> None:
    worker = _worker()
    worker.given(_batch(1, alone=True), MS, 0)
    assert worker.alone
    worker.finished(1, MS)
    assert not worker.alone


def test_whoever_comes_in_a_dead_workers_place_has_nothing_to_finish() -> None:
    worker = _worker()
    worker.given(_batch(1, alone=True), 60_000 * MS, 0)
    assert [batch.number for batch in worker.exited(MS)] == [1]
    worker.started(2, MS)
    worker.loaded(2 * MS)
    assert (worker.inflight, worker.free_at, worker.alone) == (0, MS, False)
