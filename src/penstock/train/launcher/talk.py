"""What the machines of a job have in common when they talk: a line, a wait, a few limits."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from typing import Any

from penstock.train.launcher.blame import Ending
from penstock.train.launcher.job import Job
from penstock.train.launcher.result import How, Result
from penstock.train.launcher.watch import Watch

AGREEING = 60.0  # seconds in which all must have ended their tasks
_PAUSE = 0.2
_LONGEST = 1 << 20


class Line:
    """A connection that carries JSON objects. Broken, it hands out `None`, once."""

    def __init__(self, sock: socket.socket, watch: Watch, heard: Callable[[Any], None]) -> None:
        self._sock, self._watch, self._heard, self._rest = sock, watch, heard, b""
        for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.settimeout(10.0)
        watch.add(sock, self._read)

    def send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # that it is broken is heard when it is read
            self._sock.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        self._watch.remove(self._sock)
        self._sock.close()

    def _read(self) -> None:
        try:
            data = self._sock.recv(1 << 16)
            *lines, self._rest = (self._rest + data).split(b"\n")
            if not data or len(self._rest) > _LONGEST:
                raise ConnectionError
            messages = [json.loads(line) for line in lines]
        except (OSError, ValueError):
            self.close()
            self._heard(None)
            return
        for message in messages:
            self._heard(message)


class Peer:
    """What the head and the members have in common."""

    def __init__(self, job: Job, watch: Watch, say: Callable[[str], None]) -> None:
        self._job, self._watch, self._say = job, watch, say
        self.stopped = False
        # What must be the same everywhere.
        self._terms = [list(job.nodes), job.workers, job.servers, job.restarts]

    def _wait(self, condition: Callable[[], Any], seconds: float) -> bool:
        """Until it holds; not longer, and not when told to end."""
        until, orders = time.monotonic() + seconds, self._watch.orders
        while not condition():
            if self._watch.orders > orders or time.monotonic() > until:
                return False
            self._watch.wait(_PAUSE)
        return True


def lost(who: str) -> Result:
    """A machine that is heard of no more."""
    reason = "its machine's connection broke"
    return Result(How.FAILED, Ending(who, None, time.monotonic(), (), reason))


def patience(result: Result) -> float:
    """How long the others may take to end: any time, unless it is over already."""
    return float("inf") if result.how is How.DONE else AGREEING
