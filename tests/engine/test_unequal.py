"""Unequal workers in the whole core: what they tell, what clients are told, and parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.config import Model
from penstock.transport import messages as m
from tests.engine.recording import Sent
from tests.engine.room import INPUT, Room, believed_segments

MS = 1_000_000
LARGE, SMALL = 0, 1


def _loads(room: Room, worker: int, most: int, hands: int = 1, takes: int = 4 * MS) -> None:
    """A worker tells what its device can hold, and how long that takes."""
    room.from_worker(worker, m.ModelCard(0, most, most, 1, "f"))
    _facts(room, worker, most, takes)
    room.from_worker(worker, m.Loaded(1, hands))


def _facts(room: Room, worker: int, most: int, takes: int = 4 * MS) -> None:
    facts = {"max_batch": most, "ladder": [], "latency": {"1": takes, str(most): takes}}
    room.from_worker(worker, m.ModelFacts(0, json.dumps(facts).encode()))


@pytest.fixture(params=[(LARGE, SMALL), (SMALL, LARGE)], ids=["large first", "small first"])
def room(request: pytest.FixtureRequest) -> Iterator[Room]:
    """Two workers, of which one holds 16 rows and the other one 4; either tells first."""
    with believed_segments():
        made = Room((Model("m:f", name="f"),), workers=2)
        for worker in request.param:
            _loads(made, worker, {LARGE: 16, SMALL: 4}[worker])
        yield made
        made.leave()


def _client(room: Room) -> int:
    client = room.connect(layouts=False)
    room.say(client, m.Layout(1, 0, INPUT))
    return client


def _told(room: Room, client: int) -> m.ModelCard:
    cards = [sent.record for sent in room.effects.clients if isinstance(sent.record, m.ModelCard)]
    assert cards
    return cards[-1]


def _rows(run: Sent) -> int:
    return sum(m.RunItem(*values).rows for values in run.record.items)


def _work_off(room: Room) -> list[tuple[int, int]]:
    """Until nothing is left; returns the batches as (worker, rows)."""
    batches: list[tuple[int, int]] = []
    for _ in range(100):
        room.step(5 * MS)
        runs = room.runs()
        batches += [(run.peer, _rows(run)) for run in runs]
        for worker in room.core.workers:
            for number in list(worker.batches):
                room.answer(worker.index, number)
        if not room.core.batcher.jobs and not any(w.batches for w in room.core.workers):
            room.step()
            return batches
    raise AssertionError("there is no end of batches")


def _model(room: Room, client: int) -> Any:
    return room.ask(client, m.ASK_STATISTICS)["models"][0]


def test_no_batch_is_larger_than_its_worker_can_hold(room: Room) -> None:
    client = _client(room)
    for number in range(100):
        room.submit(client, number)
    batches = _work_off(room)
    assert max(rows for worker, rows in batches if worker == LARGE) == 16
    assert max(rows for worker, rows in batches if worker == SMALL) == 4
    assert len(room.ends(client)) == 100


def test_clients_are_told_of_both_whoever_tells_first(room: Room) -> None:
    client = _client(room)
    card = _told(room, client)
    assert (card.max_batch, card.request_rows) == (16, 4)


def test_statistics_show_what_each_worker_can_hold(room: Room) -> None:
    client = _client(room)
    model = _model(room, client)
    assert (model["max_batch"], model["limits"]) == (16, {"0": 16, "1": 4})
    _facts(room, LARGE, 2)
    model = _model(room, client)
    assert (model["max_batch"], model["limits"]) == (4, {"0": 2, "1": 4})


def test_a_worker_that_runs_out_of_memory_cuts_no_other(room: Room) -> None:
    client = _client(room)
    _facts(room, SMALL, 1)
    for number in range(100):
        room.submit(client, number)
    batches = _work_off(room)
    assert max(rows for worker, rows in batches if worker == LARGE) == 16
    assert {rows for worker, rows in batches if worker == SMALL} == {1}


def test_a_request_that_is_larger_than_a_worker_can_hold_is_answered_in_parts(room: Room) -> None:
    client = _client(room)
    for number in range(4):
        room.submit(client, number, rows=16)
    room.effects.take_clients()
    batches = _work_off(room)
    assert {rows for worker, rows in batches if worker == SMALL} == {4}
    sent = [sent.record for sent in room.effects.take_clients()]
    for number in range(4):
        parts = [each for each in sent if isinstance(each, m.Part) and each.request == number]
        covered = sorted(row for part in parts for row in range(part.start, part.start + part.rows))
        assert covered in ([], list(range(16)))  # in parts, or as a whole
    done = [entry[0] for record in sent if isinstance(record, m.Done) for entry in record.items]
    assert sorted(done) == [0, 1, 2, 3]
    told = room.ask(client, m.ASK_STATISTICS)
    assert (told["requests"]["done"], told["requests"]["queued"]) == (4, 0)


def test_a_request_that_was_cut_is_cancelled_as_a_whole(room: Room) -> None:
    client = _client(room)
    for number in (0, 1):
        room.submit(client, number, rows=16)
    room.step()
    room.say(client, m.Cancel([(0,), (1,)]))
    _work_off(room)
    assert sorted(room.ends(client)) == [("Cancelled", 0), ("Cancelled", 1)]


def test_a_part_whose_worker_dies_is_run_again_and_the_request_answered_once(room: Room) -> None:
    client = _client(room)
    for number in range(3):
        room.submit(client, number, rows=16)
    room.step()
    assert all(worker.inflight for worker in room.core.workers)
    room.exit(SMALL)
    _work_off(room)
    assert sorted(room.ends(client)) == [("Done", 0), ("Done", 1), ("Done", 2)]


def test_what_clients_were_told_stays_true_when_a_worker_comes_back_with_less(room: Room) -> None:
    """A client goes on to send what it was told fits: it is not refused."""
    client = _client(room)
    room.exit(LARGE)
    room.step(5_000 * MS)
    _loads(room, LARGE, 2)
    room.submit(client, 1, rows=16)
    room.submit(client, 2, rows=4)
    batches = _work_off(room)
    assert all(rows <= {LARGE: 2, SMALL: 4}[worker] for worker, rows in batches)
    assert sorted(room.ends(client)) == [("Done", 1), ("Done", 2)]
    card = _told(room, _client(room))
    assert (card.max_batch, card.request_rows) == (16, 4)


def test_a_worker_that_comes_back_with_more_gets_more(room: Room) -> None:
    client = _client(room)
    room.exit(SMALL)
    room.step(5_000 * MS)
    _loads(room, SMALL, 16)
    for number in range(100):
        room.submit(client, number)
    batches = _work_off(room)
    assert max(rows for worker, rows in batches if worker == SMALL) == 16


def test_one_that_finds_rows_dependent_has_them_run_one_request_at_a_time() -> None:
    with believed_segments():
        room = Room((Model("m:f", name="f"),), workers=2)
        room.from_worker(0, m.ModelCard(0, 4, 4, 0, "f"))
        room.from_worker(1, m.ModelCard(0, 4, 4, 1, "f"))
        room.load()
        client = _client(room)
        assert not _told(room, client).batched
        room.leave()


def test_the_times_of_a_slow_worker_are_its_own() -> None:
    with believed_segments():
        room = Room((Model("m:f", name="f", max_batch=4),), workers=2)
        _loads(room, 0, 4, takes=2 * MS)
        _loads(room, 1, 4, takes=80 * MS)
        client = _client(room)
        for number in range(8):
            room.submit(client, number)
        room.step()
        fast, slow = room.core.workers
        assert (fast.free_at, slow.free_at) == (room.now + 2 * MS, room.now + 80 * MS)
        room.now += 2 * MS
        room.finish(0)
        room.finish(1, takes=78 * MS)
        lane = room.core.lane(0, INPUT)
        assert (lane.on(0).cost(4), lane.on(1).cost(4)) == (2 * MS, 80 * MS)
        room.submit(client, 20, deadline=room.now + 10 * MS)  # the fast one can
        room.step(2 * MS)
        assert (fast.inflight, slow.inflight) == (1, 0)
        room.leave()
