"""A worker dies: its requests run elsewhere, and only a row that kills every time is lost."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from penstock.errors import ModelError, RowsFailed, WorkerLost
from tests.faults import leftovers
from tests.faults.company import gone, healthy, worker_pids
from tests.faults.files import let_go, lines, started
from tests.faults.models import Verb, answer_to, row, rows
from tests.faults.waiting import eventually


def _numbers(engine, count, first=100):
    """Submit innocent rows; returns them with their futures."""
    asked = [row(Verb.ANSWER, 0, number)[None] for number in range(first, first + count)]
    return [(x, engine.submit(x)) for x in asked]


def _all_right(asked):
    for x, future in asked:
        assert future.result(30)[:, 0].tolist() == answer_to(x).tolist()


def test_its_requests_run_on_the_other_worker(start):
    engine = start(workers=2)
    pids = worker_pids(engine)
    waiting = engine.submit(row(Verb.WAIT, 1, 7)[None])
    victim = started(1)
    os.kill(victim, signal.SIGKILL)
    (other,) = set(pids) - {victim}
    assert started(1, others=(victim,)) == other
    let_go(1)
    assert waiting.result(10).tolist() == [[50, other]]
    healthy(engine)
    assert engine.statistics().restarts == engine.statistics().deaths == 1


def test_with_one_worker_they_run_on_its_successor(start):
    engine = start(workers=1, max_batch=4)
    (victim,) = worker_pids(engine)
    waiting = engine.submit(row(Verb.WAIT, 1, 7)[None])
    started(1)
    behind = _numbers(engine, 20)
    os.kill(victim, signal.SIGKILL)
    let_go(1)
    (answer,) = waiting.result(20)
    assert answer[0] == 50
    assert answer[1] not in (victim, os.getpid())
    _all_right(behind)
    assert engine.statistics().restarts == 1


def test_killed_again_and_again_every_answer_is_right(start):
    engine = start(workers=2, restarts=100)
    for round_number in range(4):
        asked = _numbers(engine, 200, first=1000 * round_number)
        leftovers.kill(worker_pids(engine)[round_number % 2])
        _all_right(asked)
        # Not before: rows that it is given while its death is not seen yet are under suspicion, and
        # the next kill would find them alone.
        eventually(lambda before=round_number: engine.statistics().deaths > before)
        healthy(engine)


def test_a_killing_row_alone_is_lost(start):
    engine = start(workers=1, max_batch=8)
    before = _numbers(engine, 30)
    killer = engine.submit(row(Verb.KILL)[None])
    after = _numbers(engine, 30, first=500)
    with pytest.raises(WorkerLost, match="SIGKILL") as caught:
        killer.result(30)
    assert caught.value.retryable
    _all_right(before + after)
    assert engine.statistics().restarts <= 2, "once among others, once alone"


@pytest.mark.parametrize("verb", [Verb.KILL, Verb.EXIT])
def test_a_killing_row_within_a_call_does_not_spoil_the_others(start, verb):
    engine = start(workers=2, max_batch=8)
    x = rows(*(row(verb if number == 11 else Verb.ANSWER, 0, number) for number in range(24)))
    with pytest.raises(RowsFailed) as caught:
        engine.predict(x)
    assert list(caught.value.errors) == [11]
    assert isinstance(caught.value.errors[11], WorkerLost)
    assert caught.value.retryable
    right = np.arange(24) != 11
    assert (caught.value.results[right, 0] == answer_to(x)[right]).all()
    assert engine.statistics().restarts <= 2


def test_several_killing_rows_in_one_batch(start):
    engine = start(workers=1, max_batch=16, restarts=20)
    hold = engine.submit(row(Verb.WAIT, 1)[None])
    started(1)
    asked = _numbers(engine, 6)
    killers = [
        engine.submit(row(Verb.KILL, number_of_signal)[None]) for number_of_signal in _SIGNALS
    ]
    asked += _numbers(engine, 6, first=500)
    let_go(1)
    for killer in killers:
        with pytest.raises(WorkerLost):
            killer.result(30)
    _all_right(asked)
    hold.result(10)
    assert engine.statistics().restarts <= 2 * len(killers), "each in company, then alone"


_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM)


def test_killing_rows_of_several_clients_at_once(start, peer, bystander):
    engine = start(workers=2, max_batch=8, restarts=50)
    onlooker = bystander(engine)
    peers = [peer("kill_rows", engine.address, 2, 20) for _ in range(3)]
    for other in peers:
        assert other.says() == "ready"
    for other in peers:
        other.tell("go")
    for other in peers:
        assert other.says(50) == {"KILL: WorkerLost": 2, "ANSWER: right": 20}
    onlooker.go_on()
    healthy(engine)
    assert engine.statistics().restarts <= 2 * 6


def test_a_row_that_killed_once_is_answered(start):
    engine = start(workers=1, max_batch=8)
    x = rows(row(Verb.ANSWER, 0, 1), row(Verb.KILL_ONCE, 1, 2), row(Verb.ANSWER, 0, 3))
    assert engine.predict(x)[:, 0].tolist() == answer_to(x).tolist()
    assert engine.statistics().restarts == 1


def test_a_row_that_may_not_be_repeated_is_lost_at_once(start):
    engine = start(workers=1, batched=False)
    with pytest.raises(WorkerLost, match="may not be repeated"):
        engine.predict(row(Verb.KILL_ONCE, 1)[None])
    assert engine.predict(row(Verb.KILL_ONCE, 1, 2)[None])[0, 0] == 15
    assert len(lines("batches")) == 2


def test_deadlines_of_suspects_are_kept(start):
    """Rows of one request under suspicion share a deadline, and must not be mixed up by that."""
    engine = start(workers=1, max_batch=8)
    x = rows(row(Verb.KILL_ONCE, 1, 1), *(row(Verb.ANSWER, 0, number) for number in range(7)))
    future = engine.submit(x, deadline=20)
    assert future.result(20)[:, 0].tolist() == answer_to(x).tolist()
    assert engine.statistics().restarts == 1


def test_a_deadline_that_passes_while_the_worker_is_replaced(start):
    engine = start(workers=1, max_batch=8, restarts=0, restart_refill=60)
    x = rows(row(Verb.WAIT, 1, 1), *(row(Verb.ANSWER, 0, number) for number in range(7)))
    future = engine.submit(x, deadline=0.3)
    os.kill(started(1), signal.SIGKILL)
    error = future.exception(5)
    assert isinstance(error, (TimeoutError, WorkerLost))
    eventually(lambda: engine.statistics().requests.queued == 0)


def test_a_row_that_raises_alone_fails(start):
    engine = start(workers=1, max_batch=16)
    hold = engine.submit(row(Verb.WAIT, 1)[None])
    started(1)
    before = _numbers(engine, 5)
    raising = engine.submit(row(Verb.RAISE, 42)[None])
    after = _numbers(engine, 5, first=500)
    let_go(1)
    with pytest.raises(ModelError, match="row 42 is not to my taste") as caught:
        raising.result(10)
    remote = str(caught.value.__cause__)
    assert "Traceback" in remote
    assert "in _raise" in remote
    assert "ValueError" in remote
    assert not caught.value.retryable
    _all_right(before + after)
    hold.result(10)
    assert engine.statistics().restarts == 0


def test_rows_that_raise_within_a_call(start):
    engine = start(workers=2, max_batch=8)
    guilty = {3, 4, 19}
    x = rows(
        *(row(Verb.RAISE if n in guilty else Verb.ANSWER, n, n) for n in range(40)),
    )
    with pytest.raises(RowsFailed) as caught:
        engine.predict(x)
    assert set(caught.value.errors) == guilty
    for number, error in caught.value.errors.items():
        assert isinstance(error, ModelError)
        assert f"row {number} is" in str(error)
        assert "in _raise" in str(error.__cause__)
    right = [number for number in range(40) if number not in guilty]
    assert (caught.value.results[right, 0] == answer_to(x)[right]).all()


def test_a_row_that_raises_does_not_spoil_answers_from_a_buffer_that_is_used_again(start):
    engine = start("ReusedBuffer", workers=1, max_batch=16)
    x = np.arange(16, dtype=np.int64)[:, None]
    x[9] = -1
    with pytest.raises(RowsFailed) as caught:
        engine.predict(x)
    assert list(caught.value.errors) == [9]
    right = np.arange(16) != 9
    assert caught.value.results[right].tolist() == (x * 2)[right].tolist()


def test_outputs_that_cannot_be_told_apart_are_the_models_error(start):
    engine = start("TwoNamesAlike")
    with pytest.raises(ModelError):
        engine.predict(row(Verb.ANSWER)[None])
    assert engine.statistics().restarts == 0


def test_a_used_up_restart_budget_ends_what_waits_and_recovers(start):
    engine = start(workers=1, max_batch=1, restarts=1, restart_refill=1.5)
    (first,) = worker_pids(engine)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: engine.statistics().restarts == 1)
    healthy(engine)
    running = engine.submit(row(Verb.WAIT, 1, 1)[None])
    second = started(1)
    queued = _numbers(engine, 10)
    os.kill(second, signal.SIGKILL)
    for future in [running, *(future for _, future in queued)]:
        with pytest.raises(WorkerLost, match="restarts did not help") as caught:
            future.result(5)
        assert caught.value.retryable
    with pytest.raises(WorkerLost, match="restarts did not help"):
        engine.predict(row(Verb.ANSWER)[None])
    assert not engine.statistics().healthy
    healthy(engine)
    _all_right(_numbers(engine, 10))
    assert engine.statistics().restarts == 2


def test_two_that_die_at_once_are_not_the_end_when_one_comes_back(start):
    engine = start(workers=2, max_batch=1, restarts=1, restart_refill=60)
    statistics = engine.statistics()
    first = [engine.submit(row(Verb.WAIT, n, n)[None]) for n in (1, 2)]
    victims = [started(1), started(2)]
    behind = _numbers(engine, 6)
    eventually(lambda: engine.statistics().requests.admitted == 8)
    os.kill(statistics.pid, signal.SIGSTOP)  # so that it sees both deaths in one round
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    eventually(lambda: not any(map(leftovers.alive, victims)), what="both are dead")
    os.kill(statistics.pid, signal.SIGCONT)
    let_go(1, 2)
    assert [future.result(20)[0, 0] for future in first] == [1 * 7 + 1, 2 * 7 + 1]
    _all_right(behind)
    assert engine.statistics().restarts == 1


def test_health_goes_red_and_green_again(start, folder):
    engine = start("RaisesWhileBroken", workers=2, restarts=100)
    assert engine.statistics().healthy
    (broken := folder / "broken").touch()
    victim = worker_pids(engine)[1]
    os.kill(victim, signal.SIGKILL)
    gone(victim)
    eventually(lambda: not engine.statistics().healthy, 2)
    _all_right(_numbers(engine, 20))
    assert not engine.statistics().healthy
    broken.unlink()
    healthy(engine)
    assert victim not in worker_pids(engine)


def test_answers_outside_the_slots_are_let_go_when_a_worker_dies(start, client):
    """Rows that raise come with parts; a worker that dies in between must leave no descriptor."""
    engine = start("inflate", workers=2, restarts=100)
    x = np.arange(64, dtype=np.int64)[:, None]
    assert (engine.predict(x)[:, 0] == x[:, 0]).all()
    pid = engine.statistics().pid
    before = leftovers.footprint(pid)
    for _ in range(3):
        with client(engine) as other:  # a client that has not learnt how much room answers need
            futures = [other.submit(x) for _ in range(8)]
            leftovers.kill(worker_pids(engine)[0])
            for future in futures:
                assert (future.result(30)[:, 0] == x[:, 0]).all()
        healthy(engine)
    eventually(lambda: before.growth(leftovers.footprint(pid), kilobytes=8192) == [], 5)
