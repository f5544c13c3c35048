"""Every record that crosses a socket, and its bytes. No pickle, nothing executable.

A message is one seqpacket datagram: a type byte, then the record's fixed fields, then at most one
tail (a text, a list of tensors, a list of items, raw bytes). All little-endian. A message is
shorter than `MAX_MESSAGE`; what may grow is cut into several. Descriptors travel beside a message
(SCM_RIGHTS); only the records that say so carry one.

    client ─▶ engine   Hello AddSegment* DropSegment Layout Submit Cancel Ask Stop
    engine ─▶ client   Welcome ModelCard CardTensors State OutputLayout Part* RowFailed
                       Done Failed Refused Cancelled Answer Rejected
    engine ─▶ worker   MapSegment* UnmapSegment RunLayout Run Stop
    worker ─▶ engine   ModelCard CardTensors Loaded LoadFailed OutputLayout ItemPart* ItemFailed Ran
                                                            (* with one descriptor)

A request is ended by exactly one of `Done`, `Failed`, `Refused` and `Cancelled`. Decoding raises
`Malformed` for anything that is not exactly a record of this version; sizes are checked by whoever
knows the limits (the engine), with Python's integers, which do not overflow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from penstock.spec import (
    DTYPE_OF_CODE,
    DTYPES,
    MAX_NAME_BYTES,
    MAX_RANK,
    MAX_TENSORS,
    Signature,
    TensorSpec,
)

VERSION = 5
MAX_MESSAGE = 60_000
OPEN = 0xFFFF_FFFF_FFFF_FFFF  # a size that a model's spec leaves open


class Malformed(Exception):
    """These bytes are not a record of this protocol."""


# ── client to engine ────────────────────────────────────────────────────────────────────────────


class Hello(NamedTuple):
    """The first message of a client: which protocol it speaks and what it is called."""

    version: int
    pid: int
    label: str


class AddSegment(NamedTuple):
    """A new segment of the client's; its descriptor travels with it."""

    segment: int
    size: int


class DropSegment(NamedTuple):
    """The client has no more use for this segment."""

    segment: int


class Layout(NamedTuple):
    """What the requests that name this layout carry: for which model, tensors of which kind."""

    layout: int
    model: int
    tensors: Signature


SUBMIT_ITEM = struct.Struct("<QIIQQQIhIqH")
LONGEST_SERIES = 256  # requests
HIGHEST_REQUEST = 0xFFFF_FFFF_FFFF_FFFF


class SubmitItem(NamedTuple):
    """One request: where its slot lies, how many rows, until when, how urgent.

    The slot is `length` bytes at `offset` of `segment`: first `input_bytes` of input, the rest is
    room for the answer. `deadline` is nanoseconds of CLOCK_MONOTONIC, 0 for none. `caller` tells
    those apart for whom one client speaks: they take turns like clients of their own.

    Several `requests` are a *series*: of one row each, with numbers and slots that follow each
    other, and the rest in common.
    """

    request: int
    segment: int
    layout: int
    offset: int
    length: int
    input_bytes: int
    rows: int
    priority: int
    caller: int
    deadline: int
    requests: int = 1


class Submit(NamedTuple):
    """Requests; from here on their slots belong to the engine."""

    items: list[tuple[Any, ...]]


class Cancel(NamedTuple):
    """The caller has lost interest in these requests."""

    items: list[tuple[int]]


class Ask(NamedTuple):
    """Please tell one of the ASK_ things; the answer carries the same token."""

    token: int
    what: int


ASK_STATISTICS, ASK_TRACE_START, ASK_TRACE = range(3)


class Stop(NamedTuple):
    """Work off what is queued, for at most this long, then end."""

    drain_seconds: float


# ── engine to client ────────────────────────────────────────────────────────────────────────────


class Welcome(NamedTuple):
    """The client is in: its number, what it may hold and have outstanding."""

    version: int
    engine_pid: int
    client: int
    memory: int
    requests: int
    workers: int


class ModelCard(NamedTuple):
    """A loaded model: its number, name and limits. What it declares follows in `CardTensors`.

    A batch has at most `max_batch` rows, or fewer where a worker has less memory: one request of at
    most `request_rows` fits them all.
    """

    model: int
    max_batch: int
    request_rows: int
    batched: int
    name: str


class CardTensors(NamedTuple):
    """The inputs (side 0) or outputs (side 1) that a model declares; follows its card."""

    model: int
    side: int
    tensors: Signature


