"""Children that always end: started in a group of their own, heard by JSON lines, ended by force
if they must be.

A child is told to leave by the end of its input, which comes too should this process be killed.
What is left of its group after that is killed. Children keep their temporary files and logs in the
`Workspace`, a folder that goes with the run.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_LEAVE_WITHIN = 3.0


class ChildFailed(Exception):
    """A child ended, or said nothing in time; carries the end of its log."""


class Workspace:
    """A temporary folder for the logs, sockets and files of all children of a run."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self._logs = 0

    def next_log(self) -> Path:
        self._logs += 1
        return self.folder / f"{self._logs}.log"

    def environment(self) -> dict[str, str]:
        """What every child gets: this repository, one thread for numpy, this folder for files."""
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "OPENBLAS_NUM_THREADS": "1",
            "TMPDIR": str(self.folder),
        }

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Child:
    """A Python module run as a process group of its own."""

    def __init__(self, command: Sequence[str], workspace: Workspace) -> None:
        self._name = " ".join(command)
        self._log = workspace.next_log()
        self._heard = b""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=workspace.environment(),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def say(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self.failure("cannot be reached") from error

    def hear(self, deadline: float) -> dict[str, Any]:
        """The next line from the child; ChildFailed if it ends or the deadline passes first."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._heard:
            patience = deadline - time.monotonic()
            if patience <= 0 or not select.select([descriptor], [], [], patience)[0]:
                raise self.failure("said nothing in time")
            chunk = os.read(descriptor, 1 << 20)
            if not chunk:
                raise self.failure("ended")
            self._heard += chunk
        line, self._heard = self._heard.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def failure(self, what: str) -> ChildFailed:
        log = self._log.read_text(errors="replace").strip()
        return ChildFailed(f"{self._name}: {what}\n{log[-2000:]}")

    def dismiss(self) -> None:
        """Ask the child to leave, by the end of its input."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def close(self, deadline: float) -> None:
        """End the child, which was told to leave, and all that it started; by force if late."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        self._kill_group()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


@contextlib.contextmanager
def children(commands: Sequence[Sequence[str]], workspace: Workspace) -> Iterator[list[Child]]:
    """Start many; all have ended when the block is left."""
    started: list[Child] = []
    try:
        for command in commands:
            started.append(Child(command, workspace))
        yield started
    finally:
        for child in started:
            child.dismiss()
        deadline = time.monotonic() + _LEAVE_WITHIN
        for child in started:
            child.close(deadline)


def end_with_input() -> None:
    """In a server: have its whole group killed when its input ends, for its starter has left."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.killpg(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
