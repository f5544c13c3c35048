"""A client without manners: the protocol's records on a bare socket, in any order one likes."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import select
import time
from pathlib import Path
from typing import Any

import numpy as np

from penstock.spec import Signature, TensorSpec
from penstock.transport import messages as m
from penstock.transport import rendezvous, segment, wire
from penstock.transport.channel import Channel, Closed


def nonsense(address: Path, chance: random.Random) -> None:
    """Connect, say a few random things, most of which begin as a message does, and leave."""
    stop = wire.encode(m.Stop(0.0))[0]  # by chance it would make sense, and end the engine
    kinds = [kind for kind in (*wire.CODECS, 0, 255) if kind != stop]
    with rendezvous.dial(address) as sock:
        sock.settimeout(5)
        with contextlib.suppress(OSError):  # thrown out already
            if chance.random() < 0.7:
                sock.send(wire.encode(m.Hello(m.VERSION, os.getpid(), "?")))
            for _ in range(chance.randint(1, 5)):
                data = chance.randbytes(chance.choice([1, 2, 9, 57, 300, 60_000]))
                sock.send(bytes([chance.choice(kinds)]) + data[1:])


class RawClient:
    """A connection, the segments that were made for it, and the descriptors that came over it."""

    def __init__(self, address: Path, *, hello: bool = True) -> None:
        self._channel = Channel(rendezvous.dial(address), 64 << 20)
        self._maps: list[mmap.mmap] = []
        self.request = 0
        if hello:
            self.send(m.Hello(m.VERSION, os.getpid(), "raw"))
            self.until(m.State)

    def send(self, record: Any, *descriptors: int) -> None:
        """Send a record, waiting for room."""
        self.send_bytes(wire.encode(record), *descriptors)

    def send_bytes(self, data: bytes, *descriptors: int) -> None:
        """Send anything, waiting for room."""
        self._channel.send(data, descriptors)
        while self._channel.wants_write:
            select.select([], [self._channel], [], 10)
            self._channel.flush()

    def receive(self, seconds: float = 10.0) -> Any:
        """The next record. Raises `Closed` at the end; its descriptors are closed."""
        until = time.monotonic() + seconds
        while (received := self._channel.receive()) is None:
            left = until - time.monotonic()
            assert left > 0, "the engine said nothing"
            select.select([self._channel], [], [], left)
        data, descriptors = received
        for descriptor in descriptors:
            os.close(descriptor)
        return wire.decode(data)

    def readable(self, seconds: float = 10.0) -> bool:
        """Wait until there is something to read, and do not read it."""
        return bool(select.select([self._channel], [], [], seconds)[0])

    def until(self, kind: Any, seconds: float = 10.0) -> Any:
        """The next record of a kind (or of several); those before are dropped."""
        while True:
            record = self.receive(seconds)
            if isinstance(record, kind):
                return record

    def ends(self, count: int = 1, seconds: float = 10.0) -> list[Any]:
        """Read until so many requests have ended; returns their terminal records, one for each."""
        found: list[Any] = []
        while len(found) < count:
            record = self.until((m.Done, m.Failed, m.Refused, m.Cancelled), seconds)
            many = len(record.items) if isinstance(record, (m.Done, m.Cancelled)) else 1
            found += [record] * many
        assert len(found) == count, f"{len(found)} requests ended, {count} were expected"
        return found

    def why_closed(self, seconds: float = 10.0) -> str:
        """Read until the engine ends the connection; returns the reason that it gave."""
        reason = ""
        while True:
            try:
                record = self.receive(seconds)
            except Closed:
                return reason
            if isinstance(record, m.Rejected):
                reason = record.text

    def segment(self, size: int, number: int = 1) -> tuple[int, mmap.mmap]:
        """A proper segment, added; returns its descriptor (the caller's to close) and mapping."""
        descriptor = segment.create(size)
        self.send(m.AddSegment(number, size), descriptor)
        mapping = mmap.mmap(descriptor, size)
        self._maps.append(mapping)
        return descriptor, mapping

    def layout(
        self, like: np.ndarray | Signature, number: int = 1, model: int = 0, name: str = ""
    ) -> None:
        """Say what the requests of this layout carry."""
        if isinstance(like, np.ndarray):
            like = (TensorSpec(str(like.dtype), like.shape[1:], name),)
        self.send(m.Layout(number, model, like))

    def submit(
        self,
        *,
        rows: int,
        input_bytes: int,
        length: int,
        offset: int = 0,
        segment: int = 1,
        layout: int = 1,
        deadline: int = 0,
    ) -> int:
        """Ask for these bytes of a segment to be run; returns the request's number."""
        self.request += 1
        item = (
            self.request, segment, layout, offset, length, input_bytes, rows, 0, 0, deadline, 1,
        )  # fmt: skip
        self.send(m.Submit([item]))
        return self.request

    def ask(self, x: np.ndarray, mapping: mmap.mmap, length: int = 0, offset: int = 0) -> int:
        """Write rows into segment 1 and submit them under layout 1."""
        data = np.ascontiguousarray(x).tobytes()
        size = -(-len(data) // 64) * 64
        mapping[offset : offset + len(data)] = data
        return self.submit(
            rows=len(x), input_bytes=size, length=length or size + 4096, offset=offset
        )

    def close(self) -> None:
        """Hang up and unmap."""
        self._channel.close()
        for mapping in self._maps:
            mapping.close()
        self._maps.clear()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
