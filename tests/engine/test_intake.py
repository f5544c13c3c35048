"""What clients may not say: each is refused by name, and nobody else notices."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

import pytest

from penstock.errors import Kind
from penstock.spec import TensorSpec
from penstock.transport import messages as m
from penstock.transport import segment, wire
from tests.engine.room import INPUT, SEGMENT_BYTES, Room, ends_of, item

_HUGE = 2**64 - 1


def _raw_submit(**changes: int) -> bytes:
    return wire.encode(m.Submit([item(7, **changes)]))


def _say(data: bytes) -> Callable[[Room, int], None]:
    return lambda room, client: room.say_bytes(client, data)


def _record(record: object) -> Callable[[Room, int], None]:
    return lambda room, client: room.say(client, record)


def _with_descriptors(record: object, count: int) -> Callable[[Room, int], None]:
    return lambda room, client: room.say(
        client, record, *(room.effects.lend() for _ in range(count))
    )


def _twice(room: Room, client: int) -> None:
    room.submit(client, 7)
    room.submit(client, 7)


def _twice_in_one(room: Room, client: int) -> None:
    room.say(client, m.Submit([item(7), item(8), item(7)]))


def _too_many(room: Room, client: int) -> None:
    most = room.core.config.client_requests
    for first in range(0, most + 1, 500):
        numbers = range(first, min(first + 500, most + 1))
        room.say(client, m.Submit([item(number) for number in numbers]))


def _same_segment_again(room: Room, client: int) -> None:
    room.add_segment(client, 1)


def _more_memory_than_allowed(room: Room, client: int) -> None:
    room.add_segment(client, 2, 64 * SEGMENT_BYTES)


def _memory_in_many_pieces(room: Room, client: int) -> None:
    for number in range(2, 66):
        room.add_segment(client, number, SEGMENT_BYTES)


def _segments_without_end(room: Room, client: int) -> None:
    """One byte each: far below the limit of memory, but each costs the engine a descriptor."""
    for number in range(2, 70_000):
        if room.effects.disconnected:
            return
        room.add_segment(client, number, 1)


def _dropped_twice(room: Room, client: int) -> None:
    room.say(client, m.DropSegment(1))
    room.say(client, m.DropSegment(1))


def _used_after_drop(room: Room, client: int) -> None:
    room.say(client, m.DropSegment(1))
    room.submit(client, 7)


_REFUSED: dict[str, tuple[Callable[[Room, int], None], str]] = {
    "unknown segment": (_say(_raw_submit(segment=9)), "segment 9"),
    "unknown layout": (_say(_raw_submit(layout=9)), "layout 9"),
    "offset behind the end": (_say(_raw_submit(offset=SEGMENT_BYTES)), "bytes at"),
    "slot across the end": (_say(_raw_submit(offset=SEGMENT_BYTES - 1023)), "bytes at"),
    "offset overflows": (_say(_raw_submit(offset=_HUGE - 1023)), "bytes at"),
    "offset and length overflow": (_say(_raw_submit(offset=_HUGE, length=_HUGE)), "bytes at"),
    "length overflows": (_say(_raw_submit(length=_HUGE)), "bytes at"),
    "input larger than the slot": (_say(_raw_submit(input_bytes=1025)), "bytes at"),
    "input overflows": (_say(_raw_submit(input_bytes=_HUGE)), "bytes at"),
    "more rows than bytes": (_say(_raw_submit(rows=2, input_bytes=64)), "2 rows do not fit"),
    "rows overflow": (_say(_raw_submit(rows=2**32 - 1, input_bytes=64)), "rows do not fit"),
    "no input": (_say(_raw_submit(input_bytes=0, rows=1)), "rows do not fit"),
    "the same request twice": (_twice, "there already"),
    "the same request twice in one": (_twice_in_one, "there already"),
    "too many requests": (_too_many, "outstanding"),
    "half a request": (_say(_raw_submit()[:-1]), "whole number"),
    "segment twice": (_same_segment_again, "there already"),
    "too much memory": (_more_memory_than_allowed, "may hold"),
    "too much memory in pieces": (_memory_in_many_pieces, "may hold"),
    "segments without end": (_segments_without_end, "segments"),
    "segment of no bytes": (_with_descriptors(m.AddSegment(5, 0), 1), "may hold"),
    "segment that overflows": (_with_descriptors(m.AddSegment(5, _HUGE), 1), "may hold"),
    "segment without descriptor": (_record(m.AddSegment(5, 4096)), "0 descriptors"),
    "segment with two descriptors": (_with_descriptors(m.AddSegment(5, 4096), 2), "2 descriptors"),
    "descriptor with a submit": (_with_descriptors(m.Submit([item(7)]), 1), "Submit"),
    "descriptor with an ask": (_with_descriptors(m.Ask(1, 0), 1), "1 descriptors"),
    "an ask for nothing there is": (_record(m.Ask(1, 3)), "nothing to ask for with the number 3"),
    "an ask for the last number": (_record(m.Ask(1, 255)), "number 255"),
    "drop of nothing": (_record(m.DropSegment(44)), "segment 44"),
    "dropped twice": (_dropped_twice, "segment 1"),
    "used after its drop": (_used_after_drop, "segment 1"),
    "layout 0": (_record(m.Layout(0, 0, INPUT)), "1 to"),
    "layout beyond": (_record(m.Layout(1025, 0, INPUT)), "1 to"),
    "layout with an open size": (
        _record(m.Layout(3, 0, (TensorSpec("int8", (3, None)),))),
        "open",
    ),
    "hello again": (_record(m.Hello(m.VERSION, 1, "again")), "once"),
    "a record of the engine's": (_record(m.Welcome(1, 1, 1, 1, 1, 1, 1)), "Welcome"),
    "a record of a worker's": (_record(m.Ran(1, 1, 1, 1, 1, 1)), "Ran"),
    "a batch": (_say(wire.encode_run(1, 1, [])[0]), "Run"),
    "no record": (_say(b"\xee\x01\x02"), "type 238"),
    "half a record": (_say(wire.encode(m.Ask(1, 0))[:-1]), "Ask"),
    "stop with no number": (_record(m.Stop(float("nan"))), "drain"),
    "stop in the past": (_record(m.Stop(-1.0)), "drain"),
    "stop for ever": (_record(m.Stop(float("inf"))), "drain"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_who_breaks_the_protocol_is_disconnected_and_nobody_else(room: Room, name: str) -> None:
    action, reason = _REFUSED[name]
    bystander, offender = room.connect(), room.connect()
    room.submit(bystander, 1)
    room.effects.take_clients()
    action(room, offender)
    assert list(room.effects.disconnected) == [offender]
    assert reason in room.effects.disconnected[offender]
    room.core.disconnected(offender)
    room.step()
    _serve_everything(room)
    assert ("Done", 1) in room.ends(bystander)
    room.submit(bystander, 2)
    room.step()
    _serve_everything(room)
    assert room.ends(bystander) == [("Done", 2)]
    assert room.core.state[0] == m.STATE_READY


def _serve_everything(room: Room) -> None:
    """The worker answers all that it has, until there is nothing."""
    for _ in range(5_000):
        batches = list(room.core.workers[0].batches)
        if not batches:
            return
        room.answer(0, batches[0])
        room.step()
    raise AssertionError("there is no end of batches")


@pytest.mark.parametrize(
    "record",
    [m.Submit([item(1)]), m.Ask(1, 0), m.Stop(1.0), m.Layout(1, 0, INPUT), m.DropSegment(1)],
)
def test_hello_comes_first(room: Room, record: object) -> None:
    room.core.connected(99, 1)
    room.say(99, record)
    assert 99 in room.effects.disconnected
    assert room.core.drain_until is None


def test_another_version_is_told_so(room: Room) -> None:
    room.core.connected(99, 1)
    room.say(99, m.Hello(m.VERSION + 1, 1, "new"))
    assert "version" in room.effects.disconnected[99]
    assert "same release" in room.effects.disconnected[99]


def test_a_label_is_cleaned(room: Room) -> None:
    room.core.connected(99, 1)
    room.say(99, m.Hello(m.VERSION, 1, "a\nb\x1b[31m" + "é" * 100))
    label = room.core.clients[99].label
    assert label.isprintable()
    assert label.startswith("ab[31m")
    assert len(label) <= 64


def test_a_real_file_that_is_no_segment_is_refused() -> None:
    made = Room()
    made.load()
    client = made.connect(segments=0)
    reader, writer = os.pipe()
    made.effects.open.update((reader, writer))
    made.say(client, m.AddSegment(1, 4096), reader)
    assert "no memory file" in made.effects.disconnected[client]
    made.effects.close(writer)
    assert not made.effects.open
    os.close(reader)
    os.close(writer)


def test_a_real_segment_is_accepted() -> None:
    made = Room()
    made.load()
    client = made.connect(segments=0)
    descriptor = segment.create(4096)
    made.effects.open.add(descriptor)
    made.say(client, m.AddSegment(1, 4096), descriptor)
    assert not made.effects.disconnected
    assert made.core.clients[client].bytes_held == 4096
    made.leave()
    os.close(descriptor)


# ── refused, but not disconnected ──────────────────────────────────────────────────────────────


def _refusal(room: Room, client: int) -> m.Refused:
    records = [sent.record for sent in room.effects.take_clients() if sent.peer == client]
    (refused,) = [record for record in records if isinstance(record, m.Refused)]
    assert not room.effects.disconnected
    assert not room.core.clients[client].requests
    return refused


def test_an_unknown_model_is_refused(room: Room) -> None:
    client = room.connect()
    room.say(client, m.Layout(3, 9, INPUT))
    room.submit(client, 7, layout=3)
    refused = _refusal(room, client)
    assert (refused.request, refused.kind) == (7, Kind.INPUT)
    assert "model number 9" in refused.text


def test_what_the_model_does_not_take_is_refused(room: Room) -> None:
    client = room.connect()
    room.say(client, m.Layout(3, 2, (TensorSpec("float64", (8,), "x"),)))
    room.submit(client, 7, layout=3)
    refused = _refusal(room, client)
    assert refused.kind == Kind.INPUT
    assert "expected float32 (rows, any), got float64 (rows, 8)" in refused.text


def test_more_rows_than_a_batch_are_refused(room: Room) -> None:
    client = room.connect()
    room.submit(client, 7, rows=5)
    refused = _refusal(room, client)
    assert refused.kind == Kind.INPUT
    assert "at most 4" in refused.text


def test_what_is_not_batched_may_have_any_number_of_rows(room: Room) -> None:
    client = room.connect()
    room.submit(client, 7, rows=16, layout=2)
    room.step()
    (run,) = room.runs()
    assert m.RunItem(*run.record.items[0]).rows == 16


@pytest.mark.parametrize("sizes", [(2**62, 2**62), (2**64 - 2,), (0, 2**64 - 2), (2**31, 2**31)])
@pytest.mark.parametrize("dtype", ["float32", "string"])
@pytest.mark.parametrize("layout", [0, 1])
def test_rows_that_no_array_can_have_never_reach_a_worker(
    room: Room, sizes: tuple[int, ...], dtype: str, layout: int
) -> None:
    """Without rows they need no bytes, but the worker's numpy would refuse them all the same."""
    client = room.connect()
    room.say(client, m.Layout(3, layout, (TensorSpec(dtype, sizes),)))
    if not room.effects.disconnected:
        room.submit(client, 7, layout=3, rows=0, input_bytes=1024)
    room.step()
    assert room.runs() == []


