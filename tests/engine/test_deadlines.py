"""Deadlines in the engine: refused when they cannot be met, as far as that is known, and no longer.

Batches of `f` hold four rows; a request of one row asks for `within` so many nanoseconds.
"""

from __future__ import annotations

import itertools

import pytest

from penstock.errors import Kind
from penstock.scheduling.abilities import LEAD
from penstock.scheduling.decisions import Closed
from penstock.transport import messages as m
from tests.engine.room import INPUT, SECOND, Room

MS = 1_000_000


def _serve(room: Room, client: int, takes: int, *, rows: int = 1, count: int = 1) -> None:
    """Requests without a deadline, one after the other: their times are learnt."""
    for _ in range(count):
        room.submit(client, 10_000, rows=rows)
        room.step()
        while not room.core.workers[0].batches:  # it waits for rows that were answered before
            wakeup = room.core.wakeup(room.now)
            assert wakeup is not None
            room.step(wakeup - room.now)
        room.finish(takes=takes)
    room.effects.take_clients()
    room.effects.take_workers()


def _ask(room: Room, client: int, number: int, within: int, **changes: int) -> None:
    room.submit(client, number, deadline=room.now + within, **changes)


def _refusals(room: Room, client: int) -> dict[int, str]:
    sent = room.effects.take_clients()
    refused = [entry.record for entry in sent if isinstance(entry.record, m.Refused)]
    assert all(record.kind == Kind.DEADLINE for record in refused)
    assert all(entry.peer == client for entry in sent)
    return {record.request: record.text for record in refused}


