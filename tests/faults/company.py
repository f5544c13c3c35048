"""Who is there besides the test: processes that it may kill, and bystanders who must not mind.

A `Peer` is another process with a role of `tests/faults/peer.py`; it is told by lines on its input
and tells by lines of JSON. A `Bystander` is a client in a thread that asks without pause.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from penstock import Engine, connect
from tests.faults import leftovers
from tests.faults.models import Verb, answer_to, row, rows
from tests.faults.waiting import eventually

_ROOT = Path(__file__).resolve().parents[2]


class Peer:
    """Another process. Killed at the end of the test, if it has not ended before."""

    def __init__(self, role: str, *arguments: Any, **process: Any) -> None:
        places = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.peer", role, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=_ROOT,
            **process,
        )
        self._buffer = b""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def says(self, seconds: float = 15.0) -> Any:
        """The next thing that it tells."""
        assert self._process.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            ready = left > 0 and select.select([self._process.stdout], [], [], left)[0]
            assert ready, f"the peer said nothing for {seconds:g} s; so far {self._buffer!r}"
            chunk = os.read(self._process.stdout.fileno(), 65536)
            assert chunk, f"the peer ended ({self._process.wait(5)}); it said {self._buffer!r}"
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def tell(self, word: str) -> None:
        """Tell it to go on."""
        assert self._process.stdin is not None
        self._process.stdin.write(word.encode() + b"\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it, and see it gone."""
        self._process.kill()
        self._process.wait(10)

    def wait(self, seconds: float = 15.0) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait(seconds)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
        self._process.wait(10)


class Bystander:
    """A client that has nothing to do with what happens, and whose answers must all be right."""

    def __init__(self, engine: Engine, model: str | None = None) -> None:
        self._client = connect(str(engine.address), label="bystander")
        self._model = model
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="bystander", daemon=True)
        self.answers = 0
        self.faults: list[str] = []

    def go_on(self, answers: int = 5, seconds: float = 20.0) -> None:
        """See it get some more right answers."""
        wanted = self.answers + answers
        eventually(
            lambda: self.answers >= wanted or self.faults,
            seconds,
            f"{answers} more answers after {wanted - answers}",
        )
        assert not self.faults, self.faults

    def _ask(self) -> None:
        number = 0
        while not self._ends.is_set() and not self.faults:
            number += 1
            several = rows(
                row(Verb.ANSWER, 0, number, 16), row(Verb.ANSWER, 0, number + 1_000_000, 16)
            )
            try:
                answers = self._client.predict(several, deadline=30, model=self._model)
            except Exception as error:
                self.faults.append(f"{type(error).__name__}: {error}")
                return
            if (answers[:, 0] != answer_to(several)).any():
                self.faults.append(f"{answers} for {several}")
            self.answers += 1

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(35)
        self._client.close()
        assert not self.faults, self.faults


def outstanding(engine: Engine) -> int:
    """How many requests the engine has of all its clients."""
    return sum(client.outstanding for client in engine.statistics().clients)


def others(engine: Engine) -> list[int]:
    """The pids of the processes, but this one, that are connected."""
    return [client.pid for client in engine.statistics().clients if client.pid != os.getpid()]


def worker_pids(engine: Engine) -> list[int]:
    """The pids of the workers, as the engine tells them."""
    return [worker.pid for worker in engine.statistics().workers]


def healthy(engine: Engine, seconds: float = 15.0) -> None:
    """Wait until every worker is ready."""
    eventually(lambda: engine.statistics().healthy, seconds, "every worker is ready")


def gone(*pids: int, seconds: float = 8.0) -> None:
    """Wait until these processes have ended."""
    eventually(
        lambda: not any(map(leftovers.alive, pids)),
        seconds,
        f"{[(pid, leftovers.command_of(pid)) for pid in pids]} have ended",
    )
