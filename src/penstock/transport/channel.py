"""A unix seqpacket socket that never blocks: whole messages, with descriptors beside them.

`send` hands a message to the kernel, or keeps it (`backlog` bytes at most) until the socket has
room again; the owner watches `wants_write` and calls `flush`. `receive` returns one message, or
`None` when there is none. The end of the stream is `Closed`: news, not an accident.

Descriptors: those handed to `send` stay the caller's (a copy is kept while the message waits);
those that `receive` returns belong to the receiver, close-on-exec, to be closed by it.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Sequence

from penstock.transport.wire import MAX_MESSAGE

MAX_DESCRIPTORS = 4
_FULL = (errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS)
_CONTROL_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
_FLAGS = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_TOO_LONG, _TOO_MANY = int(socket.MSG_TRUNC), int(socket.MSG_CTRUNC)  # enums are slow


class Closed(Exception):
    """The other side is gone."""


class Flooded(Exception):
    """The other side does not read: more is waiting for it than is allowed."""


class Oversized(Exception):
    """A message, or its number of descriptors, is larger than allowed, or than can be taken."""


class Stripped(Oversized):
    """A message whose descriptors were lost: this process can have no more. `data` has come."""

    def __init__(self, text: str, data: bytes) -> None:
        super().__init__(text)
        self.data = data


class Channel:
    """One end of a seqpacket connection. Not thread-safe; the owner brings the lock."""

    def __init__(self, sock: socket.socket, backlog: int = 8 << 20, descriptors: int = 64) -> None:
        """So many bytes, and descriptors, may wait for the other side to read."""
        sock.setblocking(False)
        self._sock = sock
        self._backlog = backlog
        self._most_descriptors = descriptors
        self._waiting_bytes = 0
        self._waiting_descriptors = 0
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._buffer = bytearray(MAX_MESSAGE + 1)
        self._buffers = [memoryview(self._buffer)]
        self.closed = False
        self._was_reset = False

    def fileno(self) -> int:
        """The socket's descriptor, to be polled."""
        return self._sock.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether messages wait for room in the socket."""
        return bool(self._waiting)

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send now or keep for later. Raises `Closed` or `Flooded`."""
        if self._waiting or not self._send_now(data, descriptors):
            if (
                self._waiting_bytes + len(data) > self._backlog
                or self._waiting_descriptors + len(descriptors) > self._most_descriptors
            ):
                raise Flooded(f"{len(self._waiting)} messages wait for it to be read")
            try:
                copies = [os.dup(descriptor) for descriptor in descriptors]
            except OSError as error:
                raise Flooded(f"no descriptor is left for a message to it: {error}") from None
            self._waiting_bytes += len(data)
            self._waiting_descriptors += len(copies)
            self._waiting.append((data, copies))

    def flush(self) -> bool:
        """Send what waits, as far as there is room; returns whether more waits. Raises `Closed`."""
        while self._waiting:
            data, descriptors = self._waiting[0]
            if not self._send_now(data, descriptors):
                return True
            self._waiting.popleft()
            self._waiting_bytes -= len(data)
            self._waiting_descriptors -= len(descriptors)
            _close_all(descriptors)
        return False

    def _send_now(self, data: bytes, descriptors: Sequence[int]) -> bool:
        try:
            if descriptors:
                rights = array.array("i", descriptors)
                self._sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            else:
                self._sock.send(data)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _FULL:
                return False
            raise Closed(str(error)) from None
        return True

    def receive(self) -> tuple[bytes, list[int]] | None:
        """The next message and its descriptors, or `None`. Raises `Closed` or `Oversized`."""
        try:
            size, control, flags, _ = self._sock.recvmsg_into(self._buffers, _CONTROL_BYTES, _FLAGS)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            # The other side went without having read everything; what it sent comes after this.
            if self._was_reset:
                raise Closed("end of stream") from None
            self._was_reset = True
            return self.receive()
        except OSError as error:
            raise Closed(str(error)) from None
        descriptors: list[int] = []
        for _, kind, data in control:
            if kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                descriptors.extend(numbers)
        if size == 0:
            _close_all(descriptors)
            raise Closed("end of stream")
        if size > MAX_MESSAGE or flags & _TOO_LONG:
            _close_all(descriptors)
            raise Oversized(f"a message of {size} bytes or more")
        data = bytes(self._buffers[0][:size])
        if flags & _TOO_MANY:
            _close_all(descriptors)
            if len(descriptors) == MAX_DESCRIPTORS:
                raise Oversized(f"a message with more than {MAX_DESCRIPTORS} descriptors")
            text = "a descriptor came with it, and its reader may open no more files (ulimit -n)"
            raise Stripped(text, data)
        return data, descriptors

    def end(self) -> None:
        """Close the connection, also for forked children that have a copy of the socket."""
        if not self.closed:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        self.close()

    def close(self) -> None:
        """Close this process's socket; what waits is dropped."""
        if not self.closed:
            self.closed = True
            for _, descriptors in self._waiting:
                _close_all(descriptors)
            self._waiting.clear()
            self._sock.close()


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected seqpacket sockets."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
