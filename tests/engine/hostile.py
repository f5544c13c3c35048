"""Clients that say anything: random bytes, spoilt messages, and honest words at the wrong time."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from penstock.spec import DTYPES, TensorSpec
from penstock.transport import messages as m
from penstock.transport import rendezvous, segment, wire

SEGMENT_BYTES = 1 << 16
_SUBMIT, _REJECTED = 5, 32
_STOP = 8  # an honest word: it would end the engine


class Word(NamedTuple):
    """One message, and what descriptors travel with it, by name."""

    data: bytes
    descriptors: tuple[str, ...] = ()


_SMALL = st.integers(0, 4)
_SIZES = st.sampled_from([0, 1, 63, 64, 65, 512, 4096, SEGMENT_BYTES - 1, SEGMENT_BYTES])
_HUGE = st.sampled_from(
    [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 64, 2**64 - 1]
)
_NUMBERS = _SMALL | _SIZES | _HUGE
_DESCRIPTORS = st.sampled_from(
    ["segment", "sparse", "unsealed", "read-only", "write-sealed", "pipe", "socket", "null"]
)
_SHAPES = st.lists(_SMALL | st.sampled_from([64, 2**20, 2**31, 2**62, 2**64 - 2]), max_size=4)


def _cut(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


_hello = st.builds(
    lambda label: Word(wire.encode(m.Hello(m.VERSION, 1, label))), st.text(max_size=9)
)
_add = st.builds(
    lambda number, size, files: Word(
        wire.encode(m.AddSegment(number, _cut(size, 64))), tuple(files)
    ),
    _SMALL,
    st.just(SEGMENT_BYTES) | _NUMBERS,
    st.just(["segment"]) | st.lists(_DESCRIPTORS, max_size=6),
)
_drop = st.builds(lambda number: Word(wire.encode(m.DropSegment(number))), _SMALL)
_layout = st.builds(
    lambda number, model, dtype, shape, name: Word(
        wire.encode(m.Layout(number, model, (TensorSpec(dtype, shape, name),)))
    ),
    _SMALL,
    _SMALL,
    st.sampled_from(sorted(DTYPES)),
    _SHAPES,
    st.sampled_from(["", "x"]),
)


def _item(draw: st.DrawFn) -> m.SubmitItem:
    honest = draw(st.booleans())
    size = draw(_SIZES)
    return m.SubmitItem(
        draw(_SMALL | st.integers(0, 100)),
        draw(_SMALL),
        draw(_SMALL),
        draw(_SIZES) // 2 if honest else draw(_NUMBERS),
        size // 2 if honest else draw(_NUMBERS),
        size // 4 if honest else draw(_NUMBERS),
        draw(_SMALL) if honest else _cut(draw(_NUMBERS), 32),
        draw(st.integers(-2, 2)),
        0,
        draw(st.sampled_from([0, -1, 1, 2**62])),
        1 if honest else draw(st.sampled_from([0, 1, 2, 9, 0xFFFF])),
    )


@st.composite
def _submit(draw: st.DrawFn) -> Word:
    return Word(wire.encode(m.Submit([_item(draw) for _ in range(draw(st.integers(0, 4)))])))


_cancel = st.builds(
    lambda numbers: Word(wire.encode(m.Cancel([(number,) for number in numbers]))),
    st.lists(_SMALL | _HUGE.map(lambda n: _cut(n, 64)), max_size=4),
)
_ask = st.builds(lambda token: Word(wire.encode(m.Ask(token, 0))), _SMALL)
_honest = st.one_of(_hello, _add, _drop, _layout, _submit(), _cancel, _ask)
_raw = st.builds(
    lambda data, files: Word(data, tuple(files)),
    st.binary(min_size=1, max_size=200),
    st.lists(_DESCRIPTORS, max_size=2),
)
_long = st.builds(lambda n: Word(b"\x05" * n), st.sampled_from([59_999, 60_000, 60_001, 120_000]))


@st.composite
def _spoilt(draw: st.DrawFn) -> Word:
    word = draw(_honest)
    data = bytearray(word.data)
    for _ in range(draw(st.integers(1, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return Word(bytes(data[: draw(st.integers(1, len(data)))]), word.descriptors)


_any_word = st.one_of(_honest, _honest, _honest, _spoilt(), _raw, _long).filter(
    lambda word: word.data[0] != _STOP
)
_TENSORS = st.builds(
    TensorSpec,
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(["", "x"]),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Word]:
    """Mostly by the rules, so that much of it is believed; what is not is anywhere in between."""
    words = [Word(wire.encode(m.Hello(m.VERSION, 1, "hostile")))]
    words.append(Word(wire.encode(m.AddSegment(1, SEGMENT_BYTES)), ("segment",)))
    layouts: list[TensorSpec] = []
    for number in range(1, draw(st.integers(2, 4))):
        tensor = draw(_TENSORS)
        layouts.append(tensor)
        words.append(Word(wire.encode(m.Layout(number, draw(st.integers(0, 4)), (tensor,)))))
    requests = 1_000
    for _ in range(draw(st.integers(0, 12))):
        count = draw(st.integers(1, 6))
        items = [_fitting(draw, requests + 10 * n, layouts) for n in range(count)]
        requests += 10 * count
        words.append(Word(wire.encode(m.Submit(items))))
        if draw(st.integers(0, 3)) == 0:
            words.append(draw(_cancel | _ask))
        if draw(st.integers(0, 9)) == 0:
            words.append(draw(_any_word))
    if draw(st.booleans()):
        words += draw(st.lists(_any_word, max_size=4))
    return words


def _fitting(draw: st.DrawFn, number: int, layouts: list[TensorSpec]) -> m.SubmitItem:
    """A request, or a series of them, within its bounds, if only just; what lies there is whatever
    lies there."""
    which = draw(st.integers(0, len(layouts) - 1))
    rows = draw(st.sampled_from([0, 1, 2, 3, 31, 32]))
    tensor = layouts[which]
    least = -(-rows * tensor.row_bytes // 64) * 64
    if tensor.dtype == "string":
        least = 8 * (rows * tensor.elements + 1)
    input_bytes = least + draw(st.sampled_from([0, 0, 1, 7, 64]))
    length = input_bytes + draw(st.sampled_from([0, 0, 1, 64, 1_000]))
    series = draw(st.integers(2, 9)) if rows == 1 and draw(st.booleans()) else 1
    offset = draw(st.sampled_from([0, 1, 64, SEGMENT_BYTES - length * series]))
    until = draw(st.sampled_from([0, 0, 0, 1, 2**62]))
    priority = draw(st.integers(-1, 1))
    place = (offset, length, input_bytes)
    return m.SubmitItem(number, 1, which + 1, *place, rows, priority, 0, until, series)


def talk(path: Path, words: list[Word], noise: bytes, patient: bool = True) -> None:
    """Connect, say all of that, and hang up; a patient one waits for its answers before."""
    files = _Files(noise)
    with rendezvous.dial(path) as sock, contextlib.suppress(OSError):
        sock.settimeout(2)
        open_requests = 0
        for data, names in words:
            rights = array.array("i", [files.get(name) for name in names])
            extra: Any = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if names else []
            sock.sendmsg([data], extra)
            if data[0] == _SUBMIT:
                open_requests += _asked(data)
        while patient and open_requests > 0:
            data = sock.recv(1 << 16)
            if not data or data[0] == _REJECTED:
                break
            open_requests -= _ended(data)
    files.close()


def _asked(data: bytes) -> int:
    """How many requests this message makes, if it makes any."""
    with contextlib.suppress(wire.Malformed):
        return sum(m.SubmitItem(*item).requests for item in wire.decode(data).items)
    return 0


def _ended(data: bytes) -> int:
    """How many requests end with this message."""
    record = wire.decode(data)
    if isinstance(record, (m.Done, m.Cancelled)):
        return len(record.items)
    return int(isinstance(record, (m.Failed, m.Refused)))


class _Files:
    """Descriptors of all kinds, made when they are asked for."""

    def __init__(self, noise: bytes) -> None:
        self._noise = noise
        self._open: list[int] = []

    def get(self, name: str) -> int:
        """A new descriptor of that kind."""
        made = getattr(self, "_" + name.replace("-", "_"))()
        self._open.append(made)
        return int(made)

    def close(self) -> None:
        """Close all of them."""
        for descriptor in self._open:
            os.close(descriptor)

    def _segment(self) -> int:
        made = segment.create(SEGMENT_BYTES)
        os.pwrite(made, (self._noise * (SEGMENT_BYTES // len(self._noise) + 1))[:SEGMENT_BYTES], 0)
        return made

    def _sparse(self) -> int:
        made = os.memfd_create("sparse", os.MFD_ALLOW_SEALING)
        os.ftruncate(made, SEGMENT_BYTES)
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, segment.SEALS)
        return made

    def _unsealed(self) -> int:
        made = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
        os.posix_fallocate(made, 0, SEGMENT_BYTES)
        return made

    def _write_sealed(self) -> int:
        made = self._unsealed()
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, segment.SEALS | fcntl.F_SEAL_WRITE)
        return made

    def _read_only(self) -> int:
        made = self._segment()
        try:
            return os.open(f"/proc/self/fd/{made}", os.O_RDONLY)
        finally:
            os.close(made)

    def _pipe(self) -> int:
        reader, writer = os.pipe()
        os.close(writer)
        return reader

    def _socket(self) -> int:
        one, other = socket.socketpair()
        other.close()
        return one.detach()

    def _null(self) -> int:
        return os.open(os.devnull, os.O_RDWR)