@pytest.mark.parametrize("elements", [2**20, 2**40])
def test_strings_need_room_for_their_offsets(room: Room, elements: int) -> None:
    """Else one request of a few bytes makes the worker allocate for all that it claims."""
    client = room.connect()
    room.say(client, m.Layout(3, 0, (TensorSpec("string", (elements,)),)))
    if not room.effects.disconnected:
        room.submit(client, 7, layout=3, rows=1)
    room.step()
    assert room.runs() == []


def test_a_deadline_that_has_passed_is_refused(room: Room) -> None:
    client = room.connect()
    room.submit(client, 7, deadline=room.now)
    assert _refusal(room, client).kind == Kind.DEADLINE
    room.submit(client, 8, deadline=room.now + 1)
    room.submit(client, 9, deadline=-5)
    assert list(room.core.clients[client].requests) == [8, 9]


def test_a_full_queue_refuses_and_takes_again(room: Room) -> None:
    with_little = Room(queue_rows=6)
    with_little.load()
    client = with_little.connect()
    for number in range(3):
        with_little.submit(client, number, rows=2)
    with_little.submit(client, 7, rows=1)
    records = [sent.record for sent in with_little.effects.take_clients()]
    (refused,) = [record for record in records if isinstance(record, m.Refused)]
    assert refused.kind == Kind.OVERLOADED
    assert "6 of 6 rows" in refused.text
    with_little.step()
    with_little.submit(client, 8, rows=1)
    assert 8 in with_little.core.clients[client].requests
    with_little.leave()


