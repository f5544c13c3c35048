"""The least an HTTP server can do for a row: receive it, answer it, one at a time, no batches.

    python -m benchmarks.core.systems.bare_server SETTINGS PORT

It knows its only client. What the driver reaches against it is the driver's own limit, or less.
"""

import contextlib
import select
import socket
import sys

import numpy as np

from benchmarks.core.processes import end_with_input
from benchmarks.core.work import ANSWER_WORDS, ROW_BYTES, answer

_HEADER = (
    f"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
    f"Content-Length: {ANSWER_WORDS * 8}\r\n\r\n"
).encode()
_RECEIVE_BUFFER_BYTES = 512 * 1024


class _Connection:
    """Collects a request in a fixed buffer and answers it."""

    def __init__(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = accepted
        self._buffer = bytearray(ROW_BYTES + 4096)
        self._view = memoryview(self._buffer)
        self._received = 0

    def receive(self) -> bool:
        """Take what has come, and answer if it is a whole request; false when the peer left."""
        count = self._socket.recv_into(self._view[self._received :])
        self._received += count
        body = self._buffer.find(b"\r\n\r\n", 0, min(self._received, 4096)) + 4
        if body > 3 and self._received == body + ROW_BYTES:
            row = np.frombuffer(self._buffer, np.uint8, ROW_BYTES, body).copy()
            self._socket.sendmsg([_HEADER, answer(row[np.newaxis]).data])
            self._received = 0
        return count > 0

    def close(self) -> None:
        self._socket.close()


def main() -> None:
    end_with_input()
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    listener.bind(("127.0.0.1", int(sys.argv[2])))
    listener.listen(128)
    connections: dict[int, _Connection] = {}
    with select.epoll() as poll:
        poll.register(listener, select.EPOLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == listener.fileno():
                    accepted = listener.accept()[0]
                    connections[accepted.fileno()] = _Connection(accepted)
                    poll.register(accepted, select.EPOLLIN)
                    continue
                present = False
                with contextlib.suppress(ConnectionError, BlockingIOError):
                    present = connections[descriptor].receive()
                if not present:
                    poll.unregister(descriptor)
                    connections.pop(descriptor).close()


if __name__ == "__main__":
    main()
