"""How records become bytes, and bytes records.

A message is one seqpacket datagram: a type byte, then the record's fixed fields, then at most one
tail (a text, a list of tensors, a list of items, raw bytes). All little-endian. A message is
shorter than `MAX_MESSAGE`; what may grow is cut into several. Descriptors travel beside a message
(SCM_RIGHTS); only the records that say so carry one.

Decoding raises `Malformed` for anything that is not exactly a record of this version. The messages
of every batch have functions of their own, which write and read the same bytes faster.
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
from penstock.transport import messages as m

MAX_MESSAGE = 60_000


class Malformed(Exception):
    """These bytes are not a record of this protocol."""


class _Codec(NamedTuple):
    record: type[Any]
    fixed: struct.Struct
    tail: Any
    descriptors: int


_ID = struct.Struct("<Q")


def _codec(record: type[Any], fixed: str, tail: Any = "", descriptors: int = 0) -> _Codec:
    return _Codec(record, struct.Struct("<B" + fixed), tail, descriptors)


CODECS: dict[int, _Codec] = {
    1: _codec(m.Hello, "HI", "text"),
    2: _codec(m.AddSegment, "IQ", descriptors=1),
    3: _codec(m.DropSegment, "I"),
    4: _codec(m.Layout, "IH", "tensors"),
    5: _codec(m.Submit, "", m.SUBMIT_ITEM),
    6: _codec(m.Cancel, "", _ID),
    7: _codec(m.Ask, "IB"),
    8: _codec(m.Stop, "d"),
    20: _codec(m.Welcome, "HIIQIIQ"),
    21: _codec(m.ModelCard, "HIIB", "text"),
    22: _codec(m.CardTensors, "HB", "tensors"),
    23: _codec(m.State, "BB", "text"),
    24: _codec(m.OutputLayout, "I", "tensors"),
    25: _codec(m.Part, "QIIIBQ", descriptors=1),
    26: _codec(m.RowFailed, "QIIB", "text"),
    27: _codec(m.Done, "", m.DONE_ITEM),
    28: _codec(m.Failed, "QB", "text"),
    29: _codec(m.Refused, "QB", "text"),
    30: _codec(m.Cancelled, "", _ID),
    31: _codec(m.Answer, "IB", "bytes"),
    32: _codec(m.Rejected, "", "text"),
    33: _codec(m.CardPads, "H", "bytes"),
    40: _codec(m.MapSegment, "IIQ", descriptors=1),
    41: _codec(m.UnmapSegment, "II"),
    42: _codec(m.RunLayout, "IH", "tensors"),
    43: _codec(m.Run, "QIB", m.RUN_ITEM),
    50: _codec(m.Loaded, "IH"),
    51: _codec(m.LoadFailed, "B", "text"),
    52: _codec(m.ItemPart, "QIIIIBQ", descriptors=1),
    53: _codec(m.ItemFailed, "QIIIB", "text"),
    54: _codec(m.Ran, "QIIQQQ"),
    55: _codec(m.ModelFacts, "H", "bytes"),
    56: _codec(m.Warm, "I"),
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
    if isinstance(record, (m.Part, m.ItemPart)):
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
    most = (MAX_MESSAGE - codec.fixed.size) // m.RUN_ITEM.size
    return [
        codec.fixed.pack(43, batch, layout, first + most >= len(items))
        + b"".join(items[first : first + most])
        for first in range(0, max(1, len(items)), most)
    ]


RUN = 43
_RUN_HEAD = CODECS[RUN].fixed


def decode_run(data: bytes) -> tuple[int, int, int, list[m.RunItem]]:
    """A `Run` as batch, layout, last and items: the message that a worker must read fast."""
    _, batch, layout, last = _RUN_HEAD.unpack_from(data)
    items = m.RUN_ITEM.iter_unpack(memoryview(data)[_RUN_HEAD.size :])
    return batch, layout, last, list(map(m.RunItem._make, items))


RAN = 54
_RAN = CODECS[RAN].fixed


def encode_ran(
    batch: int, layout: int, size: int, gather_ns: int, run_ns: int, scatter_ns: int
) -> bytes:
    """A `Ran`, as `encode` would write it: it is sent for every batch."""
    return _RAN.pack(RAN, batch, layout, size, gather_ns, run_ns, scatter_ns)


def decode_ran(data: bytes) -> m.Ran:
    """A `Ran`, as `decode` would read it, from a worker that we started ourselves."""
    return m.Ran._make(_RAN.unpack(data)[1:])


_DONE = bytes([27])


def encode_done(items: list[bytes]) -> bytes:
    """A `Done` of packed items, as `encode` would write it; of no more than fit a message."""
    return _DONE + b"".join(items)


def split_answer(token: int, data: bytes) -> Iterator[bytes]:
    """A long answer as `Answer` messages, the last of which says so."""
    most = MAX_MESSAGE - 16
    for first in range(0, max(1, len(data)), most):
        yield encode(m.Answer(token, first + most >= len(data), data[first : first + most]))


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
        sizes = [m.OPEN if size is None else size for size in tensor.shape]
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
        shape = tuple(None if size == m.OPEN else size for size in sizes)
        tensors.append(TensorSpec(DTYPE_OF_CODE[code], shape, label))
    if not tensors:
        raise Malformed(f"{name}: no tensors")
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise Malformed(f"{name}: two tensors have the same name")
    return tuple(tensors)
