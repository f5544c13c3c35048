"""Eight processes that ask for one image at a time, started, measured and ended together."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from penstock import launch
from penstock.errors import PenstockError

PROCESSES = 8
_READY_LIMIT = 120.0
_ANSWER_LIMIT = 60.0
_END_LIMIT = 1.0
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Crowd:
    """The processes. `engine` is where they ask; "" when each has a copy of its own."""

    def __init__(self, engine: str, seconds: float) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self.seconds = seconds
        self.began = time.monotonic()
        try:
            for number in range(PROCESSES):
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "penstock.cli.demo.asker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    process_group=0,  # Ctrl-C is for the demo, which then ends them
                )
                self._processes.append(process)
                self._say(process, {"engine": engine, "seed": number, "seconds": seconds})
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        return [process.pid for process in self._processes]

    def wait_ready(self) -> float:
        """Wait until each has had its first answer; seconds since the first was started."""
        self._hear_all(_READY_LIMIT)
        return time.monotonic() - self.began

    def go(self) -> None:
        """Let them ask."""
        for process in self._processes:
            self._say(process, "go")

    def results(self) -> list[dict[str, Any]]:
        """What each of them measured, when they are done."""
        return self._hear_all(self.seconds + _ANSWER_LIMIT)

    def end(self) -> None:
        """End every process: the end of its input says so, else it is killed."""
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        until = time.monotonic() + _END_LIMIT
        for process in self._processes:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _say(self, process: subprocess.Popen[bytes], value: Any) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then its silence is the news
            process.stdin.write(json.dumps(value).encode() + b"\n")
            process.stdin.flush()

    def _hear_all(self, limit: float) -> list[Any]:
        """One line of each, in the order of the processes."""
        heard: dict[int, bytes] = dict.fromkeys(range(len(self._processes)), b"")
        until = time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            for number, process in enumerate(self._processes):
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, number)
            while selector.get_map():
                if time.monotonic() >= until:
                    raise PenstockError(f"a process of the demo was silent for {limit:g} s")
                for key, _ in selector.select(1.0):
                    chunk = os.read(key.fd, 1 << 20)
                    if not chunk:
                        code = self._processes[key.data].wait()
                        raise PenstockError(f"a process of the demo: {launch.exit_text(code)}")
                    heard[key.data] += chunk
                    if heard[key.data].endswith(b"\n"):
                        selector.unregister(key.fileobj)
        return [json.loads(line) for line in heard.values()]


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Processes that are started meanwhile get these variables."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def threads(count: int) -> dict[str, str]:
    """Variables by which numpy's matrix products use so many threads."""
    return dict.fromkeys(_THREAD_VARIABLES, str(count))


def memory_of(pids: Iterable[int]) -> int:
    """Bytes that these processes take together: shared pages are counted once (PSS)."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total
