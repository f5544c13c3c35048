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
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from functools import partial

from penstock.engine.core import Core
from penstock.engine.poller import Poller
from penstock.transport import messages as m
from penstock.transport import rendezvous, wire
from penstock.transport.channel import Channel, Closed, Flooded, Oversized

_MESSAGES_AT_ONCE = 64

log = logging.getLogger("penstock.engine")


class Connection:
    """A client's socket and the pidfd of its process."""

    __slots__ = ("channel", "deaf", "dropped", "number", "pidfd", "writing")

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.channel = Channel(sock)
        self.pidfd = rendezvous.peer_pidfd(sock)
        self.writing = False
        self.deaf = False
        self.dropped = ""


class Connections:
    """Those of all clients, by their numbers. `dropping`: what `sweep` has to do."""

    def __init__(self, core: Core, poller: Poller, group: str) -> None:
        self.dropping: list[Connection] = []
        self._core = core
        self._poller = poller
        self._group = group
        self._connections: dict[int, Connection] = {}
        self._last_number = 0

    def accept(self, listener: socket.socket) -> None:
        """Somebody wants to connect."""
        for _ in range(_MESSAGES_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.error("cannot accept a connection: %s", error)
                return
            refusal = rendezvous.admits(sock, self._group)
            if refusal:
                log.warning("connection refused: %s", refusal)
                with contextlib.suppress(OSError):
                    sock.send(wire.encode(m.Rejected(refusal)))
                sock.close()
                continue
            self._last_number += 1
            connection = Connection(self._last_number, sock)
            self._connections[connection.number] = connection
            self._core.connected(connection.number, rendezvous.peer(sock)[0])
            self._poller.add(connection.channel.fileno(), partial(self._from_client, connection))
            if connection.pidfd is not None:
                self._poller.add(connection.pidfd, partial(self._client_exited, connection))

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
                self._core.take_client(connection.number, *received, time.monotonic_ns())
        except Oversized as error:
            self.disconnect(connection.number, str(error))
        except Closed as error:
            self._drop(connection, str(error))

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
            log.warning("client %d is dropped: %s", client, error)
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
        log.warning("client %d is disconnected: %s", client, reason)
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
        for connection in self._connections.values():
            connection.channel.close()