class CardPads(NamedTuple):
    """How a model's inputs are padded before they are sent (JSON); follows its card."""

    model: int
    data: bytes


class State(NamedTuple):
    """Whether the engine can answer: one of the STATE_ numbers, and why not."""

    state: int
    kind: int
    text: str


STATE_LOADING, STATE_READY, STATE_FAILED, STATE_CLOSING = range(4)


class OutputLayout(NamedTuple):
    """What answers that name this layout carry."""

    layout: int
    tensors: Signature


class Part(NamedTuple):
    """Rows of a request whose answer did not go the usual way (all rows, in the slot).

    `place` is 0 for the slot, 1 for a segment of `size` bytes whose descriptor travels along.
    """

    request: int
    start: int
    rows: int
    layout: int
    place: int
    size: int


class RowFailed(NamedTuple):
    """Rows of a request that end with an error, before its `Done`.

    The text of an error is its message, then a nul character and the remote traceback, if any.
    """

    request: int
    start: int
    rows: int
    kind: int
    text: str


DONE_ITEM = struct.Struct("<QI")


class Done(NamedTuple):
    """Requests with answers: (request, output layout); layout 0: see the parts sent before."""

    items: list[tuple[int, int]]


class Failed(NamedTuple):
    """The end of a request that was run without an answer."""

    request: int
    kind: int
    text: str


class Refused(NamedTuple):
    """The end of a request that was not run."""

    request: int
    kind: int
    text: str


class Cancelled(NamedTuple):
    """The end of requests that were cancelled."""

    items: list[tuple[int]]


class Answer(NamedTuple):
    """A piece of the statistics that were asked for (JSON)."""

    token: int
    last: int
    data: bytes


class Rejected(NamedTuple):
    """The engine's last word to a client that broke the protocol or is not allowed in."""

    text: str


# ── engine to worker ────────────────────────────────────────────────────────────────────────────


class MapSegment(NamedTuple):
    """A client's segment to map; its descriptor travels with it."""

    client: int
    segment: int
    size: int


class UnmapSegment(NamedTuple):
    """No batch uses this segment any more."""

    client: int
    segment: int


class RunLayout(NamedTuple):
    """What the rows of batches that name this layout are: model and tensors."""

    layout: int
    model: int
    tensors: Signature


RUN_ITEM = struct.Struct("<IIQQQIIIB")


class RunItem(NamedTuple):
    """Rows `start` to `start + rows` of the `total` in a slot.

    Of a `series`, each row has a slot of its own, of `length` bytes, the first one at `offset`.
    """

    client: int
    segment: int
    offset: int
    length: int
    input_bytes: int
    total: int
    start: int
    rows: int
    series: int = 0


class Run(NamedTuple):
    """A batch to run, whole when `last` is set."""

    batch: int
    layout: int
    last: int
    items: list[tuple[Any, ...]]


# ── worker to engine ────────────────────────────────────────────────────────────────────────────


class Loaded(NamedTuple):
    """Every model is loaded and warm; the cards were sent before.

    `hands` is how many batches the worker has in its stages at a time.
    """

    pid: int
    hands: int = 1


class Warm(NamedTuple):
    """Nothing is left to warm up: the worker has what it needs of its device."""

    pid: int


class LoadFailed(NamedTuple):
    """A model could not be loaded."""

    kind: int
    text: str


class ItemPart(NamedTuple):
    """As `Part`, for an item of a batch."""

    batch: int
    item: int
    start: int
    rows: int
    layout: int
    place: int
    size: int


class ItemFailed(NamedTuple):
    """As `RowFailed`, for rows of an item of a batch."""

    batch: int
    item: int
    start: int
    rows: int
    kind: int
    text: str


class Ran(NamedTuple):
    """A batch is done. Layout 0: the parts and failures sent before say what became of each row."""

    batch: int
    layout: int
    size: int  # the rows that the model ran on, padding among them
    gather_ns: int
    run_ns: int
    scatter_ns: int


class ModelFacts(NamedTuple):
    """What a worker has found out about a model (JSON): how it is compiled, how long sizes take.

    Sent before `Loaded`, and again when more is known.
    """

    model: int
    data: bytes


class _Codec(NamedTuple):
    record: type[Any]
    fixed: struct.Struct
    tail: Any
    descriptors: int


_ID = struct.Struct("<Q")


