"""Another machine's supervisor, which does as the first one's says: see `peers`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any

from penstock.errors import ConfigError
from penstock.train.launcher.job import Job
from penstock.train.launcher.result import Result
from penstock.train.launcher.talk import AGREEING, Line, Peer, lost, patience
from penstock.train.launcher.watch import Watch
from penstock.train.nodes import check_address


class Member(Peer):
    """Another machine's supervisor."""

    def __init__(self, job: Job, address: str, watch: Watch, say: Callable[[str], None]) -> None:
        super().__init__(job, watch, say)
        self._address = check_address(address)
        self._line: Line | None = None
        self._going = -1
        self._verdict: Result | None = None
        self._again = self._told = False
        self._refused = ""

    def begin(self, attempt: int) -> int | None:
        """Call the head, if that was not done, and wait until it says go."""
        self.stopped, self._verdict = False, None
        self._again = self._told = False
        timeout = self._job.timeout
        if self._line is None and not self._wait(self._connect, timeout):
            if self._watch.orders:
                return None
            host, port = self._address
            raise ConfigError(f"nobody answers at {host}:{port} within {timeout:g} s (rank 0)")
        gone = self._wait(lambda: self._going >= attempt or self._verdict, 2 * timeout)
        if self._refused:
            raise ConfigError(f"the job's first machine refuses this one: {self._refused}")
        return self._going if gone and self._verdict is None else None

    def tell(self, result: Result) -> None:
        """The head passes it on."""
        if self._line is not None and not self._told:
            self._told = True
            self._line.send({"result": result.to_dict()})

    def agree(self, result: Result, left: int) -> tuple[Result, bool]:
        """The head decides."""
        self.tell(result)
        self._wait(lambda: self._verdict is not None, patience(result) + AGREEING)
        return self._verdict or lost("rank 0"), self._again

    def close(self) -> None:
        """Hang up."""
        if self._line is not None:
            self._line.close()

    def _connect(self) -> bool:
        try:
            sock = socket.create_connection(self._address, timeout=2.0)
        except OSError:
            return False
        self._line = Line(sock, self._watch, self._heard)
        self._line.send({"hello": [self._job.rank, self._terms]})
        return True

    def _heard(self, message: Any) -> None:
        if message is None:
            self.stopped = True
            self._verdict = self._verdict or lost("rank 0")
        elif "go" in message:
            self._going = int(message["go"])
        elif "stop" in message:
            self.stopped = True
        elif "refused" in message:
            self._refused = str(message["refused"])
        elif "verdict" in message:
            with contextlib.suppress(ValueError):
                self._verdict = Result.from_dict(message["verdict"])
                self._again = message.get("again") is True
