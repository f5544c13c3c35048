"""The first machine's supervisor, as the centre of all machines: see `peers`."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.errors import ConfigError
from penstock.train.launcher.job import Job
from penstock.train.launcher.result import How, Result, joined
from penstock.train.launcher.talk import Line, Peer, lost, patience
from penstock.train.launcher.watch import Watch
from penstock.train.nodes import check_address


class Head(Peer):
    """The first machine's supervisor."""

    def __init__(self, job: Job, address: str, watch: Watch, say: Callable[[str], None]) -> None:
        super().__init__(job, watch, say)
        self._members: dict[int, Line] = {}
        self._results: dict[int, Result] = {}
        port = check_address(address)[1]
        try:
            self._listener = socket.create_server(("", port), backlog=job.machines)
        except OSError as error:
            raise ConfigError(
                f"port {port}, where the other machines' launchers call, cannot be used: "
                f"{error.strerror}"
            ) from None
        watch.add(self._listener, self._accept)

    def begin(self, attempt: int) -> int | None:
        """Wait for all, then let them go."""
        self.stopped, self._results = False, {}
        absent = self._job.machines - 1 - len(self._members)
        if absent:
            self._say(f"waits for {absent} more machine{'s' if absent > 1 else ''}")
        if not self._wait(lambda: len(self._members) == self._job.machines - 1, self._job.timeout):
            missing = [n for n in range(1, self._job.machines) if n not in self._members]
            names = ", ".join(f"{n} ({self._job.nodes[n]})" for n in missing)
            if missing and not self._watch.orders:
                raise ConfigError(f"within {self._job.timeout:g} s nothing came from rank {names}")
            return None
        self._send_all({"go": attempt})
        return attempt

    def tell(self, result: Result) -> None:
        """Stop all."""
        self._send_all({"stop": True})

    def agree(self, result: Result, left: int) -> tuple[Result, bool]:
        """Hear all, and tell them what follows."""
        self._wait(lambda: len(self._results) == self._job.machines - 1, patience(result))
        for rank in range(1, self._job.machines):
            self._results.setdefault(rank, lost(f"rank {rank}"))
        verdict = joined([result, *self._results.values()])
        again = verdict.may_pass and left > 0
        self._send_all({"verdict": verdict.to_dict(), "again": again})
        return verdict, again

    def close(self) -> None:
        """Hang up."""
        self._watch.remove(self._listener)
        self._listener.close()
        for line in self._members.values():
            line.close()

    def _send_all(self, message: dict[str, Any]) -> None:
        for line in self._members.values():
            line.send(message)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        rank = -1

        def heard(message: Any) -> None:
            nonlocal rank
            if rank < 0:
                rank = self._welcome(line, message)
            elif message is None:
                self._members.pop(rank, None)
                self._record(rank, lost(f"rank {rank}"))
            elif "result" in message:
                with contextlib.suppress(ValueError):
                    self._record(rank, Result.from_dict(message["result"]))

        line = Line(sock, self._watch, heard)

    def _welcome(self, line: Line, message: Any) -> int:
        hello = message.get("hello") if isinstance(message, dict) else None
        if not isinstance(hello, list) or len(hello) != 2:
            line.close()
            return -1
        rank, terms = hello
        if terms != self._terms or rank not in range(1, self._job.machines):
            line.send({"refused": f"rank 0 runs with {self._terms}, this one with {terms}"})
        elif rank in self._members:
            line.send({"refused": f"there is a rank {rank} already"})
        else:
            self._members[rank] = line
            return int(rank)
        line.close()
        return -1

    def _record(self, rank: int, result: Result) -> None:
        """The first that a machine says holds. When that was is told by this machine's clock."""
        if result.blame is not None:
            result = replace(result, blame=replace(result.blame, at=time.monotonic()))
        if self._results.setdefault(rank, result) is not result:
            return
        if result.how in (How.FAILED, How.INTERRUPTED):
            self.stopped = True
            self._send_all({"stop": True})