def _codec(record: type[Any], fixed: str, tail: Any = "", descriptors: int = 0) -> _Codec:
    return _Codec(record, struct.Struct("<B" + fixed), tail, descriptors)


CODECS: dict[int, _Codec] = {
    1: _codec(Hello, "HI", "text"),
    2: _codec(AddSegment, "IQ", descriptors=1),
    3: _codec(DropSegment, "I"),
    4: _codec(Layout, "IH", "tensors"),
    5: _codec(Submit, "", SUBMIT_ITEM),
    6: _codec(Cancel, "", _ID),
    7: _codec(Ask, "IB"),
    8: _codec(Stop, "d"),
    20: _codec(Welcome, "HIIQII"),
    21: _codec(ModelCard, "HIIB", "text"),
    22: _codec(CardTensors, "HB", "tensors"),
    23: _codec(State, "BB", "text"),
    24: _codec(OutputLayout, "I", "tensors"),
    25: _codec(Part, "QIIIBQ", descriptors=1),
    26: _codec(RowFailed, "QIIB", "text"),
    27: _codec(Done, "", DONE_ITEM),
    28: _codec(Failed, "QB", "text"),
    29: _codec(Refused, "QB", "text"),
    30: _codec(Cancelled, "", _ID),
    31: _codec(Answer, "IB", "bytes"),
    32: _codec(Rejected, "", "text"),
    33: _codec(CardPads, "H", "bytes"),
    40: _codec(MapSegment, "IIQ", descriptors=1),
    41: _codec(UnmapSegment, "II"),
    42: _codec(RunLayout, "IH", "tensors"),
    43: _codec(Run, "QIB", RUN_ITEM),
    50: _codec(Loaded, "IH"),
    51: _codec(LoadFailed, "B", "text"),
    52: _codec(ItemPart, "QIIIIBQ", descriptors=1),
    53: _codec(ItemFailed, "QIIIB", "text"),
    54: _codec(Ran, "QIIQQQ"),
    55: _codec(ModelFacts, "H", "bytes"),
    56: _codec(Warm, "I"),
}
_TYPE_OF: dict[type[Any], int] = {codec.record: number for number, codec in CODECS.items()}


def encode(record: tuple[Any, ...]) -> bytes:
    """The bytes of a record. Texts that are too long are cut; lists must have been cut before."""
    number = _TYPE_OF[type(record)]
    codec = CODECS[number]
    if not codec.tail:
        return codec.fixed.pack(number, *record)
    head = codec.fixed.pack(number, *record[:-1])
    return head + _encode_tail(codec.tail, record[-1], MAX_MESSAGE - len(head))


def decode(data: bytes) -> Any:
    """The record that these bytes are. Raises `Malformed` when they are none."""
    if not data:
        raise Malformed("an empty message")
    codec = CODECS.get(data[0])
    if codec is None:
        raise Malformed(f"no record has the type {data[0]}")
    name = codec.record.__name__
    if len(data) < codec.fixed.size:
        raise Malformed(f"{name} needs {codec.fixed.size} bytes, got {len(data)}")
    fields = codec.fixed.unpack_from(data)[1:]
    if not codec.tail:
        if len(data) != codec.fixed.size:
            raise Malformed(f"{name} has {codec.fixed.size} bytes, got {len(data)}")
        return codec.record(*fields)
    return codec.record(*fields, _decode_tail(codec.tail, data[codec.fixed.size :], name))


def descriptors_of(record: Any) -> int:
    """How many descriptors travel with this record."""
    if isinstance(record, (Part, ItemPart)):
        return int(record.place == 1)
    return CODECS[_TYPE_OF[type(record)]].descriptors


def encode_items(record: type[Any], items: Iterable[bytes], *fixed: int) -> Iterator[bytes]:
    """Packed items as the fewest messages of this list record that hold them."""
    number = _TYPE_OF[record]
    codec = CODECS[number]
    head = codec.fixed.pack(number, *fixed)
    most = (MAX_MESSAGE - len(head)) // codec.tail.size
    packed = list(items)
    for first in range(0, len(packed), most):
        yield head + b"".join(packed[first : first + most])


def encode_run(batch: int, layout: int, items: list[bytes]) -> list[bytes]:
    """A batch as `Run` messages, the last of which says so."""
    codec = CODECS[43]
    most = (MAX_MESSAGE - codec.fixed.size) // RUN_ITEM.size
    return [
        codec.fixed.pack(43, batch, layout, first + most >= len(items))
        + b"".join(items[first : first + most])
        for first in range(0, max(1, len(items)), most)
    ]


