"""A client of an HTTP server that is hardly there: raw sockets, epoll, keep-alive.

Each connection has one request outstanding. The header is encoded once; header and row leave in
one `sendmsg` straight from the client's memory; an answer is received into a fixed buffer.
"""

import select
import socket
import time
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from benchmarks.core.stopwatch import Recorder
from benchmarks.core.work import ANSWER_WORDS, ROW_BYTES
from benchmarks.core.workload import Rows

_BUFFER_BYTES = 64 * 1024
_SEND_BUFFER_BYTES = 512 * 1024


class HttpFailure(Exception):
    """The server closed a connection or answered with something other than 200."""


class _Connection:
    """One keep-alive connection: sends a row, collects its answer."""

    def __init__(self, host: str, port: int, header: bytes) -> None:
        self._socket = socket.create_connection((host, port), timeout=10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._socket.setblocking(False)
        self._header = memoryview(header)
        self._unsent: list[memoryview] = []
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._received = 0
        self.sent_at = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, row: npt.NDArray[np.uint8]) -> bool:
        """Send a row; false if the socket is full and `flush` must go on when it is not."""
        self.sent_at = time.monotonic_ns()
        self._received = 0
        self._unsent = [self._header, row.data]
        return self.flush()

    def flush(self) -> bool:
        while self._unsent:
            try:
                count = self._socket.sendmsg(self._unsent)
            except BlockingIOError:
                return False
            while self._unsent and count >= len(self._unsent[0]):
                count -= len(self._unsent.pop(0))
            if count:
                self._unsent[0] = self._unsent[0][count:]
        return True

    def receive(self) -> npt.NDArray[np.uint64] | None:
        """The answer, as a view that lasts until the next row is sent, or None: not all here."""
        try:
            count = self._socket.recv_into(self._view[self._received :])
        except BlockingIOError:
            return None
        if count == 0:
            raise HttpFailure("the server closed the connection")
        self._received += count
        body = self._buffer.find(b"\r\n\r\n", 0, self._received) + 4
        if body == 3:
            return None
        head = bytes(self._buffer[:body]).lower()
        if not head.startswith(b"http/1.1 200"):
            raise HttpFailure(bytes(self._buffer[: self._received]).decode(errors="replace"))
        name = head.index(b"content-length:")
        length = int(head[name + 15 : head.index(b"\r\n", name)])
        if length != ANSWER_WORDS * 8:
            raise HttpFailure(f"an answer of {length} bytes")
        if self._received < body + length:
            return None
        return np.frombuffer(self._buffer, np.uint64, ANSWER_WORDS, body)

    def close(self) -> None:
        self._socket.close()


class HttpExchange:
    """One client process: a connection for each outstanding request."""

    def __init__(self, endpoint: str, outstanding: int) -> None:
        url = urlsplit(endpoint)
        host, port = url.hostname or "127.0.0.1", url.port or 80
        header = (
            f"POST {url.path or '/'} HTTP/1.1\r\nHost: {host}:{port}\r\n"
            f"Content-Type: application/octet-stream\r\nContent-Length: {ROW_BYTES}\r\n\r\n"
        ).encode()
        self._connections = [_Connection(host, port, header) for _ in range(outstanding)]

    def run(self, rows: Rows, recorder: Recorder) -> None:
        slot_of = {connection.fileno(): slot for slot, connection in enumerate(self._connections)}
        with select.epoll() as poll:
            for descriptor in slot_of:
                poll.register(descriptor, select.EPOLLIN)
            for slot in slot_of.values():
                self._send(poll, slot, rows)
            waiting = len(slot_of)
            while waiting:
                for descriptor, events in poll.poll():
                    slot = slot_of[descriptor]
                    connection = self._connections[slot]
                    if events & select.EPOLLOUT and connection.flush():
                        poll.modify(descriptor, select.EPOLLIN)
                    if not events & ~select.EPOLLOUT:
                        continue
                    answer = connection.receive()
                    if answer is None:
                        continue
                    now = time.monotonic_ns()
                    rows.check(slot, answer)
                    if recorder.finished(connection.sent_at, now):
                        self._send(poll, slot, rows)
                    else:
                        waiting -= 1

    def _send(self, poll: select.epoll, slot: int, rows: Rows) -> None:
        connection = self._connections[slot]
        if not connection.send(rows.fresh(slot)):
            poll.modify(connection.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
