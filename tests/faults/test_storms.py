"""Thousands of requests that are cancelled, expire, carry what is broken or lose their client.

In the end all is free. In `test_ten_thousand_requests_in_bad_company` all of that happens at once.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections import Counter
from concurrent.futures import CancelledError

import numpy as np
import pytest

from penstock import connect
from penstock.config import EngineConfig
from penstock.errors import DeadlineExceeded, InputError, PenstockError
from penstock.transport.arena import SlotState
from penstock.transport.channel import Closed
from tests.faults import leftovers
from tests.faults.company import Peer, healthy, others, outstanding, worker_pids
from tests.faults.models import Verb, answer_to, row
from tests.faults.raw import RawClient, nonsense
from tests.faults.waiting import eventually


def _all_free(client) -> bool:
    """Whether every slot and credit of a client is free, and nothing is on its way."""
    session = client._session()
    allowance = session._allowance
    with session.lock:
        states = {slot.state for block in allowance._arena._blocks.values() for slot in block.slots}
        unused = allowance._credits == EngineConfig.client_requests
        return not session.pending and unused and states <= {SlotState.FREE}


# What no model here can answer, and what the client does not even send.
_BROKEN = (
    np.array([[999, 0, 0]]),
    np.array([[7]]),
    np.full((1, 5), np.nan),
    np.array([["\0", "é", ""]]),
    np.zeros((1, 0), np.float32),
    np.array([[object()]]),
    np.float32(1.0),
    {"number": np.zeros((1, 3)), "data": np.zeros((2, 3))},
)


_COUNTING = threading.Lock()


def _storm(client, seed: int, count: int, outcomes: Counter[str], broken: float = 0.0) -> None:
    """Ask for `count` things in many ways; note what came of each. `broken`: how many are."""
    chance = random.Random(seed)
    own: Counter[str] = Counter()
    open_calls = []
    for number in range(count):
        verb, argument = chance.choice(
            [(Verb.ANSWER, 0), (Verb.ANSWER, 0), (Verb.SLEEP, 1), (Verb.RAISE, 1)]
        )
        right = verb is not Verb.RAISE
        x = row(verb, argument, number, chance.choice([0, 8, 512]))[None]
        if chance.random() < broken:
            right = False
            x = _BROKEN[chance.randrange(len(_BROKEN))]
        deadline = chance.choice([None, None, 10, 0.0005, 0.002, 0.01])
        try:
            answer = client.submit(x, deadline=deadline, priority=chance.randint(-1, 1))
        except (DeadlineExceeded, InputError) as error:
            own[type(error).__name__] += 1
            continue
        if chance.random() < 0.3:
            answer.cancel()
        open_calls.append((x if right else None, answer))
        if chance.random() < 0.05:
            victim = chance.choice(open_calls)[1]
            victim.cancel()
        if len(open_calls) >= 64:
            _settle(open_calls, own)
    _settle(open_calls, own)
    with _COUNTING:
        outcomes.update(own)


def _settle(open_calls, outcomes: Counter[str]) -> None:
    for x, answer in open_calls:
        try:
            told = answer.result(30)
            right = x is not None and told[0, 0] == answer_to(x)[0]
            outcomes["right" if right else "WRONG"] += 1
        except (PenstockError, CancelledError) as error:
            cancelled = isinstance(error, CancelledError)
            outcomes["cancelled" if cancelled else type(error).__name__] += 1
    open_calls.clear()


def _held_by_those_who_are_here(engine) -> bool:
    """Whether the engine has the segments of its clients, and no other."""
    now = engine.statistics()
    return leftovers.segments_held(now.pid) == sum(client.segments for client in now.clients)


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


def _leave(address, chance: random.Random) -> None:
    """A client that leaves while its requests wait or run."""
    with connect(str(address), wait=20) as client:
        for _ in range(chance.randint(1, 40)):
            client.submit(row(chance.choice([Verb.ANSWER, Verb.SLEEP]), 1)[None])


def _lie(address, chance: random.Random) -> None:
    """A client whose request is not where it says, after a few that are."""
    with RawClient(address) as client:
        descriptor, mapping = client.segment(1 << 16)
        os.close(descriptor)
        x = row(Verb.ANSWER, 0, 1)[None]
        client.layout(x)
        for _ in range(5):
            client.ask(x, mapping)
        where = chance.choice([{"offset": 1 << 16}, {"offset": 2**64 - 64}, {"segment": 9}])
        with contextlib.suppress(Closed):
            client.submit(rows=1, input_bytes=64, length=4096, **where)
        assert client.why_closed()


def _vanish(address, chance: random.Random) -> None:
    """Another process that dies with requests on their way."""
    with Peer("vanish", address, 1) as other:
        if chance.random() < 0.5:
            other.signal(signal.SIGKILL)
        other.wait()


def _in_bad_company(address, seed: int, over: threading.Event, faults: Counter[str]) -> None:
    """One after the other, until the storm is over."""
    chance = random.Random(seed)
    while not over.is_set():
        for deed in (_vanish, *[nonsense, _leave, _lie] * 5):
            try:
                deed(address, chance)
            except Exception as error:
                faults[f"{deed.__name__}: {error!r}"] += 1
                return
            faults[deed.__name__] += 0


@pytest.mark.slow
def test_ten_thousand_requests_in_bad_company(start, client, bystander):
    engine = start(workers=2, max_batch=16)
    onlooker = bystander(engine)
    onlooker.go_on()
    pid = engine.statistics().pid
    clients = [engine.client, client(engine), client(engine)]
    outcomes: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    over = threading.Event()
    storms = [
        threading.Thread(target=_storm, args=(clients[n % 3], n, 2000, outcomes, 0.1))
        for n in range(5)
    ]
    company = [
        threading.Thread(target=_in_bad_company, args=(engine.address, n, over, faults))
        for n in range(2)
    ]
    for thread in (*storms, *company):
        thread.start()
    try:
        for thread in storms:
            thread.join(50)
    finally:
        over.set()
        for thread in company:
            thread.join(20)
    onlooker.go_on()
    assert not faults.total(), faults
    assert set(faults) == {"_vanish", "nonsense", "_leave", "_lie"}, "all were there"
    assert sum(outcomes.values()) == 10_000, "every call ended"
    allowed = {"right", "DeadlineExceeded", "cancelled", "ModelError", "InputError"}
    assert set(outcomes) == allowed, outcomes
    assert min(outcomes.values()) > 300, outcomes
    eventually(lambda: not others(engine), what="the company is gone")
    for one in clients:
        eventually(lambda one=one: _all_free(one), what="every slot is free")
    assert engine.statistics().pid == pid
    assert engine.statistics().deaths == 0
    eventually(lambda: _held_by_those_who_are_here(engine), what="no segment of others is kept")


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
    eventually(lambda: _held_by_those_who_are_here(engine))
    assert sum(outcomes.values()) == 1500
    assert outcomes["WRONG"] == 0
    assert engine.statistics().deaths == 0
