"""Clients that are within their rights and read late get every answer; others do not notice."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import numpy as np
import pytest

from penstock import Model
from tests.faults import leftovers
from tests.faults.company import outstanding
from tests.faults.files import let_go, source, started
from tests.faults.models import Verb, row
from tests.faults.waiting import eventually

_ONLY = "inflate_when_let_go"
_ENOUGH = 64 << 10  # kilobytes of memory that such a client may cost the engine


@pytest.fixture
def engine(start):
    names = ("act", "inflate", "inflate_even")
    return start([Model(source(name), max_batch=4096) for name in names], workers=1)


@pytest.mark.parametrize(
    ("model", "outcome"),
    [
        ("inflate", {"right": 1000}),
        ("inflate_even", {"right": 500, "ModelError": 500}),
    ],
)
def test_stopped_while_answers_and_errors_pile_up(engine, peer, bystander, model, outcome):
    """Answers with descriptors, and errors with long texts: none is small."""
    pid = engine.statistics().pid
    before = leftovers.footprint(pid)
    waiting = engine.submit(row(Verb.WAIT, 1)[None], model="act")
    started(1)
    other = peer("many", engine.address, model, 1000)
    assert other.says() == "submitted"
    eventually(lambda: outstanding(engine) == 1 + 1000)
    other.signal(signal.SIGSTOP)
    let_go(1)
    waiting.result(20)
    eventually(lambda: outstanding(engine) == 0, 20)
    bystander(engine, "act").go_on()
    assert leftovers.footprint(pid).kilobytes < before.kilobytes + _ENOUGH
    other.signal(signal.SIGCONT)
    other.tell("results")
    assert other.says(30) == outcome
    few = before.descriptors + 20  # those of two more clients and their memory
    eventually(lambda: leftovers.footprint(pid).descriptors < few)


def test_a_call_of_more_parts_than_a_process_may_have_descriptors(engine, peer):
    other = peer("many", engine.address, "inflate_even", 1000, 64)
    assert other.says() == "submitted"
    other.tell("results")
    assert other.says(30) == {"500 rows failed": 1, "500 of 500 rows right": 1}


def test_when_an_engine_runs_out_of_descriptors_one_goes_and_others_are_served(
    peer, client, run_folder
):
    """Two are stopped; what is kept for both is more than the engine may have open."""
    owner = peer("own_with_few", run_folder, source(_ONLY), 1024, 64)
    address, pid, (worker,) = owner.says()
    engine = SimpleNamespace(address=address)
    asked = {550: peer("many", address, _ONLY, 550), 650: peer("many", address, _ONLY, 650)}
    for other in asked.values():
        assert other.says() == "submitted"
        other.signal(signal.SIGSTOP)
    let_go(1)
    onlooker = client(engine)

    def done():
        left = [one for one in onlooker.statistics().clients if one.pid in pids]
        return len(left) == 1 and not left[0].outstanding

    pids = [other.pid for other in asked.values()]
    eventually(done, 30, "one was dropped, the other one's requests are done")
    assert onlooker.predict(np.full((3, 1), 7))[:, 0].tolist() == [7, 7, 7]
    statistics = onlooker.statistics()
    assert (statistics.deaths, statistics.workers[0].pid) == (0, worker)
    assert leftovers.footprint(pid).descriptors < 1024
    outcomes = {}
    for count, other in asked.items():
        other.signal(signal.SIGCONT)
        other.tell("results")
        outcomes[count] = other.says(30)
    (dropped,) = [count for count, outcome in outcomes.items() if "EngineClosed" in outcome]
    assert set(outcomes.pop(dropped)) <= {"right", "EngineClosed"}
    assert outcomes in ({550: {"right": 550}}, {650: {"right": 650}})
