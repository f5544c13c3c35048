"""What clients are owed: told as fast as they read, all of it, and bounded until then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.config import Model
from penstock.engine import delivery, failures
from penstock.errors import Kind
from penstock.spec import Signature, TensorSpec
from penstock.transport import messages as m
from penstock.transport import wire
from tests.engine.room import OUTPUT, Room, believed_segments, ends_of, item

_LONG = "node " * 4_000


@pytest.fixture
def wide() -> Iterator[Room]:
    """A room whose batches are large."""
    with believed_segments():
        room = Room((Model("m:f", max_batch=4_096),))
        room.load()
        yield room
        room.leave()


def _asks(room: Room, client: int, count: int, first: int = 0, **changes: int) -> int:
    """So many requests, which form a batch; returns its number. What came before is forgotten."""
    for number in range(first, first + count, 500):
        until = min(number + 500, first + count)
        room.say(client, m.Submit([item(n, **changes) for n in range(number, until)]))
    room.step()
    (batch,) = {run.record.batch for run in room.runs()}
    room.effects.take_clients()
    return int(batch)


def _says_apart(room: Room, batch: int, items: range, start: int = 0) -> None:
    """The worker has an answer in a segment of its own for each of these items."""
    room.from_worker(0, m.OutputLayout(9, OUTPUT))
    for each in items:
        part = m.ItemPart(batch, each, start, 1, 9, 1, 4096)
        room.from_worker(0, part, room.effects.lend())


def _says_failed(room: Room, batch: int, items: range, text: str) -> None:
    for each in items:
        failed = m.ItemFailed(batch, each, 0, 1, Kind.MODEL, text.format(each))
        room.from_worker(0, failed)


def _is_done(room: Room, batch: int) -> None:
    room.from_worker(0, m.Ran(batch, 0, 1, 1, 1, 1))
    room.step()


def _reads(room: Room, client: int) -> list[Any]:
    """A client that did not read does, for a moment; what it gets."""
    room.effects.full.discard(client)
    room.core.caught_up(client)
    return [sent.record for sent in room.effects.take_clients() if sent.peer == client]


def test_what_does_not_fit_is_told_when_it_has_read(wide: Room) -> None:
    client = wide.connect()
    batch = _asks(wide, client, 30)
    before = len(wide.effects.open)
    wide.effects.full.add(client)
    _says_apart(wide, batch, range(10))
    _says_failed(wide, batch, range(10, 20), "bad {}")
    for each in range(20, 30):
        wide.from_worker(0, m.ItemPart(batch, each, 0, 1, 9, 0, 0))
    _is_done(wide, batch)
    sent = [entry.record for entry in wide.effects.take_clients()]
    assert len(sent) <= 4, "no more than what was begun"
    assert len(wide.effects.open) >= before + 9
    seen = [sent, *([] for _ in range(3))]
    for some in seen[1:]:  # it reads again, and is full again at once
        wide.core.caught_up(client)
        some += [entry.record for entry in wide.effects.take_clients()]
        assert 1 <= len(some) <= 4
    records = [record for some in seen for record in some] + _reads(wide, client)
    ends = ends_of((client, record, -1) for record in records)
    assert sorted(number for _, number in ends) == list(range(30))
    texts = {r.request: r.text for r in records if isinstance(r, m.Failed)}
    assert texts == {number: f"bad {number}" for number in range(10, 20)}
    assert len(wide.effects.open) == before


def test_numbers_of_layouts_are_given_when_they_are_told(wide: Room) -> None:
    """While it does not read, its answers have more layouts than there are numbers."""
    client = wide.connect()
    wide.effects.full.add(client)
    outputs: list[Signature] = [(TensorSpec("int8", (n,)),) for n in range(1_500)]
    records = []
    for number, output in enumerate(outputs):
        batch = _asks(wide, client, 1, number)
        if number % 3:
            wide.answer(0, batch, output)
        else:
            wide.from_worker(0, m.OutputLayout(9, output))
            part = m.ItemPart(batch, 0, 0, 1, 9, 1, 64)
            wide.from_worker(0, part, wide.effects.lend())
            wide.from_worker(0, m.Ran(batch, 0, 1, 1, 1, 1))
        wide.step()
        records += [entry.record for entry in wide.effects.take_clients()]
    assert len(records) <= 4
    means: dict[int, Signature] = {}
    found: dict[int, Signature] = {}
    for record in records + _reads(wide, client):
        if isinstance(record, m.OutputLayout):
            means[record.layout] = record.tensors
        elif isinstance(record, m.Part):
            found[record.request] = means[record.layout]
        elif isinstance(record, m.Done):
            found |= {number: means[layout] for number, layout in record.items if layout}
    assert [found[number] for number in range(1_500)] == outputs


def test_those_that_were_answered_together_travel_together(wide: Room) -> None:
    client = wide.connect()
    batch = _asks(wide, client, 100)
    _says_apart(wide, batch, range(100))
    _is_done(wide, batch)
    (done,) = [r.record for r in wide.effects.take_clients() if isinstance(r.record, m.Done)]
    assert done.items == [(number, 0) for number in range(100)]


def test_what_it_has_not_been_told_counts_as_outstanding() -> None:
    with believed_segments():
        room = Room((Model("m:f", max_batch=64),), client_requests=10)
        room.load()
        honest, client = room.connect(), room.connect()
        for each in (honest, client):
            room.effects.full.add(each)
            room.answer(0, _asks(room, each, 1))  # this one is sent, and is not read
            room.step()
            batch = _asks(room, each, 9, 1)
            _says_failed(room, batch, range(3), "bad")
            _says_apart(room, batch, range(3, 6))
            for number in range(6, 9):
                room.from_worker(0, m.ItemPart(batch, number, 0, 1, 9, 0, 0))
            _is_done(room, batch)
            assert not room.core.clients[each].requests
        room.submit(honest, 100)
        room.submit(client, 100)
        room.say(client, m.Cancel([(100,)]))
        assert room.effects.disconnected == {}
        room.submit(client, 101)
        room.submit(client, 102)
        assert list(room.effects.disconnected) == [client]
        assert "10 requests outstanding" in room.effects.disconnected[client]
        room.leave()


def test_refusals_that_are_not_read_count_too() -> None:
    with believed_segments():
        room = Room(client_requests=10)
        room.load()
        client = room.connect()
        room.effects.full.add(client)
        for number in range(20):
            room.submit(client, number, rows=5)  # more than a batch holds
        assert "outstanding" in room.effects.disconnected[client]
        room.leave()


def test_one_that_goes_lets_go_of_what_it_was_owed(wide: Room) -> None:
    client, other = wide.connect(), wide.connect()
    wide.effects.full.add(client)
    batch = _asks(wide, client, 20)
    _says_apart(wide, batch, range(20))
    _is_done(wide, batch)
    batch = _asks(wide, client, 20, 100)
    _says_apart(wide, batch, range(10))
    wide.core.disconnected(client)
    own = {each.descriptor for each in wide.core.clients[other].segments.values()}
    used = {each.descriptor for each in wide.core.workers[0].mapped}
    assert wide.effects.open == own | used, "also what its batch had brought"
    _says_apart(wide, batch, range(10, 20))
    assert wide.effects.open == own | used, "and what it brings still"
    _is_done(wide, batch)
    wide.submit(other, 1)
    wide.step()
    wide.finish()
    assert wide.ends(other) == [("Done", 1)]


# ── descriptors ────────────────────────────────────────────────────────────────────────────────


def test_who_keeps_most_descriptors_goes_when_they_run_out() -> None:
    with believed_segments():
        room = Room((Model("m:f", max_batch=4_096),))
        room.core.apart._most = 98  # one of each is sent before it is full
        room.load()
        greedy, modest = room.connect(), room.connect()
        room.effects.full |= {greedy, modest}
        for client, count in ((greedy, 60), (modest, 30)):
            batch = _asks(room, client, count)
            _says_apart(room, batch, range(count))
            _is_done(room, batch)
        room.submit(greedy, 1_000)
        batch = _asks(room, modest, 20, 1_000)
        _says_apart(room, batch, range(1, 11))
        assert room.effects.disconnected == {}
        _says_apart(room, batch, range(11, 12))
        assert list(room.effects.disconnected) == [greedy]
        assert "ulimit -n" in room.effects.disconnected[greedy]
        room.core.disconnected(greedy)
        _says_apart(room, batch, range(12, 21))
        _says_apart(room, batch, range(1))  # of the one that is gone: closed at once
        _is_done(room, batch)
        assert list(room.effects.disconnected) == [greedy]
        records = [entry.record for entry in room.effects.take_clients() if entry.peer == modest]
        ends = ends_of((modest, record, -1) for record in records + _reads(room, modest))
        assert len(ends) == 50
        room.leave()


def test_when_all_read_and_descriptors_run_out_answers_are_refused() -> None:
    """There are only too many at once: nobody is to blame."""
    with believed_segments():
        room = Room((Model("m:f", max_batch=4_096),))
        room.core.apart._most = 98
        room.load()
        client = room.connect()
        for first in (0, 1_000):
            batch = _asks(room, client, 100, first)
            _says_apart(room, batch, range(100))
            _is_done(room, batch)
            ended = room.effects.take_clients()
            refused = [entry.record for entry in ended if isinstance(entry.record, m.Failed)]
            assert [record.kind for record in refused] == [Kind.OVERLOADED] * 2
            assert len(ends_of(ended)) == 100
        assert room.effects.disconnected == {}
        room.leave()


# ── errors ─────────────────────────────────────────────────────────────────────────────────────


def _kept(room: Room, client: int) -> int:
    """Characters of errors that the engine holds for a client."""
    texts = {id(entry.text): entry.text for entry in room.core.clients[client].owed}
    return sum(map(len, texts.values()))


@pytest.mark.parametrize("text", [_LONG, _LONG + "{}"], ids=["alike", "different"])
def test_errors_that_wait_are_cut_or_kept_once(wide: Room, text: str) -> None:
    client = wide.connect()
    wide.effects.full.add(client)
    records = []
    for first in (0, 1_500):
        batch = _asks(wide, client, 1_500, first)
        _says_failed(wide, batch, range(1_500), text)
        _is_done(wide, batch)
        records += [entry.record for entry in wide.effects.take_clients()]
    assert _kept(wide, client) < 2 * failures._WHOLE
    records += _reads(wide, client)
    assert len(records) == 3_000
    assert all(record.text.startswith("node node") for record in records)
    if "{}" not in text:
        assert all(record.text == text for record in records)


def test_errors_that_are_read_are_told_in_full(wide: Room) -> None:
    client = wide.connect()
    for first in range(0, 1_000, 10):
        batch = _asks(wide, client, 10, first)
        _says_failed(wide, batch, range(10), _LONG + "{}")
        _is_done(wide, batch)
        told = [entry.record.text for entry in wide.effects.take_clients()]
        assert told == [f"{_LONG}{each}" for each in range(10)]


def test_a_call_whose_rows_all_fail_alike_fails_once(wide: Room) -> None:
    client = wide.connect()
    batch = _asks(wide, client, 1, rows=4_096, input_bytes=4_096 * 64, length=4_096 * 64)
    for row in range(4_096):
        wide.from_worker(0, m.ItemFailed(batch, 0, row, 1, Kind.MODEL, _LONG))
    _is_done(wide, batch)
    (failed,) = [entry.record for entry in wide.effects.take_clients()]
    assert failed == m.Failed(0, Kind.MODEL, _LONG)


def test_a_call_whose_rows_fail_differently_is_told_in_bounded_memory(wide: Room) -> None:
    client = wide.connect()
    batch = _asks(wide, client, 1, rows=4_096, input_bytes=4_096 * 64, length=4_096 * 64)
    for row in range(4_096):
        pair = f"rows like {row // 2}: {_LONG}"
        wide.from_worker(0, m.ItemFailed(batch, 0, row, 1, Kind.MODEL, pair))
    _is_done(wide, batch)
    *rows, done = [entry.record for entry in wide.effects.take_clients()]
    assert [(record.start, record.rows) for record in rows] == [(n, 2) for n in range(0, 4_096, 2)]
    assert all(r.text.startswith(f"rows like {n}: node") for n, r in enumerate(rows))
    assert sum(len(record.text) for record in rows) < 2 * failures._WHOLE
    assert done == m.Done([(0, 0)])


def test_rows_that_are_tried_one_by_one_are_told_in_bounded_memory(wide: Room) -> None:
    """Each is a batch of its own: what they say is of one request all the same."""
    client = wide.connect()
    _asks(wide, client, 1, rows=200, input_bytes=200 * 64, length=200 * 64)
    wide.exit(0)
    wide.step()
    wide.load()
    wide.step()
    for row in range(200):
        (run,) = wide.runs()
        wide.from_worker(0, m.ItemFailed(run.record.batch, 0, row, 1, Kind.MODEL, f"{row} {_LONG}"))
        _is_done(wide, run.record.batch)
    records = [entry.record for entry in wide.effects.take_clients()]
    texts = [record.text for record in records if isinstance(record, m.RowFailed)]
    assert len(texts) == 200
    assert sum(map(len, texts)) < 2 * failures._WHOLE


def test_one_that_lets_too_many_records_wait_is_disconnected(
    wide: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide.core.delivery, "_most", 5_000)
    client = wide.connect()
    wide.effects.full.add(client)
    for number in range(20):
        batch = _asks(wide, client, 1, number, rows=600, input_bytes=600 * 64, length=600 * 64)
        for row in range(600):
            wide.from_worker(0, m.ItemFailed(batch, 0, row, 1, Kind.MODEL, f"row {row}"))
        _is_done(wide, batch)
        if client in wide.effects.disconnected:
            break
    assert "wait for it to be read" in wide.effects.disconnected[client]
    assert len(wide.core.clients[client].owed) < 6_000


def test_many_that_end_at_once_fit_messages(wide: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_AT_ONCE", 64)
    client = wide.connect()
    for full in (False, True):
        if full:
            wide.effects.full.add(client)
        batch = _asks(wide, client, 1_000, 2_000 * full)
        wide.answer(0, batch)
        wide.step()
        records = [entry.record for entry in wide.effects.take_clients()]
        if full:
            batch = _asks(wide, client, 1_000, 5_000)
            wide.answer(0, batch)
            wide.step()
            assert not wide.effects.take_clients()
            records += _reads(wide, client)
        done = [record for record in records if isinstance(record, m.Done)]
        assert max(len(record.items) for record in done) <= 2 * 64
        numbers = [number for record in done for number, _ in record.items]
        expected = [*range(2_000, 3_000), *range(5_000, 6_000)] if full else [*range(1_000)]
        assert numbers == expected
    assert len(wire.encode_done([bytes(m.DONE_ITEM.size)] * 4_096)) <= wire.MAX_MESSAGE