RUN = 43
_RUN_HEAD = CODECS[RUN].fixed


def decode_run(data: bytes) -> tuple[int, int, int, list[RunItem]]:
    """A `Run` as batch, layout, last and items: the message that a worker must read fast."""
    _, batch, layout, last = _RUN_HEAD.unpack_from(data)
    items = RUN_ITEM.iter_unpack(memoryview(data)[_RUN_HEAD.size :])
    return batch, layout, last, list(map(RunItem._make, items))


RAN = 54
_RAN = CODECS[RAN].fixed


def encode_ran(
    batch: int, layout: int, size: int, gather_ns: int, run_ns: int, scatter_ns: int
) -> bytes:
    """A `Ran`, as `encode` would write it: it is sent for every batch."""
    return _RAN.pack(RAN, batch, layout, size, gather_ns, run_ns, scatter_ns)


def decode_ran(data: bytes) -> Ran:
    """A `Ran`, as `decode` would read it, from a worker that we started ourselves."""
    return Ran._make(_RAN.unpack(data)[1:])


def split_answer(token: int, data: bytes) -> Iterator[bytes]:
    """A long answer as `Answer` messages, the last of which says so."""
    most = MAX_MESSAGE - 16
    for first in range(0, max(1, len(data)), most):
        yield encode(Answer(token, first + most >= len(data), data[first : first + most]))


def _encode_tail(tail: Any, value: Any, room: int) -> bytes:
    if tail == "text":
        return cut_text(value, room)
    if tail == "bytes":
        return bytes(value)
    if tail == "tensors":
        return _encode_tensors(value)
    return b"".join(tail.pack(*item) for item in value)


def cut_text(text: str, room: int) -> bytes:
    """A text as UTF-8 in at most `room` bytes, with a mark where it was cut."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= room:
        return data
    return data[: room - 4].decode("utf-8", "ignore").encode() + "…".encode()


def _decode_tail(tail: Any, data: bytes, name: str) -> Any:
    if tail == "text":
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise Malformed(f"{name}: its text is not UTF-8") from None
    if tail == "bytes":
        return data
    if tail == "tensors":
        return _decode_tensors(data, name)
    if len(data) % tail.size:
        raise Malformed(f"{name}: {len(data)} bytes are no whole number of items of {tail.size}")
    return list(tail.iter_unpack(data))


_TENSOR = struct.Struct("<BBH")


def _encode_tensors(tensors: Signature) -> bytes:
    parts = []
    for tensor in tensors:
        name = tensor.name.encode()
        sizes = [OPEN if size is None else size for size in tensor.shape]
        parts.append(_TENSOR.pack(DTYPES[tensor.dtype][0], len(sizes), len(name)))
        parts.append(struct.pack(f"<{len(sizes)}Q", *sizes))
        parts.append(name)
    return b"".join(parts)


def _decode_tensors(data: bytes, name: str) -> Signature:
    tensors: list[TensorSpec] = []
    at = 0
    while at < len(data):
        if len(data) - at < _TENSOR.size or len(tensors) == MAX_TENSORS:
            raise Malformed(f"{name}: a tensor is cut off, or there are more than {MAX_TENSORS}")
        code, rank, name_bytes = _TENSOR.unpack_from(data, at)
        at += _TENSOR.size
        if code not in DTYPE_OF_CODE or rank > MAX_RANK or name_bytes > MAX_NAME_BYTES:
            raise Malformed(f"{name}: dtype {code}, {rank} axes, a name of {name_bytes} bytes")
        if len(data) - at < 8 * rank + name_bytes:
            raise Malformed(f"{name}: a tensor is cut off")
        sizes = struct.unpack_from(f"<{rank}Q", data, at)
        at += 8 * rank
        try:
            label = data[at : at + name_bytes].decode("utf-8")
        except UnicodeDecodeError:
            raise Malformed(f"{name}: a tensor's name is not UTF-8") from None
        at += name_bytes
        shape = tuple(None if size == OPEN else size for size in sizes)
        tensors.append(TensorSpec(DTYPE_OF_CODE[code], shape, label))
    if not tensors:
        raise Malformed(f"{name}: no tensors")
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise Malformed(f"{name}: two tensors have the same name")
    return tuple(tensors)