def test_a_queue_that_others_have_filled_has_room_for_a_share(room: Room) -> None:
    with_little = Room(queue_rows=8)
    with_little.load()
    greedy, modest = with_little.connect(), with_little.connect()

    def taken(client: int, number: int, rows: int) -> bool:
        with_little.submit(client, number, rows=rows)
        return number in with_little.core.clients[client].requests

    assert [taken(greedy, number, 2) for number in range(5)] == [True] * 4 + [False]
    assert [taken(modest, number, 2) for number in range(3)] == [True] * 2 + [False]
    with_little.step()
    while with_little.core.clients[modest].requests:
        with_little.finish()
    assert with_little.core.clients[modest].rows_open == 0
    with_little.leave()


def test_an_empty_queue_takes_a_request_of_any_size(room: Room) -> None:
    """Else it would be refused for ever, and told to try again."""
    with_little = Room(queue_rows=2)
    with_little.load()
    client = with_little.connect()
    with_little.submit(client, 7, rows=3)
    with_little.submit(client, 8, rows=1)
    assert list(with_little.core.clients[client].requests) == [7]
    records = [sent.record for sent in with_little.effects.take_clients()]
    assert [record.request for record in records if isinstance(record, m.Refused)] == [8]
    with_little.leave()


def test_an_engine_that_loads_or_closes_refuses(room: Room) -> None:
    loading = Room()
    client = loading.connect()
    loading.submit(client, 7)
    assert _refusal(loading, client).kind == Kind.ENGINE_CLOSED
    loading.leave()
    client = room.connect()
    room.say(client, m.Stop(5.0))
    room.submit(client, 7)
    refused = _refusal(room, client)
    assert refused.kind == Kind.ENGINE_CLOSED
    assert "shutting down" in refused.text