def _runs(room: Room) -> list[list[int]]:
    """The requests of each batch that was sent."""
    items = ([m.RunItem(*values) for values in run.record.items] for run in room.runs())
    return [[entry.offset // 1024 for entry in batch] for batch in items]


# ── at admission ───────────────────────────────────────────────────────────────────────────────


def test_what_cannot_be_met_is_refused_when_it_comes(room: Room) -> None:
    client = room.connect()
    _serve(room, client, 20 * MS)
    _ask(room, client, 1, 20 * MS - 1)
    refusals = _refusals(room, client)
    assert list(refusals) == [1]
    assert "cannot be met: 20.0 ms are left" in refusals[1]
    assert "takes about 20.0 ms" in refusals[1]
    assert room.core.admission.admitted == 1
    assert not room.core.clients[client].requests
    _ask(room, client, 2, 20 * MS)
    assert _refusals(room, client) == {}


def test_what_runs_before_it_counts(room: Room) -> None:
    client = room.connect()
    _serve(room, client, 20 * MS)
    room.submit(client, 1)
    room.step()
    room.now += 5 * MS
    _ask(room, client, 2, 35 * MS - 1)
    assert list(_refusals(room, client)) == [2]
    _ask(room, client, 3, 35 * MS)
    assert _refusals(room, client) == {}


def test_the_worker_that_is_free_first_counts(pair_room: Room) -> None:
    room = pair_room
    client = room.connect()
    _serve(room, client, 20 * MS)
    room.submit(client, 1)
    room.step()
    _ask(room, client, 2, 20 * MS)
    assert _refusals(room, client) == {}


def test_a_worker_that_died_is_not_waited_for(room: Room) -> None:
    """Its place is free: what it had will be run again, but that is not begun."""
    client = room.connect()
    _serve(room, client, 900 * MS)
    room.submit(client, 1)
    room.step()
    room.exit(0)
    room.step()
    room.load()
    room.say(client, m.Cancel([(1,)]))
    room.step()
    room.effects.take_clients()
    _ask(room, client, 2, 950 * MS)
    assert _refusals(room, client) == {}
    room.step()
    assert _runs(room)[-1] == [2]


def test_without_a_measurement_nobody_is_refused(room: Room) -> None:
    client = room.connect()
    _ask(room, client, 1, 1)
    assert _refusals(room, client) == {}


def test_what_warm_up_measured_refuses_nobody(room: Room) -> None:
    room.from_worker(0, m.ModelFacts(0, b'{"latency": {"1": 20000000}}'))
    client = room.connect()
    _ask(room, client, 1, MS)
    assert _refusals(room, client) == {}
    room.step()
    assert _runs(room) == [[1]]


def test_a_deadline_counts_for_one_model_only(room: Room) -> None:
    client = room.connect()
    _serve(room, client, 20 * MS)
    _ask(room, client, 1, MS, layout=2)
    assert _refusals(room, client) == {}


# ── probes, and recovery ───────────────────────────────────────────────────────────────────────


def test_when_measurements_are_old_one_is_let_through(room: Room) -> None:
    client = room.connect()
    _serve(room, client, 20 * MS)
    _ask(room, client, 1, MS)
    assert list(_refusals(room, client)) == [1]
    room.step(SECOND + 1)
    _ask(room, client, 2, MS)
    assert _refusals(room, client) == {}
    room.step()
    assert _runs(room) == [[2]]


def test_the_probe_decides_for_those_after_it(room: Room) -> None:
    for took, refused in ((20 * MS, [3]), (MS, [])):
        client = room.connect()
        _serve(room, client, 20 * MS, count=5)
        room.step(SECOND + 1)
        _ask(room, client, 2, 5 * MS)
        room.step()
        room.finish(takes=took)
        room.effects.take_clients()
        _ask(room, client, 3, 5 * MS)
        assert list(_refusals(room, client)) == refused
        room.step(2 * SECOND)
        while room.core.workers[0].batches:
            room.finish()
        room.effects.take_clients()


def test_a_few_slow_batches_do_not_refuse_anybody(room: Room) -> None:
    client = room.connect()
    _serve(room, client, MS, count=5)
    _serve(room, client, 100 * MS, count=2)
    _ask(room, client, 1, 5 * MS)
    assert _refusals(room, client) == {}


def test_after_a_spike_everybody_with_a_deadline_is_served_again(room: Room) -> None:
    """Even if all who come have a deadline, so that nobody runs while they are refused."""
    client = room.connect()
    _serve(room, client, MS, count=5)
    _serve(room, client, 200 * MS, count=5)
    served: list[int] = []
    for number in range(1, 201):
        _ask(room, client, number, 10 * MS)
        room.step()
        if room.core.workers[0].batches:
            room.finish(takes=MS)
            served.append(room.now)
        room.step(10 * MS)
    assert served
    began = served[0]
    assert len(served) > 80
    assert max(b - a for a, b in itertools.pairwise(served)) < 20 * MS
    assert began <= room.now - 900 * MS


def test_a_large_batch_that_was_slow_once_is_tried_again(room: Room) -> None:
    """Its first run was compiled, say. Small ones keep coming, and are quick."""
    client = room.connect()
    _serve(room, client, 400 * MS, rows=4)
    refused = 0
    for number in range(30):
        _serve(room, client, MS)
        room.step(50 * MS)
        _ask(room, client, number, 50 * MS, rows=4)
        refused += len(_refusals(room, client))
        room.step()
        if room.core.workers[0].batches:
            room.finish(takes=5 * MS)
    assert 0 < refused < 25


# ── while it waits ─────────────────────────────────────────────────────────────────────────────


def test_what_can_not_be_met_any_more_is_refused_while_it_waits(room: Room) -> None:
    client = room.connect()
    _serve(room, client, 20 * MS)
    _serve(room, client, 20 * MS, rows=4)
    for number in range(8):
        room.submit(client, number)
    room.step()
    _ask(room, client, 50, 65 * MS)
    assert _refusals(room, client) == {}
    room.step(44 * MS)  # they hang
    assert room.core.wakeup(room.now) == room.now + MS + 1
    room.step(MS)
    assert _refusals(room, client) == {}
    room.step(1)
    refusals = _refusals(room, client)
    assert list(refusals) == [50]
    assert "cannot be met" in refusals[50]


@pytest.mark.parametrize("within", [45, 49])
def test_what_would_be_late_is_not_run(room: Room, within: int) -> None:
    """It is its turn, but the batch would end too late: the others go without it."""
    client, other = room.connect(), room.connect()
    _serve(room, client, 10 * MS)
    _serve(room, client, 30 * MS, rows=4)
    room.submit(client, 1, rows=4)
    room.step()
    _ask(room, client, 2, within * MS)
    for number in range(3):
        room.submit(other, number)
    room.step(30 * MS - 100_000)
    refusals = _refusals(room, client)
    assert list(refusals) == [2]
    assert refusals[2] == "the deadline cannot be met: what is before it takes too long"
    assert _runs(room)[-1] == [0, 1, 2]
    assert room.core.batcher.jobs == 0


def test_a_batch_is_no_larger_than_its_deadlines_allow(room: Room) -> None:
    client = room.connect()
    for rows in (1, 2, 4):
        _serve(room, client, 10 * rows * MS, rows=rows)
    for number in range(4):
        _ask(room, client, number, 25 * MS)
    room.step()
    assert _runs(room) == [[0, 1]]
    assert _refusals(room, client) == {}
    room.finish(takes=20 * MS)
    assert sorted(_refusals(room, client)) == [2, 3]


def test_those_with_a_deadline_are_not_kept_waiting_for_others(room: Room) -> None:
    """Clients that come back after 2 ms are waited for, but not past a deadline."""
    clients = [room.connect() for _ in range(3)]
    lane = room.core.lane(0, INPUT)
    for _ in range(50):
        lane.returns.answered(1 << 50, 1, room.now)
        lane.returns.came(1 << 50, 1, room.now + 2 * MS)
    for rows in (1, 2, 4):
        lane.observe(0, rows, 20 * MS, room.now)
    for client in clients[1:]:
        room.core.batcher.answered(lane, client << 32, 1, room.now)
    _ask(room, clients[0], 1, 20 * MS + LEAD + MS)
    room.step()
    assert not room.core.workers[0].batches
    assert room.core.wakeup(room.now) == room.now + MS
    room.step(MS)
    (batch,) = room.core.workers[0].batches.values()
    assert batch.closed is Closed.DEADLINE


def test_cancelled_requests_are_not_refused_again(room: Room) -> None:
    client = room.connect()
    _serve(room, client, 20 * MS)
    room.submit(client, 1)
    room.step()
    _ask(room, client, 2, 45 * MS)
    room.say(client, m.Cancel([(2,)]))
    assert room.ends(client) == [("Cancelled", 2)]
    room.step(50 * MS)
    assert room.ends(client) == []
