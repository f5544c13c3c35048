"""Records and their bytes: round trips, refusals, limits, and numbers that never change."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from penstock.spec import DTYPES, MAX_NAME_BYTES, MAX_RANK, MAX_TENSORS, TensorSpec
from penstock.transport import messages as m
from penstock.transport import wire

_INTEGERS = {
    code: st.integers(0, 2 ** (8 * size) - 1)
    for code, size in {"B": 1, "H": 2, "I": 4, "Q": 8}.items()
} | {
    "h": st.integers(-(2**15), 2**15 - 1),
    "q": st.integers(-(2**63), 2**63 - 1),
    "d": st.floats(allow_nan=False),
}
_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)
_SHAPES = st.lists(
    st.none() | st.integers(0, 2**64 - 2) | st.integers(0, 9), max_size=MAX_RANK
).map(tuple)


@st.composite
def _signatures(draw: st.DrawFn) -> tuple[TensorSpec, ...]:
    names = draw(
        st.lists(
            _TEXT.filter(lambda name: len(name.encode()) <= MAX_NAME_BYTES),
            min_size=1,
            max_size=5,
            unique=True,
        )
    )
    return tuple(
        TensorSpec(draw(st.sampled_from(sorted(DTYPES))), draw(_SHAPES), name) for name in names
    )


def _fields(layout: struct.Struct, skip: int = 0) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*(_INTEGERS[code] for code in layout.format[1 + skip :]))


def _tail(tail: Any) -> st.SearchStrategy[Any]:
    if tail == "text":
        return _TEXT
    if tail == "bytes":
        return st.binary(max_size=300)
    if tail == "tensors":
        return _signatures()
    return st.lists(_fields(tail), max_size=6)


def _records(number: int) -> st.SearchStrategy[Any]:
    codec = wire.CODECS[number]
    fixed = _fields(codec.fixed, skip=1)
    if not codec.tail:
        return fixed.map(lambda values: codec.record(*values))
    return st.tuples(fixed, _tail(codec.tail)).map(lambda both: codec.record(*both[0], both[1]))


_ANY_RECORD = st.sampled_from(sorted(wire.CODECS)).flatmap(_records)


def test_type_numbers_are_never_changed() -> None:
    assert {codec.record.__name__: number for number, codec in wire.CODECS.items()} == {
        "Hello": 1,
        "AddSegment": 2,
        "DropSegment": 3,
        "Layout": 4,
        "Submit": 5,
        "Cancel": 6,
        "Ask": 7,
        "Stop": 8,
        "Welcome": 20,
        "ModelCard": 21,
        "CardTensors": 22,
        "State": 23,
        "OutputLayout": 24,
        "Part": 25,
        "RowFailed": 26,
        "Done": 27,
        "Failed": 28,
        "Refused": 29,
        "Cancelled": 30,
        "Answer": 31,
        "Rejected": 32,
        "CardPads": 33,
        "MapSegment": 40,
        "UnmapSegment": 41,
        "RunLayout": 42,
        "Run": 43,
        "Loaded": 50,
        "LoadFailed": 51,
        "ItemPart": 52,
        "ItemFailed": 53,
        "Ran": 54,
        "ModelFacts": 55,
        "Warm": 56,
    }


def _tail_text(tail: Any) -> str:
    return tail.format if isinstance(tail, struct.Struct) else tail


def test_layouts_of_this_version_are_never_changed() -> None:
    """Whoever changes one of these raises `VERSION` and writes down the new ones."""
    assert m.VERSION == 6
    assert wire.MAX_MESSAGE == 60_000
    assert {
        number: codec.fixed.format
        + (codec.tail if isinstance(codec.tail, str) else codec.tail.format)
        for number, codec in wire.CODECS.items()
    } == {
        1: "<BHItext",
        2: "<BIQ",
        3: "<BI",
        4: "<BIHtensors",
        5: "<B<QIIQQQIhIqH",
        6: "<B<Q",
        7: "<BIB",
        8: "<Bd",
        20: "<BHIIQIIQ",
        21: "<BHIIBtext",
        22: "<BHBtensors",
        23: "<BBBtext",
        24: "<BItensors",
        25: "<BQIIIBQ",
        26: "<BQIIBtext",
        27: "<B<QI",
        28: "<BQBtext",
        29: "<BQBtext",
        30: "<B<Q",
        31: "<BIBbytes",
        32: "<Btext",
        33: "<BHbytes",
        40: "<BIIQ",
        41: "<BII",
        42: "<BIHtensors",
        43: "<BQIB<IIQQQIIIB",
        50: "<BIH",
        51: "<BBtext",
        52: "<BQIIIIBQ",
        53: "<BQIIIBtext",
        54: "<BQIIQQQ",
        55: "<BHbytes",
        56: "<BI",
    }
    assert len(m.SubmitItem._fields) == len(m.SUBMIT_ITEM.unpack(bytes(m.SUBMIT_ITEM.size)))
    assert len(m.RunItem._fields) == len(m.RUN_ITEM.unpack(bytes(m.RUN_ITEM.size)))


@pytest.mark.parametrize("number", sorted(wire.CODECS))
def test_every_field_of_a_record_has_its_place(number: int) -> None:
    codec = wire.CODECS[number]
    packed = len(codec.fixed.unpack(bytes(codec.fixed.size))) - 1
    assert len(codec.record._fields) == packed + bool(codec.tail)


@given(st.data())
@pytest.mark.parametrize("number", sorted(wire.CODECS))
def test_every_record_survives_the_socket(number: int, data: st.DataObject) -> None:
    record = data.draw(_records(number))
    encoded = wire.encode(record)
    assert encoded[0] == number
    assert len(encoded) <= wire.MAX_MESSAGE
    decoded = wire.decode(encoded)
    assert type(decoded) is type(record)
    assert decoded == record


@given(_ANY_RECORD, st.data())
def test_what_is_cut_off_is_refused_or_another_whole_record(
    record: Any, data: st.DataObject
) -> None:
    encoded = wire.encode(record)
    assume(len(encoded) > 1)
    short = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    try:
        decoded = wire.decode(short)
    except wire.Malformed:
        return
    assert wire.encode(decoded) == short


@pytest.mark.parametrize("number", [n for n, codec in wire.CODECS.items() if not codec.tail])
def test_records_without_a_tail_have_one_length_only(number: int) -> None:
    whole = wire.CODECS[number].fixed.size
    wire.decode(bytes([number]) + bytes(whole - 1))
    for length in (1, whole - 1, whole + 1, whole + 8):
        with pytest.raises(wire.Malformed):
            wire.decode(bytes([number]) + bytes(length - 1))


@given(st.binary(max_size=400))
@example(b"")
@example(b"\x00")
@example(b"\x04" + bytes(6) + b"\x01\x00\xff\xff")
def test_any_bytes_are_malformed_or_a_record(data: bytes) -> None:
    try:
        record = wire.decode(data)
    except wire.Malformed:
        return
    assert _same_bytes(wire.encode(record), data)


@given(_ANY_RECORD, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4))
def test_spoilt_messages_are_malformed_or_a_record(
    record: Any, changes: list[tuple[int, int]]
) -> None:
    spoilt = bytearray(wire.encode(record))
    for at, value in changes:
        spoilt[at % len(spoilt)] = value
    try:
        again = wire.decode(bytes(spoilt))
    except wire.Malformed:
        return
    assert _same_bytes(wire.encode(again), bytes(spoilt))


def _same_bytes(encoded: bytes, data: bytes) -> bool:
    """Whether both are the same message; there are several bit patterns of one NaN."""
    if data[0] == 8 and math.isnan(wire.decode(data).drain_seconds):
        return math.isnan(wire.decode(encoded).drain_seconds)
    return encoded == data


def test_lists_are_cut_into_messages_that_fit() -> None:
    items = [m.SUBMIT_ITEM.pack(n, 1, 2, 3, 4, 5, 6, -7, 8, -9, 1) for n in range(5_000)]
    sent = list(wire.encode_items(m.Submit, items))
    assert len(sent) > 1
    assert all(len(data) <= wire.MAX_MESSAGE for data in sent)
    received = [m.SubmitItem(*item) for data in sent for item in wire.decode(data).items]
    assert [item.request for item in received] == list(range(5_000))
    assert all(item.priority == -7 and item.deadline == -9 for item in received)
    assert list(wire.encode_items(m.Done, [])) == []


@pytest.mark.parametrize("count", [0, 1, 1_000, 1_333, 1_334, 20_000])
def test_a_batch_is_cut_and_its_last_message_says_so(count: int) -> None:
    items = [m.RUN_ITEM.pack(1, 2, 3, 4, 5, 6, n, 1, 0) for n in range(count)]
    sent = wire.encode_run(9, 7, items)
    records = [wire.decode(data) for data in sent]
    assert all(len(data) <= wire.MAX_MESSAGE for data in sent)
    assert [record.last for record in records] == [0] * (len(records) - 1) + [1]
    assert {(record.batch, record.layout) for record in records} == {(9, 7)}
    assert [m.RunItem(*item).start for r in records for item in r.items] == list(range(count))


@pytest.mark.parametrize("size", [0, 1, 59_984, 59_985, 200_000])
def test_a_long_answer_is_cut_and_its_last_message_says_so(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    sent = list(wire.split_answer(3, data[:size]))
    assert all(len(message) <= wire.MAX_MESSAGE for message in sent)
    records = [wire.decode(message) for message in sent]
    assert [record.last for record in records] == [0] * (len(records) - 1) + [1]
    assert b"".join(record.data for record in records) == data[:size]
    assert {record.token for record in records} == {3}


@given(st.text(max_size=50), st.integers(1, 2_000), st.sampled_from([1, 2]))
def test_long_texts_are_cut_between_characters(text: str, times: int, parts: int) -> None:
    long = (text + "é€𝄞") * times
    for record in (m.Failed(1, 2, long), m.RowFailed(1, 2, 3, 4, long), m.Rejected(long)):
        encoded = wire.encode(record)
        assert len(encoded) <= wire.MAX_MESSAGE
        got = wire.decode(encoded)[-1]
        whole = long.encode("utf-8", "backslashreplace").decode()
        assert got == whole or (got.endswith("…") and whole.startswith(got[:-1]))


def test_texts_that_are_no_unicode_are_made_so() -> None:
    decoded = wire.decode(wire.encode(m.Rejected("a\udc80b")))
    assert decoded.text == "a\\udc80b"


def test_the_largest_signature_fits_one_message() -> None:
    tensors = tuple(
        TensorSpec("float32", (2**40,) * MAX_RANK, f"{n:03}" + "x" * (MAX_NAME_BYTES - 3))
        for n in range(MAX_TENSORS)
    )
    for record in (m.Layout(1, 1, tensors), m.CardTensors(1, 0, tensors)):
        encoded = wire.encode(record)
        assert len(encoded) <= wire.MAX_MESSAGE
        assert wire.decode(encoded) == record


def _tensor(code: int, sizes: list[int], name: bytes) -> bytes:
    return struct.pack(f"<BBH{len(sizes)}Q", code, len(sizes), len(name), *sizes) + name


@pytest.mark.parametrize(
    "tensors",
    [
        b"",
        _tensor(0, [], b"a"),
        _tensor(99, [], b"a"),
        _tensor(1, [1] * (MAX_RANK + 1), b"a"),
        _tensor(1, [], b"a" * (MAX_NAME_BYTES + 1)),
        _tensor(1, [], b"\xff"),
        _tensor(1, [], b"a") + _tensor(2, [], b"a"),
        b"".join(_tensor(1, [], b"%d" % n) for n in range(MAX_TENSORS + 1)),
        _tensor(1, [3], b"abc")[:-1],
        _tensor(1, [3], b"")[:-1],
        _tensor(1, [], b"a") + b"\x01",
    ],
)
def test_impossible_tensors_are_malformed(tensors: bytes) -> None:
    with pytest.raises(wire.Malformed):
        wire.decode(wire.CODECS[4].fixed.pack(4, 1, 0) + tensors)


def test_which_records_carry_a_descriptor() -> None:
    carrying = {codec.record.__name__ for codec in wire.CODECS.values() if codec.descriptors == 1}
    assert carrying == {"AddSegment", "Part", "MapSegment", "ItemPart"}
    assert wire.descriptors_of(m.AddSegment(1, 1)) == 1
    assert wire.descriptors_of(m.Part(1, 0, 1, 1, 0, 0)) == 0
    assert wire.descriptors_of(m.Part(1, 0, 1, 1, 1, 9)) == 1
    assert wire.descriptors_of(m.ItemPart(1, 0, 0, 1, 1, 1, 9)) == 1
    assert wire.descriptors_of(m.Ask(1, 0)) == 0
