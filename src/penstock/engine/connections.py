"""The clients' connections: accepted, read, written to, ended.

::

    accept ▶ [open] ▶ what it says: Core.take_client
               │      what it is told: to_client; when that was too much and is read: Core.caught_up
               ▼
           [dropped] ▶ sweep: closed, Core.disconnected

A connection is dropped when its client's process exits, closes it, breaks the protocol or asks for
more without reading what it got; `sweep` follows when the round of events is over, so nothing is
closed that a handler still has in hand. One that cannot be written to is only *deaf*: what it has
sent before is still read.

Descriptors may run out. Clients get their part of them (`allowance`), and are told so when that is
taken. If there are none at all, whoever wants to connect waits until there are some again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections import Counter
from functools import partial

from penstock.engine.allowance import Allowance
from penstock.engine.complaints import Complaints
from penstock.engine.core import Core
from penstock.engine.poller import Poller
from penstock.transport import messages as m
from penstock.transport import rendezvous, wire
from penstock.transport.channel import Channel, Closed, Flooded, Oversized

_MESSAGES_AT_ONCE = 64

log = logging.getLogger("penstock.engine")


class Connection:
    """A client's socket and the pidfd of its process."""

    __slots__ = ("channel", "deaf", "dropped", "number", "pid", "pidfd", "writing")

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.pid = rendezvous.peer(sock)[0]
        self.pidfd = rendezvous.peer_pidfd(sock)
        self.channel = Channel(sock)
        self.writing = False
        self.deaf = False
        self.dropped = ""


class Connections:
    """Those of all clients, by their numbers. `dropping`: what `sweep` has to do."""

    def __init__(self, core: Core, poller: Poller, group: str, allowance: Allowance) -> None:
        self.dropping: list[Connection] = []
        self._core = core
        self._poller = poller
        self._group = group
        self._allowance = allowance
        self._complaints = Complaints()
        self._connections: dict[int, Connection] = {}
        self._of_process = Counter[int]()
        self._last_number = 0
        self._resting: socket.socket | None = None
        self._short = False  # of descriptors, when somebody wanted to connect

    def listen(self, listener: socket.socket) -> None:
        """Let clients in that come here."""
        self._poller.add(listener.fileno(), lambda _: self._accept(listener))

    def tick(self, now: int) -> None:
        """Once a second."""
        if self._resting is not None:
            listener, self._resting = self._resting, None
            self.listen(listener)
        self._complaints.sum_up(now)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_MESSAGES_AT_ONCE):
            try:
                sock, _ = listener.accept()
                try:
                    self._admit(sock)
                except BaseException:
                    sock.close()
                    raise
            except BlockingIOError:
                return
            except OSError as error:
                self._rest(listener, error)
                return
            self._short = False

    def _rest(self, listener: socket.socket, error: OSError) -> None:
        """The poller would call again at once, and in vain."""
        if not self._short:
            self._complaints.tell("nobody can connect just now, they wait in line: %s", error)
        self._short = True
        self._poller.remove(listener.fileno())
        self._resting = listener

    def _admit(self, sock: socket.socket) -> None:
        pid = rendezvous.peer(sock)[0]
        refusal = (
            rendezvous.admits(sock, self._group)
            or self._allowance.connection(len(self._connections), self._of_process[pid])
            or self._allowance.descriptor(sock.fileno())
        )
        if refusal:
            self._complaints.tell("connection of process %d refused: %s", pid, refusal)
            with contextlib.suppress(OSError):
                sock.send(wire.encode(m.Rejected(refusal)))
            sock.close()
            return
        connection = Connection(self._last_number + 1, sock)
        self._last_number += 1
        self._connections[connection.number] = connection
        self._of_process[pid] += 1
        self._core.connected(connection.number, pid)
        try:
            self._poller.add(connection.channel.fileno(), partial(self._from_client, connection))
            if connection.pidfd is not None:
                self._poller.add(connection.pidfd, partial(self._client_exited, connection))
        except OSError as error:
            self.disconnect(connection.number, f"it cannot be watched: {error}")

    def _from_client(self, connection: Connection, _: int, drain: bool = False) -> None:
        try:
            if connection.writing:
                if not connection.channel.flush():
                    self._core.caught_up(connection.number)
                self._watch_writing(connection)
            for _ in range(_MESSAGES_AT_ONCE if drain else 1):  # the poller calls again for more
                if connection.dropped:
                    return
                received = connection.channel.receive()
                if received is None:
                    return
                if received[1] and self._beyond(connection, received[1]):
                    return
                self._core.take_client(connection.number, *received, time.monotonic_ns())
        except Oversized as error:
            self.disconnect(connection.number, str(error))
        except Closed as error:
            self._drop(connection, str(error))

    def _beyond(self, connection: Connection, descriptors: list[int]) -> bool:
        """Whether a client takes more descriptors than are left for it and its like."""
        refusal = self._allowance.descriptor(max(descriptors))
        if refusal:
            for descriptor in descriptors:
                os.close(descriptor)
            self.disconnect(connection.number, refusal)
        return bool(refusal)

    def _client_exited(self, connection: Connection, _: int) -> None:
        self._from_client(connection, 0, drain=True)  # its last words
        self._drop(connection, "its process exited")

    def to_client(self, client: int, data: bytes, descriptor: int = -1) -> bool:
        """Send to a client; returns whether it takes more. One that goes on to be sent something
        without reading it is dropped."""
        connection = self._connections.get(client)
        if connection is None or connection.dropped or connection.deaf:
            return True
        try:
            connection.channel.send(data, (descriptor,) if descriptor >= 0 else ())
        except Closed:
            connection.deaf = True  # what it has sent before is still read
            return True
        except Flooded as error:
            self._complaints.tell("client %d is dropped: %s", client, error)
            self._drop(connection, str(error))
            return True
        if connection.channel.wants_write:
            self._watch_writing(connection)
            return False
        return True

    def disconnect(self, client: int, reason: str) -> None:
        """End the connection of a client that broke the protocol."""
        connection = self._connections.get(client)
        if connection is None or connection.dropped:
            return
        self._complaints.tell("client %d is disconnected: %s", client, reason)
        with contextlib.suppress(Closed, Flooded):
            connection.channel.send(wire.encode(m.Rejected(reason)))
        self._drop(connection, reason)

    def _watch_writing(self, connection: Connection) -> None:
        if connection.writing != connection.channel.wants_write:
            connection.writing = connection.channel.wants_write
            self._poller.watch_write(connection.channel.fileno(), connection.writing)

    def _drop(self, connection: Connection, reason: str) -> None:
        if not connection.dropped:
            connection.dropped = reason
            self.dropping.append(connection)

    def sweep(self) -> None:
        """Close and forget those that were dropped."""
        for connection in self.dropping:
            log.debug("client %d is gone: %s", connection.number, connection.dropped)
            self._poller.remove(connection.channel.fileno())
            connection.channel.close()
            if connection.pidfd is not None:
                self._poller.remove(connection.pidfd)
                os.close(connection.pidfd)
            del self._connections[connection.number]
            self._of_process[connection.pid] -= 1
            if not self._of_process[connection.pid]:
                del self._of_process[connection.pid]
            self._core.disconnected(connection.number)
        self.dropping.clear()

    def unsent(self) -> bool:
        """Whether somebody who is still there has not taken all that was sent."""
        return any(
            connection.channel.wants_write and not connection.dropped
            for connection in self._connections.values()
        )

    def close(self) -> None:
        """The engine ends: no client can be reached any more."""
        self._complaints.close()
        for connection in self._connections.values():
            connection.channel.close()
