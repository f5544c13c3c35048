"""A conversation with an engine: how are you, what happens, please end.

Speaks the clients' protocol, but sends no arrays, so it needs no numpy, and it is answered by an
engine that is still loading, too. Every wait has a limit: the engine may be stopped or stuck.
"""

from __future__ import annotations

import itertools
import os
import select
import time
from pathlib import Path
from typing import Any

from penstock.errors import EngineClosed
from penstock.statistics import Statistics, statistics_of
from penstock.transport import messages as m
from penstock.transport import rendezvous, wire
from penstock.transport.channel import Channel, Closed, Oversized

_PATIENCE = 0.5  # seconds


class Enquiry:
    """A connection to the engine at an address. Raises `EngineClosed` when there is none."""

    def __init__(self, address: Path) -> None:
        sock = rendezvous.dial(address, _PATIENCE)
        self.address = address
        self.pid = rendezvous.peer(sock)[0]
        self._pidfd = rendezvous.peer_pidfd(sock)
        self._channel = Channel(sock)
        self._tokens = itertools.count(1)
        try:
            self._send(m.Hello(m.VERSION, os.getpid(), "penstock command"))
        except EngineClosed:
            self.close()
            raise

    def close(self) -> None:
        """End the conversation."""
        self._channel.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def __enter__(self) -> Enquiry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def statistics(self, timeout: float) -> Statistics:
        """What the engine says of itself."""
        return statistics_of(self.ask(m.ASK_STATISTICS, timeout))

    def ask(self, what: int, timeout: float) -> bytes:
        """The engine's answer to one of the questions `ASK_…`."""
        token = next(self._tokens)
        self._send(m.Ask(token, what))
        until = time.monotonic() + timeout
        pieces: list[bytes] = []
        while True:
            record = self._receive(until)
            if isinstance(record, m.Rejected):
                raise EngineClosed(f"the engine at {self.address} refused: {record.text}")
            if isinstance(record, m.Answer) and record.token == token:
                pieces.append(record.data)
                if record.last:
                    return b"".join(pieces)

    def stop(self, drain: float) -> None:
        """Ask the engine to work off its queue, for at most `drain` seconds, and end."""
        self._send(m.Stop(drain))

    def wait_gone(self, timeout: float) -> bool:
        """Wait until the engine's process has exited; whether it has."""
        until = time.monotonic() + timeout
        if self._pidfd is not None:
            exited = select.select([self._pidfd], [], [], timeout)[0]
            return bool(exited)
        while not rendezvous.sweep(self.address):  # in another container: by its lock
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        return True

    def _send(self, record: Any) -> None:
        try:
            self._channel.send(wire.encode(record))
        except Closed:
            raise EngineClosed(f"the engine at {self.address} ended just now") from None

    def _receive(self, until: float) -> Any:
        while True:
            try:
                received = self._channel.receive()
                if received is not None:
                    return wire.decode(received[0])
            except (Closed, Oversized, wire.Malformed) as error:
                raise EngineClosed(f"the engine at {self.address}: {error}") from None
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._channel], [], [], left)[0]:
                raise EngineClosed(f"the engine at {self.address} does not answer")
