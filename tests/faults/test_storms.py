"""Thousands of requests that are cancelled, expire or lose their client: in the end all is free."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections import Counter
from concurrent.futures import CancelledError

import pytest

from penstock.config import EngineConfig
from penstock.errors import DeadlineExceeded, PenstockError
from penstock.transport.arena import SlotState
from tests.faults import leftovers
from tests.faults.company import Peer, healthy, others, outstanding, worker_pids
from tests.faults.models import Verb, answer_to, row
from tests.faults.waiting import eventually


def _all_free(client) -> bool:
    """Whether every slot and credit of a client is free, and nothing is on its way."""
    session = client._session()
    allowance = session._allowance
    with session.lock:
        states = {slot.state for block in allowance._arena._blocks.values() for slot in block.slots}
        unused = allowance._credits == EngineConfig.client_requests
        return not session.pending and unused and states <= {SlotState.FREE}


def _storm(client, seed: int, count: int, outcomes: Counter[str]) -> None:
    """Ask for `count` things in many ways; note what came of each."""
    chance = random.Random(seed)
    open_calls = []
    for number in range(count):
        verb, argument = chance.choice(
            [(Verb.ANSWER, 0), (Verb.ANSWER, 0), (Verb.SLEEP, 1), (Verb.RAISE, 1)]
        )
        x = row(verb, argument, number, chance.choice([0, 8, 512]))[None]
        deadline = chance.choice([None, None, 10, 0.0005, 0.002, 0.01])
        try:
            answer = client.submit(x, deadline=deadline, priority=chance.randint(-1, 1))
        except DeadlineExceeded:
            outcomes["DeadlineExceeded"] += 1
            continue
        if chance.random() < 0.3:
            answer.cancel()
        open_calls.append((x, answer))
        if chance.random() < 0.05:
            victim = chance.choice(open_calls)[1]
            victim.cancel()
        if len(open_calls) >= 64:
            _settle(open_calls, outcomes)
    _settle(open_calls, outcomes)


def _settle(open_calls, outcomes: Counter[str]) -> None:
    for x, answer in open_calls:
        try:
            right = answer.result(30)[0, 0] == answer_to(x)[0]
            outcomes["right" if right else "WRONG"] += 1
        except (PenstockError, CancelledError) as error:
            cancelled = isinstance(error, CancelledError)
            outcomes["cancelled" if cancelled else type(error).__name__] += 1
    open_calls.clear()


def _quiet(engine) -> bool:
    now = engine.statistics()
    return (
        now.requests.queued == 0
        and now.requests.queued_rows == 0
        and all(client.outstanding == 0 for client in now.clients)
        and all(worker.inflight == 0 for worker in now.workers)
    )


@pytest.mark.parametrize("workers_die", [False, True], ids=["workers live", "workers die"])
def test_cancels_and_deadlines(start, client, workers_die):
    engine = start(workers=2, max_batch=16, restarts=1000)
    clients = [engine.client, client(engine), client(engine)]
    outcomes: Counter[str] = Counter()
    threads = [
        threading.Thread(target=_storm, args=(clients[n % 3], n, 700, outcomes)) for n in range(5)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if workers_die:
            leftovers.kill(next(filter(None, worker_pids(engine)), 0) or -1)
            healthy(engine)
        for thread in threads:
            thread.join(0.2)
    eventually(lambda: _quiet(engine), what="nothing queued, nothing outstanding")
    for one in clients:
        eventually(lambda one=one: _all_free(one), what="every slot is free")
    assert sum(outcomes.values()) == 3500, "every call ended"
    assert outcomes["WRONG"] == 0
    allowed = {"right", "DeadlineExceeded", "cancelled", "ModelError", "WRONG"}
    assert set(outcomes) <= allowed | ({"WorkerLost"} if workers_die else set()), outcomes
    assert outcomes["right"] > 300
    assert outcomes["cancelled"] > 300
    assert outcomes["DeadlineExceeded"] > 100


def test_a_client_of_many_threads_keeps_to_what_it_may_have(start, client):
    """More threads than requests that may be outstanding: they wait, and none is thrown out."""
    engine = start(workers=2, client_requests=4)
    other = client(engine)
    faults: list[Exception] = []

    def ask() -> None:
        try:
            for number in range(100):
                x = row(Verb.ANSWER, 0, number, 2000)[None]
                assert other.predict(x, deadline=30)[0, 0] == answer_to(x)[0]
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert not faults, faults


def test_clients_that_die_early(start, client, bystander, folder):
    engine = start(workers=2, max_batch=16)
    onlooker = bystander(engine)
    outcomes: Counter[str] = Counter()
    chance = random.Random(3)
    storm = threading.Thread(target=_storm, args=(client(engine), 1, 1500, outcomes))
    storm.start()
    for _ in range(6):
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(Peer("vanish", engine.address, 1)) for _ in range(2)]
            if chance.random() < 0.5:
                peers[0].signal(signal.SIGKILL)
            for other in peers:
                other.wait()
    storm.join(60)
    onlooker.go_on()
    eventually(lambda: not others(engine))
    eventually(lambda: outstanding(engine) <= 1)
    pid = engine.statistics().pid
    eventually(
        lambda: (
            leftovers.segments_held(pid) == sum(one.segments for one in engine.statistics().clients)
        )
    )
    assert sum(outcomes.values()) == 1500
    assert outcomes["WRONG"] == 0
    assert engine.statistics().deaths == 0
