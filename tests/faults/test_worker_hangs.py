"""A worker that does not answer: noticed, killed, replaced; what it says late is dropped."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from penstock.errors import PenstockError, WorkerLost
from tests.faults import leftovers
from tests.faults.company import gone, healthy, worker_pids
from tests.faults.files import let_go, started
from tests.faults.models import FOREVER, Verb, answer_to, row, rows
from tests.faults.waiting import eventually


@pytest.mark.parametrize(
    ("verb", "argument"),
    [(Verb.SLEEP, FOREVER * 1000), (Verb.LOOP, 0), (Verb.HOLD_GIL, 60_000)],
    ids=["sleeps", "loops", "holds the interpreter"],
)
def test_a_row_that_hangs_is_lost_and_no_other(start, verb, argument):
    engine = start(workers=2, max_batch=8, run_timeout=0.4)
    pids = worker_pids(engine)
    x = rows(*(row(Verb.ANSWER, 0, number) for number in range(8)))
    before = engine.submit(x)
    hanging = engine.submit(row(verb, argument)[None])
    after = engine.submit(x)
    with pytest.raises(WorkerLost, match=r"ran for more than 0\.4 s"):
        hanging.result(20)
    for future in (before, after):
        assert future.result(20)[:, 0].tolist() == answer_to(x).tolist()
    healthy(engine)
    assert engine.statistics().restarts == 2
    gone(*(set(pids) - set(worker_pids(engine))))


def test_a_slow_batch_within_the_limit_is_left_alone(start):
    engine = start(workers=1, run_timeout=3)
    for _ in range(3):
        assert engine.predict(row(Verb.SLEEP, 200, 1)[None])[0, 0] == 8
    assert engine.statistics().deaths == 0


def test_the_limit_counts_for_each_batch_not_for_all_in_line(start):
    engine = start(workers=1, max_batch=1, run_timeout=0.8)
    futures = [engine.submit(row(Verb.SLEEP, 300, number)[None]) for number in range(5)]
    assert [future.result(20)[0, 0] for future in futures] == [1, 8, 15, 22, 29]
    assert engine.statistics().deaths == 0


def test_stopped_while_busy(start):
    engine = start(workers=1)
    waiting = engine.submit(row(Verb.WAIT, 1, 3)[None])
    victim = started(1)
    os.kill(victim, signal.SIGSTOP)
    let_go(1)
    (answer,) = waiting.result(20).tolist()
    assert answer[0] == 22
    assert answer[1] != victim, "answered by its successor"
    gone(victim)
    assert engine.statistics().restarts == 1


def test_stopped_while_idle(start):
    engine = start(workers=2)
    victim = worker_pids(engine)[0]
    os.kill(victim, signal.SIGSTOP)
    eventually(lambda: victim not in worker_pids(engine), 10, "the stopped worker is replaced")
    gone(victim)
    healthy(engine)
    assert engine.predict(row(Verb.ANSWER, 0, 1)[None])[0, 0] == 8


def test_stopped_while_it_is_loaded_again(start, folder):
    engine = start("RaisesWhileBroken", workers=1, load_timeout=30)
    (victim,) = worker_pids(engine)
    leftovers.kill(victim)
    successor = eventually(lambda: set(worker_pids(engine)) - {victim, 0}).pop()
    leftovers.kill(successor, signal.SIGSTOP)
    healthy(engine)
    assert successor not in worker_pids(engine) or engine.statistics().deaths == 1
    assert engine.predict(row(Verb.ANSWER, 0, 1)[None])[0, 0] == 8


def test_stopped_for_a_moment_it_answers_late_but_once(start):
    engine = start(workers=1)
    (worker,) = worker_pids(engine)
    waiting = engine.submit(row(Verb.WAIT, 1, 3)[None])
    started(1)
    os.kill(worker, signal.SIGSTOP)
    let_go(1)
    with pytest.raises(TimeoutError):
        waiting.result(0.1)
    os.kill(worker, signal.SIGCONT)
    assert waiting.result(10).tolist() == [[22, worker]]
    assert engine.statistics().deaths == 0


def test_answers_that_come_as_the_limit_strikes_are_given_once(start):
    """Batches that take about as long as they may: each ends once, right or with `WorkerLost`."""
    engine = start(workers=2, max_batch=1, run_timeout=0.2, restarts=1000)
    chance = random.Random(5)
    asked = [row(Verb.SLEEP, chance.randint(185, 215), number)[None] for number in range(12)]
    futures = [engine.submit(x) for x in asked]
    for x, future in zip(asked, futures, strict=True):
        try:
            assert future.result(30)[0, 0] == answer_to(x)[0]
        except WorkerLost:
            continue
    requests = engine.statistics().requests
    assert requests.done + requests.failed == requests.admitted == 12


def test_a_worker_that_stops_itself_in_every_batch_is_no_loop(start):
    engine = start(workers=1, max_batch=4)
    with pytest.raises(WorkerLost, match="stopped"):
        engine.submit(row(Verb.STOP_SELF)[None]).result(20)
    assert engine.predict(row(Verb.ANSWER, 0, 1)[None])[0, 0] == 8
    assert engine.statistics().restarts == 2


def test_a_stopped_engine_does_not_hold_up_callers_with_a_deadline(start):
    engine = start(workers=1)
    pid = engine.statistics().pid
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            engine.predict(row(Verb.ANSWER)[None], deadline=0.3)
        assert time.monotonic() - began < 2
        late = engine.submit(row(Verb.ANSWER, 0, 1)[None])
    finally:
        os.kill(pid, signal.SIGCONT)
    assert late.result(10)[0, 0] == 8
    assert engine.predict(row(Verb.ANSWER, 0, 2)[None])[0, 0] == 15


def test_a_stopped_engine_does_not_hold_up_its_owners_close(start):
    engine = start(workers=1)
    workers = worker_pids(engine)
    os.kill(engine.statistics().pid, signal.SIGSTOP)
    began = time.monotonic()
    engine.close(drain=0.2)
    assert time.monotonic() - began < 8
    gone(*workers)
    with pytest.raises(PenstockError):
        engine.predict(row(Verb.ANSWER)[None])


def test_a_row_that_takes_long_keeps_one_worker_busy_and_nobody_waiting(start):
    """While one worker is held up, all others' rows go through the other one."""
    engine = start(workers=2, max_batch=2)
    held = engine.submit(row(Verb.WAIT, 1)[None])
    started(1)
    futures = [engine.submit(row(Verb.SLEEP, 2, number)[None]) for number in range(60)]
    answers = [future.result(10)[0, 0] for future in futures]
    assert answers == [number * 7 + 1 for number in range(60)]
    for number in range(60):
        assert engine.predict(row(Verb.SLEEP, 2, number)[None], deadline=10)[0, 0] == number * 7 + 1
    assert not held.done()
    let_go(1)
    held.result(10)
