"""What a worker tells of its models, whom a client speaks for, and what models weigh."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.config import Model
from penstock.spec import TensorSpec
from penstock.transport import messages as m
from tests.engine.room import INPUT, Room, believed_segments

MS = 1_000_000
OTHER = (TensorSpec("float32", (8,)),)


def _facts(room: Room, model: int = 0, worker: int = 0, **facts: Any) -> None:
    room.from_worker(worker, m.ModelFacts(model, json.dumps(facts).encode()))


def _sizes(room: Room) -> list[int]:
    return [sum(m.RunItem(*values).rows for values in run.record.items) for run in room.runs()]


# ── facts ──────────────────────────────────────────────────────────────────────────────────────


def test_the_ladder_and_the_times_of_warm_up_are_known_to_every_lane(room: Room) -> None:
    _facts(room, ladder=[4, 1, 2], latency={"1": 10 * MS, "4": 25 * MS})
    lane = room.core.lane(0, INPUT).on(0)
    assert lane.ladder == (1, 2, 4)
    assert (lane.cost(1), lane.cost(3), lane.cost(4)) == (10 * MS, 25 * MS, 25 * MS)
    other = room.core.lane(1, INPUT).on(0)
    assert (other.ladder, other.cost(1)) == ((), 0)


def test_what_becomes_known_later_reaches_lanes_that_are_there(room: Room) -> None:
    """Sizes become warm one after the other, while the first are at work."""
    client = room.connect()
    lane = room.core.lane(0, INPUT).on(0)
    room.submit(client, 1)
    room.step()
    room.finish(takes=8 * MS)
    _facts(room, ladder=[1], latency={"1": 10 * MS})
    assert (lane.ladder, lane.cost(1)) == ((1,), 8 * MS)  # a measurement at work is worth more
    _facts(room, ladder=[1, 4], latency={"1": 10 * MS, "4": 25 * MS})
    assert (lane.ladder, lane.cost(1), lane.cost(4)) == ((1, 4), 8 * MS, 25 * MS)
    new = room.core.lane(0, OTHER).on(0)
    assert (new.ladder, new.cost(4)) == ((1, 4), 25 * MS)


def test_a_model_without_facts_has_no_ladder(room: Room) -> None:
    _facts(room, mode="plain")
    lane = room.core.lane(0, INPUT).on(0)
    assert (lane.ladder, lane.cost(4)) == ((), 0)


def test_facts_are_told_in_the_statistics(room: Room) -> None:
    client = room.connect()
    _facts(room, ladder=[1, 2, 4], latency={"1": 10}, mode="frozen", notes=["quick"])
    first, second, _ = room.ask(client, m.ASK_STATISTICS)["models"]
    assert first["facts"] == {
        "ladder": [1, 2, 4],
        "latency": {"1": 10},
        "mode": "frozen",
        "notes": ["quick"],
    }
    assert second["facts"] == {}


def test_a_size_is_filled_where_padding_would_cost_more(room: Room) -> None:
    client = room.connect()
    _facts(room, ladder=[1, 2, 4], latency={"1": 10 * MS, "2": 20 * MS, "4": 40 * MS})
    for number in range(3):
        room.submit(client, number)
    room.step()
    assert _sizes(room) == [2]
    assert room.ask(client, m.ASK_STATISTICS)["models"][0]["closed"] == {"fitting": 1}
    room.finish(takes=20 * MS, size=2)
    assert _sizes(room) == [1]


def test_what_is_not_batched_is_not_cut_by_a_ladder(room: Room) -> None:
    client = room.connect()
    _facts(room, 1, ladder=[1, 2, 4], latency={"1": 10 * MS, "2": 20 * MS, "4": 40 * MS})
    for number in range(3):
        room.submit(client, number, layout=2)
    room.step()
    assert _sizes(room) == [1]
    assert room.ask(client, m.ASK_STATISTICS)["models"][1]["closed"] == {"single": 1}


def test_a_batch_is_measured_at_the_size_at_which_it_ran(room: Room) -> None:
    client = room.connect()
    _facts(room, ladder=[1, 4])
    room.submit(client, 1, rows=2)
    room.step()
    room.finish(takes=9 * MS, size=4)
    lane = room.core.lane(0, INPUT).on(0)
    assert lane.cost(4) == lane.cost(2) == 9 * MS
    assert lane.fresh(2, room.now)


def test_workers_are_expected_to_need_what_warm_up_measured(room: Room) -> None:
    client = room.connect()
    _facts(room, ladder=[1, 4], latency={"1": 10 * MS, "4": 25 * MS})
    room.submit(client, 1, rows=3)
    room.step()
    assert room.core.workers[0].free_at == room.now + 25 * MS


# ── whom a client speaks for ───────────────────────────────────────────────────────────────────


def _order(room: Room) -> list[int]:
    """The requests in the order in which they run."""
    order: list[int] = []
    for _ in range(200):
        for run in room.runs():
            order += [m.RunItem(*values).offset // 1024 for values in run.record.items]
        if not room.core.workers[0].batches:
            return order
        room.finish(takes=MS)
        room.step(2 * MS)
    raise AssertionError("there is no end of batches")


def _busy(room: Room) -> int:
    client = room.connect()
    room.submit(client, 500)
    room.step()
    return client


def test_callers_behind_one_client_take_turns(room: Room) -> None:
    client = _busy(room)
    for number in range(40):
        room.submit(client, number, caller=1)
    room.submit(client, 100, caller=2)
    room.submit(client, 101, caller=3)
    order = _order(room)
    assert set(order[1:5]) >= {100, 101}
    assert len(order) == 43


def test_one_client_with_one_caller_has_no_turns(room: Room) -> None:
    client = _busy(room)
    for number in range(8):
        room.submit(client, number, caller=7)
    assert _order(room) == [500, *range(8)]


def test_callers_of_different_clients_are_not_the_same(room: Room) -> None:
    client, other = _busy(room), room.connect()
    for number in range(40):
        room.submit(client, number, caller=1)
    room.submit(other, 100, caller=1)
    assert 100 in _order(room)[1:5]


@pytest.mark.parametrize("caller", [0, 1, 2**32 - 1])
def test_any_number_may_name_a_caller(room: Room, caller: int) -> None:
    client = room.connect()
    room.submit(client, 1, caller=caller)
    room.step()
    (batch,) = room.core.workers[0].batches.values()
    assert batch.jobs[0].fairness == client << 32 | caller
    room.finish()
    assert ("Done", 1) in room.ends(client)


def test_each_caller_is_expected_back_for_itself(room: Room) -> None:
    client = room.connect()
    for caller in (1, 2, 3):
        room.submit(client, caller, caller=caller)
    room.step()
    room.finish(takes=5 * MS)
    lane = room.core.lane(0, INPUT)
    assert lane.returns.expected(room.now)[0] == 3
    room.submit(client, 9, caller=2)
    assert lane.returns.expected(room.now)[0] == 2


# ── what models weigh ──────────────────────────────────────────────────────────────────────────


def test_models_share_a_busy_worker_by_weight() -> None:
    models = (Model("m:f", name="f", max_batch=4), Model("m:g", name="g", max_batch=4, weight=3.0))
    with believed_segments():
        room = Room(models)
        room.load()
        client = room.connect()
        takes = {0: 5 * MS, 1: 2 * MS}
        had = {0: 0, 1: 0}
        for number in range(3_000):
            room.submit(client, number, layout=number % 2 + 1)
        room.step()
        for _ in range(400):
            running = next(iter(room.core.workers[0].batches.values())).lane.model
            room.finish(takes=takes[running])
            had[running] += takes[running]
        assert had[1] / had[0] == pytest.approx(3.0, rel=0.1)
        room.leave()
