"""Series: requests that come, wait and run as one, and end one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.engine.requests import Series
from penstock.errors import Kind
from penstock.spec import TensorSpec
from penstock.transport import messages as m
from tests.engine.room import OUTPUT, SECOND, SEGMENT_BYTES, Room, believed_segments, item

_FIRST = 20


def _asks(room: Room, requests: int, **changes: int) -> int:
    """A client that has asked for a series, from request 20 on."""
    client = room.connect()
    room.effects.take_clients()
    room.submit(client, _FIRST, requests=requests, **changes)
    room.step()
    return client


def _ran(room: Room) -> list[list[m.RunItem]]:
    """The items of every batch that was sent since the last time."""
    return [[m.RunItem(*values) for values in run.record.items] for run in room.runs()]


def _numbers(*offsets: int) -> list[tuple[str, int]]:
    return [("Done", _FIRST + offset) for offset in offsets]


def _answered(room: Room) -> list[tuple[int, int]]:
    """Whose requests were answered since the last time."""
    sent = room.effects.take_clients()
    done = [(each.peer, each.record) for each in sent if isinstance(each.record, m.Done)]
    return [(peer, number) for peer, record in done for number, _ in record.items]


def _busy(room: Room, *, takes: int = SECOND) -> None:
    """The worker has a batch that will take long: what comes now waits."""
    other = room.connect()
    room.submit(other, 1)
    room.step()
    room.finish(takes=takes)
    room.submit(other, 2)
    room.step()
    room.runs()


def test_is_one_item_of_a_batch_and_every_request_is_answered(room: Room) -> None:
    client = _asks(room, 3)
    assert _ran(room) == [[m.RunItem(client, 1, 1024 * _FIRST, 1024, 64, 3, 0, 3, 1)]]
    assert room.ends(client) == []
    assert len(room.core.clients[client].requests) == 3
    room.finish()
    assert room.ends(client) == _numbers(0, 1, 2)
    assert room.core.clients[client].requests == {}
    assert room.core.answers.ended == {"done": 3}
    room.leave()


def test_a_batch_takes_as_many_of_it_as_have_room(room: Room) -> None:
    """The first ones are answered when they are done, not when the last ones are."""
    client = _asks(room, 7)
    room.finish()
    assert room.ends(client) == _numbers(0, 1, 2, 3)
    room.finish()
    assert room.ends(client) == _numbers(4, 5, 6)
    assert [[(one.start, one.rows) for one in items] for items in _ran(room)] == [
        [(0, 4)],
        [(4, 3)],
    ]
    room.leave()


def test_those_of_others_fill_the_batch(room: Room) -> None:
    _busy(room)
    clients = [_asks(room, 3), _asks(room, 3)]
    (items,) = _ran(room)  # a full one, and two rows that wait
    assert [(one.client, one.start, one.rows) for one in items] == [
        (clients[0], 0, 3),
        (clients[1], 0, 1),
    ]
    room.finish()
    room.effects.take_clients()
    room.finish()
    assert _answered(room) == [(clients[0], n) for n in (20, 21, 22)] + [(clients[1], 20)]
    room.step(SECOND)
    room.finish()
    assert _answered(room) == [(clients[1], 21), (clients[1], 22)]
    room.leave()


def test_one_that_is_cancelled_while_it_waits_is_not_run(room: Room) -> None:
    _busy(room)
    client = _asks(room, 3)
    room.say(client, m.Cancel([(_FIRST + 1,), (_FIRST + 1,)]))
    assert room.ends(client) == [("Cancelled", _FIRST + 1)]
    assert room.core.batcher.requests == room.core.batcher.rows == 2
    room.finish()
    (items,) = _ran(room)
    assert [(one.start, one.rows) for one in items] == [(0, 1), (2, 1)]
    room.finish()
    assert room.ends(client) == _numbers(0, 2)
    room.leave()


def test_the_others_keep_their_place_in_line(room: Room) -> None:
    _busy(room)
    client = room.connect()
    room.submit(client, _FIRST, requests=2)
    room.submit(client, 90)
    room.say(client, m.Cancel([(_FIRST,)]))
    room.finish()
    (items,) = _ran(room)
    assert [one.offset // 1024 + one.start for one in items] == [_FIRST + 1, 90]
    room.leave()


def test_one_that_is_cancelled_while_it_runs_is_told_when_its_slot_is_free(room: Room) -> None:
    client = _asks(room, 3)
    room.say(client, m.Cancel([(_FIRST + 2,)]))
    assert room.ends(client) == []
    room.finish()
    assert sorted(room.ends(client)) == [("Cancelled", _FIRST + 2), *_numbers(0, 1)]
    assert room.core.answers.ended == {"done": 2, "cancelled": 1}
    room.leave()


def test_all_are_cancelled_one_by_one(room: Room) -> None:
    _busy(room)
    client = _asks(room, 3)
    for number in (_FIRST + 1, _FIRST, _FIRST + 2):
        room.say(client, m.Cancel([(number,)]))
    assert sorted(room.ends(client)) == [("Cancelled", _FIRST + n) for n in range(3)]
    assert room.core.batcher.rows == 0
    room.say(client, m.DropSegment(1))  # nothing lies in it any more
    assert not room.effects.disconnected
    room.leave()


def test_its_rows_run_alone_after_their_worker_died(room: Room) -> None:
    """The one that kills its worker again fails, and what was cancelled meanwhile is not run."""
    client = _asks(room, 3)
    room.runs()
    room.say(client, m.Cancel([(_FIRST,)]))
    room.exit(0)
    assert room.ends(client) == [("Cancelled", _FIRST)]
    room.step(SECOND)
    room.load(0)
    room.step()
    assert [[(one.start, one.rows) for one in items] for items in _ran(room)] == [[(1, 1)]]
    room.exit(0)
    room.step(SECOND)
    room.load(0)
    room.step()
    assert room.ends(client) == [("Failed", _FIRST + 1)]
    room.finish()
    assert room.ends(client) == _numbers(2)
    room.leave()


def test_what_its_worker_had_not_begun_goes_to_the_front_without_the_cancelled(room: Room) -> None:
    client = room.connect()
    room.learn(client)
    room.submit(client, 1)
    room.step()
    room.submit(client, _FIRST, requests=4)
    room.step()
    assert len(_ran(room)) == 2
    room.say(client, m.Cancel([(_FIRST + 3,)]))
    room.exit(0)
    assert room.ends(client) == [("Cancelled", _FIRST + 3)]
    room.step(SECOND)
    room.load(0)
    room.step()
    (items,) = _ran(room)
    assert [(one.start, one.rows, one.series) for one in items] == [(0, 3, 1)]
    room.leave()


def test_rows_that_raise_fail_and_the_others_are_answered(room: Room) -> None:
    client = _asks(room, 4)
    (run,) = room.runs()
    room.from_worker(0, m.OutputLayout(1, OUTPUT))
    room.from_worker(0, m.ItemPart(run.record.batch, 0, 0, 1, 1, 0, 0))
    room.from_worker(0, m.ItemFailed(run.record.batch, 0, 1, 1, Kind.MODEL, "no\0Traceback"))
    room.from_worker(0, m.ItemPart(run.record.batch, 0, 2, 2, 1, 0, 0))
    room.from_worker(0, m.Ran(run.record.batch, 0, 4, 1, 1, 1))
    room.step()
    assert sorted(room.ends(client)) == sorted([*_numbers(0, 2, 3), ("Failed", _FIRST + 1)])
    room.leave()


def test_an_answer_that_did_not_fit_comes_in_a_segment_of_its_own(room: Room) -> None:
    _asks(room, 2)
    (run,) = room.runs()
    room.effects.take_clients()
    room.from_worker(0, m.OutputLayout(1, OUTPUT))
    for row in range(2):
        part = m.ItemPart(run.record.batch, 0, row, 1, 1, 1, 4096)
        room.from_worker(0, part, room.effects.lend())
    room.from_worker(0, m.Ran(run.record.batch, 0, 2, 1, 1, 1))
    room.step()
    records = [sent.record for sent in room.effects.take_clients()]
    parts = [record for record in records if isinstance(record, m.Part)]
    assert [part[:3] for part in parts] == [(_FIRST, 0, 1), (_FIRST + 1, 0, 1)]
    assert records[-1] == m.Done([(_FIRST, 0), (_FIRST + 1, 0)])
    room.leave()


def test_a_client_that_goes_is_told_nothing_and_its_memory_stays_while_it_is_read(
    room: Room,
) -> None:
    client = _asks(room, 6)  # four of them run
    room.effects.take_clients()
    room.core.disconnected(client)
    assert room.core.batcher.rows == 0
    assert room.effects.open
    room.finish()
    assert not room.effects.open
    assert room.effects.take_clients() == []
    room.leave()


def test_the_end_of_the_engine_is_told_to_each(room: Room) -> None:
    client = _asks(room, 6)
    room.core.end_all()
    refused = [("Refused", _FIRST + n) for n in (4, 5)]  # no worker has had them
    assert sorted(room.ends(client)) == [("Failed", _FIRST + n) for n in range(4)] + refused


@pytest.mark.parametrize("how", ["answers in parts", "dies"])
def test_what_workers_say_after_the_end_ends_nothing_twice(room: Room, how: str) -> None:
    client = _asks(room, 3)
    (run,) = room.runs()
    if how == "dies":  # while it runs a suspect
        room.exit(0)
        room.step(SECOND)
        room.load(0)
        room.step()
    room.core.close(room.now, 0.0)
    room.core.end_all()
    assert len(room.ends(client)) == 3
    if how == "dies":
        room.exit(0)
    else:
        batch = run.record.batch
        room.from_worker(0, m.OutputLayout(1, OUTPUT))
        room.from_worker(0, m.ItemFailed(batch, 0, 0, 2, Kind.MODEL, "no"))
        room.from_worker(0, m.ItemPart(batch, 0, 2, 1, 1, 1, 4096), room.effects.lend())
        room.from_worker(0, m.Ran(batch, 0, 3, 1, 1, 1))
    room.step()
    assert room.effects.take_clients() == []
    room.leave()


def test_refusals_count_against_what_one_message_may_ask_for(room: Room) -> None:
    """A message of a few bytes must not make the engine write millions of answers."""
    client = room.connect()
    one = {"requests": 256, "deadline": 1, "length": 64, "offset": 0}
    room.say(client, m.Submit([item(1_000 * n, **one) for n in range(1, 30)]))
    assert "more than 4096" in room.effects.disconnected[client]


def test_many_are_cancelled_by_one_message(room: Room) -> None:
    _busy(room)
    client = _asks(room, 3)
    room.submit(client, 100, requests=256, offset=0, length=64)
    room.step()
    even = [(number,) for number in range(100, 356, 2)]
    before = sum(sent.record.items[0][7] for sent in room.runs())
    room.effects.take_clients()
    room.say(client, m.Cancel(even))
    assert room.core.batcher.requests == room.core.batcher.rows
    cancelled = [number for how, number in room.ends(client) if how == "Cancelled"]
    assert set(cancelled) <= {number for (number,) in even}
    assert len(cancelled) >= 128 - before
    room.leave()


@pytest.mark.parametrize(
    ("changes", "rows"),
    [({"layout": 2}, [1]), ({"deadline": 60 * SECOND}, [1, 1, 1, 1])],
    ids=["not batched", "with a deadline"],
)
def test_what_must_be_looked_at_one_by_one_is_taken_apart(
    room: Room, changes: dict[str, int], rows: list[int]
) -> None:
    client = _asks(room, 5, **changes)
    (items,) = _ran(room)
    assert [(one.rows, one.series) for one in items] == [(count, 0) for count in rows]
    assert [one.offset for one in items] == [1024 * (_FIRST + n) for n in range(len(rows))]
    held = room.core.clients[client].requests
    assert not any(isinstance(request, Series) for request in held.values())
    room.leave()


def test_strings_are_taken_apart(room: Room) -> None:
    client = room.connect()
    room.say(client, m.Layout(9, 0, (TensorSpec("string", ()),)))
    room.submit(client, _FIRST, requests=3, layout=9)
    held = room.core.clients[client].requests
    assert len(held) == 3
    assert not any(isinstance(request, Series) for request in held.values())
    room.leave()


def test_of_a_queue_that_has_room_for_some_those_are_admitted() -> None:
    with believed_segments():
        room = Room(queue_rows=5)
        room.load()
        client = room.connect()
        room.submit(client, _FIRST, requests=8)
        told = room.ends(client)
        assert told == [("Refused", _FIRST + n) for n in range(5, 8)]
        room.leave()


def test_a_model_that_does_not_take_it_refuses_each(room: Room) -> None:
    client = room.connect()
    room.say(client, m.Layout(9, 77, (TensorSpec("float32", (16,)),)))
    room.submit(client, _FIRST, requests=3, layout=9)
    assert room.ends(client) == [("Refused", _FIRST + n) for n in range(3)]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda: item(_FIRST, requests=0), "0 requests"),
        (lambda: item(_FIRST, requests=2, rows=2), "2 requests of 2 rows"),
        (lambda: item(_FIRST, requests=3, offset=SEGMENT_BYTES - 2048), "3 in all"),
        (lambda: item(2**64 - 1, requests=2), "2 requests"),
        (lambda: item(_FIRST - 1, requests=3), "there already"),
        (lambda: item(_FIRST + 5, requests=0xFFFF, length=1), "bytes"),
        (lambda: item(_FIRST + 5, requests=257, length=64), "257 requests"),
    ],
)
def test_what_is_no_series_ends_the_connection(
    room: Room, broken: Callable[[], m.SubmitItem], reason: str
) -> None:
    client = _asks(room, 1)
    room.say(client, m.Submit([broken()]))
    assert reason in room.effects.disconnected[client]


def test_counts_against_what_a_client_may_have_outstanding() -> None:
    with believed_segments():
        room = Room(client_requests=10)
        room.load()
        client = _asks(room, 9)
        room.submit(client, 90)
        assert client not in room.effects.disconnected
        room.submit(client, 91, requests=2)
        assert "more than 10" in room.effects.disconnected[client]


def test_statistics_and_traces_speak_of_requests(room: Room) -> None:
    _busy(room)
    client = _asks(room, 3)
    told = room.ask(client, m.ASK_STATISTICS)
    assert told["requests"]["queued"] == told["requests"]["queued_rows"] == 3
    assert told["requests"]["admitted"] == 5
    room.ask(client, m.ASK_TRACE_START)
    room.finish()
    room.finish()
    trace = room.ask(client, m.ASK_TRACE)
    (requests,) = [one["requests"] for one in trace["batches"] if one["rows"] == 3]
    assert [(who, number, rows) for who, number, rows, _ in requests] == [
        (client, _FIRST + n, 1) for n in range(3)
    ]
    told = room.ask(client, m.ASK_STATISTICS)
    assert told["requests"]["done"] == 5
    (mine,) = [one for one in told["clients"] if one["number"] == client]
    assert (mine["answered"], mine["rows"], mine["outstanding"]) == (3, 3, 0)
    room.leave()