def test_messages_of_a_client_that_is_gone_are_closed_unread(room: Room) -> None:
    client = room.connect()
    room.core.disconnected(client)
    descriptor = room.effects.lend()
    room.say(client, m.AddSegment(5, 4096), descriptor)
    assert descriptor not in room.effects.open


def test_a_number_can_be_used_again_after_its_end(room: Room) -> None:
    client = room.connect()
    for _ in range(3):
        room.submit(client, 7)
        room.step()
        _serve_everything(room)
        assert room.ends(client) == [("Done", 7)]


def test_a_segments_number_can_be_used_again_after_its_drop(room: Room) -> None:
    client = room.connect()
    first = room.add_segment(client, 2)
    room.submit(client, 7, segment=2)
    room.step()
    _serve_everything(room)
    room.say(client, m.DropSegment(2))
    assert first not in room.effects.open
    second = room.add_segment(client, 2)
    room.effects.take_workers()
    room.submit(client, 8, segment=2)
    room.step()
    sent = room.effects.take_workers()
    (mapped,) = [entry for entry in sent if isinstance(entry.record, m.MapSegment)]
    assert mapped.descriptor == second
    _serve_everything(room)


class _Mapped:
    """A worker's view: which memory each pair of client and segment number means."""

    def __init__(self) -> None:
        self.memory: dict[tuple[int, int], int] = {}
        self.read: list[int] = []

    def take(self, room: Room) -> None:
        for _, record, descriptor in room.effects.take_workers():
            if isinstance(record, m.MapSegment):
                assert (record.client, record.segment) not in self.memory, "mapped twice"
                self.memory[record.client, record.segment] = descriptor
            elif isinstance(record, m.UnmapSegment):
                del self.memory[record.client, record.segment]
            elif isinstance(record, m.Run):
                self.read += [self.memory[entry[0], entry[1]] for entry in record.items]


