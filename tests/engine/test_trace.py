"""What the engine writes down of its batches while somebody wants to know."""

from __future__ import annotations

import pytest

from penstock.engine import trace
from penstock.transport import messages as m
from tests.engine.room import Room

MS = 1_000_000


def test_nothing_is_written_down_unless_it_was_asked_for(room: Room) -> None:
    client = room.connect()
    room.learn(client)
    assert room.ask(client, m.ASK_TRACE)["batches"] == []
    assert not room.core.trace.on


def test_a_batch_is_written_down_with_its_requests(room: Room) -> None:
    client, other = room.connect(), room.connect()
    assert room.ask(client, m.ASK_TRACE_START) == {}
    since = room.now
    room.submit(client, 7, rows=2)
    room.step(MS)
    room.submit(other, 8)
    room.step(MS)
    number = room.finish(takes=3 * MS, size=4)
    told = room.ask(client, m.ASK_TRACE)
    assert (told["since"], told["until"], told["left_out"]) == (since, since + 5 * MS, 0)
    assert told["models"] == ["f", "g", "h"]
    assert told["workers"] == [{"index": 0, "pid": 50_001}]
    assert told["clients"][str(other)] == {"pid": 4_000 + other, "label": f"client {other}"}
    assert told["batches"] == [
        {
            "batch": number,
            "worker": 0,
            "model": 0,
            "rows": 2,
            "size": 4,
            "closed": "idle",
            "sent": since + MS,
            "began": since + MS,
            "gather": 10,
            "run": 20,
            "scatter": 30,
            "ended": since + 5 * MS,
            "requests": [[client, 7, 2, since]],
        }
    ]


def test_a_batch_behind_another_began_when_that_ended(room: Room) -> None:
    client = room.connect()
    room.learn(client, rows=4)
    room.ask(client, m.ASK_TRACE_START)
    began = room.now
    for number in range(8):
        room.submit(client, number)
    room.step()
    room.finish(takes=3 * MS)
    room.finish(takes=2 * MS)
    first, second = room.ask(client, m.ASK_TRACE)["batches"]
    assert (first["sent"], first["began"], first["ended"]) == (began, began, began + 3 * MS)
    assert (second["sent"], second["began"]) == (began, began + 3 * MS)
    assert second["ended"] == began + 5 * MS


def test_a_trace_is_over_when_it_was_taken(room: Room) -> None:
    client = room.connect()
    room.ask(client, m.ASK_TRACE_START)
    room.learn(client)
    assert len(room.ask(client, m.ASK_TRACE)["batches"]) == 1
    room.learn(client)
    assert room.ask(client, m.ASK_TRACE)["batches"] == []


def test_a_trace_that_is_started_again_begins_anew(room: Room) -> None:
    client = room.connect()
    room.ask(client, m.ASK_TRACE_START)
    room.learn(client)
    room.now += MS
    room.ask(client, m.ASK_TRACE_START)
    told = room.ask(client, m.ASK_TRACE)
    assert (told["batches"], told["since"]) == ([], room.now)


def test_a_trace_ends_with_the_client_that_asked_for_it(room: Room) -> None:
    client, other = room.connect(), room.connect()
    room.ask(client, m.ASK_TRACE_START)
    room.learn(other)
    room.core.disconnected(other)
    assert room.core.trace.on
    room.core.disconnected(client)
    assert not room.core.trace.on
    third = room.connect()
    assert room.ask(third, m.ASK_TRACE)["batches"] == []


def test_only_so_much_is_kept(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_MOST_REQUESTS", 6)
    client = room.connect()
    room.ask(client, m.ASK_TRACE_START)
    for _ in range(4):
        for number in range(4):
            room.submit(client, number)
        room.step()
        room.finish(takes=MS)
    told = room.ask(client, m.ASK_TRACE)
    assert [len(batch["requests"]) for batch in told["batches"]] == [4]
    assert told["left_out"] == 12


def test_a_long_trace_is_taken_in_pieces(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_AT_ONCE", 5)
    client = room.connect()
    room.ask(client, m.ASK_TRACE_START)
    for _ in range(5):
        for number in range(4):
            room.submit(client, number)
        room.step()
        room.finish(takes=MS)
    until = room.now
    pieces = [room.ask(client, m.ASK_TRACE)]
    while pieces[-1]["more"]:
        room.now += MS
        pieces.append(room.ask(client, m.ASK_TRACE))
    assert [len(piece["batches"]) for piece in pieces] == [2, 2, 1]
    assert all(piece["until"] == until for piece in pieces)
    numbers = [batch["batch"] for piece in pieces for batch in piece["batches"]]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 5


def test_an_answer_that_is_long_comes_in_messages_that_fit(room: Room) -> None:
    client = room.connect()
    room.ask(client, m.ASK_TRACE_START)
    for first in range(0, 2_000, 4):
        for number in range(first, first + 4):
            room.submit(client, number)
        room.step()
        room.finish(takes=MS)
    told = room.ask(client, m.ASK_TRACE)  # each message is checked against the limit
    assert len(told["batches"]) == 500
