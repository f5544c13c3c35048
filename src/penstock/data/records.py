"""TFRecord files, framing and checksums included, without TensorFlow.

A record is its length (8 bytes), the length's checksum (4), the data, the data's checksum (4). A
record whose data does not match its checksum is a failed row. Where a length does not match, or
the file ends within a record, nobody can tell how many rows are lost: the file is refused.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.data import examples
from penstock.data.chunk import Array, Fault
from penstock.data.extras import need
from penstock.data.features import Features, chosen, numpy_dtype, stack
from penstock.data.files import blocks, is_local, read_range
from penstock.data.joined import Block
from penstock.errors import InputError
from penstock.spec import STRING, Signature, TensorSpec

_HEAD = struct.Struct("<QI")
_OVERHEAD = _HEAD.size + 4


def masked_crc(data: bytes) -> int:
    """The checksum as TFRecord stores it."""
    crc = int(need("google_crc32c", "TFRecord").value(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """A record as it stands in a file."""
    size = struct.pack("<Q", len(data))
    return b"".join(
        (size, struct.pack("<I", masked_crc(size)), data, struct.pack("<I", masked_crc(data)))
    )


class RecordFile:
    """One TFRecord file, as a `Reader`. Without `features` a row is the record's bytes."""

    def __init__(self, path: str, columns: Sequence[str] | None, features: Features) -> None:
        self._path = path
        self._starts = record_starts(path)
        self.rows = len(self._starts) - 1
        self._raw = not features or set(features) == {""}
        known = {"": TensorSpec(STRING)} if self._raw else dict(features)
        names = chosen(list(known), columns, f"the description of {path}")
        self.signature: Signature = tuple(known[name] for name in names)

    def read(self, start: int, stop: int, names: Sequence[str]) -> Block:
        """Check and parse these records."""
        low = int(self._starts[start])
        data = read_range(self._path, low, int(self._starts[stop]))
        offsets = (self._starts[start : stop + 1] - low).tolist()
        rows: list[dict[str, Any]] = []
        faults: dict[int, Fault] = {}
        for row in range(stop - start):
            record = data[offsets[row] + _HEAD.size : offsets[row + 1] - 4]
            (crc,) = struct.unpack_from("<I", data, offsets[row + 1] - 4)
            if crc != masked_crc(record):
                faults[row] = Fault("checksum", "the record does not match its checksum")
            rows.append({} if row in faults else self._parsed(record, row, faults))
        if self._raw:
            array = np.empty(len(rows), object)
            array[:] = [row.get("", b"") for row in rows]
            return {"": array}, faults
        return _columns(rows, [spec for spec in self.signature if spec.name in names], faults)

    def sizes(self, start: int, stop: int, names: Sequence[str]) -> Array:
        """Of the records."""
        return np.diff(self._starts[start : stop + 1])

    def _parsed(self, record: bytes, row: int, faults: dict[int, Fault]) -> dict[str, Any]:
        if self._raw:
            return {"": record}
        try:
            return examples.parse(record)
        except ValueError as error:
            faults[row] = Fault("text", f"no tf.train.Example: {error}")
            return {}


def _columns(
    rows: Sequence[dict[str, Any]], specs: Sequence[TensorSpec], faults: dict[int, Fault]
) -> Block:
    arrays: dict[str, Array] = {}
    for spec in specs:
        found: dict[int, Fault] = {}
        values = [_shaped(row.get(spec.name), spec) for row in rows]
        arrays[spec.name] = stack(values, spec, found)
        for row, fault in found.items():
            faults.setdefault(row, fault)
    return arrays, faults


def _shaped(value: Any, spec: TensorSpec) -> Any:
    """A feature is a flat list: give it its shape, if it has as many elements.

    Numbers may also lie in one text of bytes, as they lie in memory.
    """
    numbers = numpy_dtype(spec.dtype)
    if isinstance(value, list) and spec.dtype != STRING and len(value) == 1:
        if len(value[0]) != spec.row_bytes:
            return value
        return np.frombuffer(value[0], numbers).reshape(spec.sizes)
    if value is None or len(value) != spec.elements:
        return value
    if spec.dtype == "bool" and not isinstance(value, list) and value.dtype.kind == "i":
        value = value != 0
    if isinstance(value, list):
        items = np.empty(len(value), object)
        items[:] = value
        return items.reshape(spec.sizes) if spec.shape else value[0]
    return value.reshape(spec.sizes)


def record_starts(path: str) -> Array:
    """Where every record begins, and the file's end."""
    return np.fromiter(_local_starts(path) if is_local(path) else _read_starts(path), np.int64)


def _local_starts(path: str) -> Iterator[int]:
    """From length to length, without reading what lies between."""
    at, end = 0, os.path.getsize(path)
    with open(path, "rb", buffering=0) as file:
        while at + _HEAD.size <= end:
            head = os.pread(file.fileno(), _HEAD.size, at)
            if len(head) < _HEAD.size:
                break
            yield at
            at += _size(head, path, at) + _OVERHEAD
    if at != end:
        raise _broken(path, min(at, end), "the file ends within a record")
    yield at


def _read_starts(path: str) -> Iterator[int]:
    data, base, at = b"", 0, 0  # `data` begins at `base`; the next record at `at` within it
    reading = blocks(path)
    while True:
        while len(data) < at + _HEAD.size:
            block = next(reading, b"")
            if not block:
                if len(data) > at or at > len(data):
                    raise _broken(path, base + min(at, len(data)), "the file ends within a record")
                yield base + at
                return
            drop = min(at, len(data))
            data, base, at = data[drop:] + block, base + drop, at - drop
        yield base + at
        at += _size(data[at : at + _HEAD.size], path, base + at) + _OVERHEAD


def _size(head: bytes, path: str, at: int) -> int:
    size, crc = _HEAD.unpack(head)
    if masked_crc(head[:8]) != crc:
        hint = "; it is compressed with gzip: unpack it" if head[:2] == b"\x1f\x8b" else ""
        raise _broken(path, at, f"a length does not match its checksum{hint}")
    return int(size)


def _broken(path: str, at: int, why: str) -> InputError:
    return InputError(f"{path}: expected a TFRecord at byte {at}: {why}; what follows is lost")