@pytest.mark.parametrize("busy", [False, True])
def test_a_segment_dropped_under_a_request_hurts_nobody_else(room: Room, busy: bool) -> None:
    """Whether its client is thrown out for that or served: memory goes when nobody reads it."""
    bystander, client = room.connect(), room.connect(segments=0)
    if busy:
        for number in range(100, 108):
            room.submit(bystander, number)
        room.step()
    descriptor = room.add_segment(client, 1)
    room.submit(client, 7)
    if not busy:
        room.step()
    room.say(client, m.DropSegment(1))
    room.submit(bystander, 1)
    mapped = _Mapped()
    for _ in range(10):
        if client in room.effects.disconnected:
            room.core.disconnected(client)
        room.step()
        mapped.take(room)
        for batch in list(room.core.workers[0].batches)[:1]:
            reads = [
                job.owner.segment.descriptor for job in room.core.workers[0].batches[batch].jobs
            ]
            assert all(number in room.effects.open for number in reads)
            room.answer(0, batch)
    sent = room.effects.take_clients()
    assert ("Done", 1) in ends_of(entry for entry in sent if entry.peer == bystander)
    if client not in room.effects.disconnected:
        assert ends_of(entry for entry in sent if entry.peer == client) == [("Done", 7)]
    assert descriptor not in room.effects.open


def test_a_number_used_again_never_means_other_memory_to_a_worker(room: Room) -> None:
    client = room.connect(segments=0)
    mapped = _Mapped()
    expected: list[int] = []
    for number in range(6):
        if client in room.effects.disconnected:
            break
        expected.append(room.add_segment(client, 1))
        room.submit(client, number)
        room.step()
        mapped.take(room)
        room.say(client, m.DropSegment(1))  # while it is read
        if number % 2:
            room.answer(0, next(iter(room.core.workers[0].batches)))
            mapped.take(room)
    assert mapped.read == expected[: len(mapped.read)]


def test_bytes_are_given_back(room: Room) -> None:
    client = room.connect()
    held = room.core.clients[client].bytes_held
    for _ in range(100):
        room.add_segment(client, 2, 32 * SEGMENT_BYTES)
        room.say(client, m.DropSegment(2))
    assert room.core.clients[client].bytes_held == held
    assert not room.effects.disconnected


def test_cancel_of_what_is_not_there_is_nothing(room: Room) -> None:
    client = room.connect()
    room.say(client, m.Cancel([(1,), (2**64 - 1,)]))
    assert not room.effects.disconnected
    assert room.ends(client) == []


def test_flags_and_spare_bits_change_nothing(room: Room) -> None:
    client = room.connect()
    data = bytearray(_raw_submit())
    struct.pack_into("<H", data, len(data) - 12, 0xFFFF)
    room.say_bytes(client, bytes(data))
    assert not room.effects.disconnected
    assert 7 in room.core.clients[client].requests
