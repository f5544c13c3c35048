"""`tf.train.Example` without TensorFlow: the few lines of protobuf that it needs.

Example  { Features features = 1 }
Features { map<string, Feature> feature = 1 }          an entry: key = 1, value = 2
Feature  { oneof: BytesList = 1, FloatList = 2, Int64List = 3 }      a list: value = 1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from penstock.data.chunk import Array

Value = list[bytes] | Array
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


def parse(data: bytes) -> dict[str, Value]:
    """The features of an Example. Raises `ValueError` where it is none."""
    features: dict[str, Value] = {}
    for number, part in _fields(data):
        if number != 1 or not isinstance(part, bytes):
            continue
        for entry, pair in _fields(part):
            if entry == 1 and isinstance(pair, bytes):
                name, value = _entry(pair)
                features[name] = value
    return features


def build(features: Mapping[str, Array | Sequence[bytes]]) -> bytes:
    """An Example, its features in the order of their names: the same bytes for the same values."""
    entries = []
    for name in sorted(features):
        value = features[name]
        if not isinstance(value, np.ndarray):
            kind, body = 1, b"".join(_length(1, item) for item in value)
        elif value.dtype.kind == "f":
            kind, body = 2, _length(1, value.astype("<f4").tobytes())
        else:
            numbers = value.astype(np.int64).ravel().tolist()
            kind, body = 3, _length(1, b"".join(_varint(n & 0xFFFFFFFFFFFFFFFF) for n in numbers))
        entries.append(_length(1, _length(1, name.encode()) + _length(2, _length(kind, body))))
    return _length(1, b"".join(entries))


def _entry(data: bytes) -> tuple[str, Value]:
    name, value = "", b""
    for number, part in _fields(data):
        if number == 1 and isinstance(part, bytes):
            name = part.decode()
        elif number == 2 and isinstance(part, bytes):
            value = part
    lists: Value = []
    for number, part in _fields(value):
        if isinstance(part, bytes):
            lists = _list(number, part)
    return name, lists


def _list(kind: int, data: bytes) -> Value:
    items = [part for number, part in _fields(data) if number == 1]
    if kind == 1:
        return [item for item in items if isinstance(item, bytes)]
    if kind == 2:  # packed, or one by one
        packed = b"".join(item for item in items if isinstance(item, bytes))
        return np.frombuffer(packed, "<f4").astype(np.float32, copy=False)
    numbers: list[int] = []
    for item in items:
        numbers += [item] if isinstance(item, int) else _varints(item)
    return np.array(numbers, np.uint64).view(np.int64)


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(number, content) of each field; fixed ones as their bytes."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _read_varint(data, at)
        elif kind in (_EIGHT, _FOUR):
            size = 8 if kind == _EIGHT else 4
        else:
            raise ValueError(f"a field of the unknown type {kind}")
        if at + size > len(data):
            raise ValueError("a field is longer than the record")
        yield tag >> 3, data[at : at + size]
        at += size


def _varints(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _read_varint(data, at)
        found.append(value)
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number does not end")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _length(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data
