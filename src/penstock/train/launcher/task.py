"""A task's process: the user's script, its output as lines, its end.

It leads a process group of its own. If the supervisor dies, the kernel kills it.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock import launch
from penstock.train.cluster import Cluster
from penstock.train.launcher.blame import TAIL, Ending
from penstock.train.launcher.cards import Seat
from penstock.train.launcher.lines import Lines

_SET_PDEATHSIG = 1
_CHUNK = 1 << 16
_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Task:
    """One process. `pipe` and `pidfd` are for the caller to wait on; `close` when it is over."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        command: list[str],
        environment: Mapping[str, str],
        seat: Seat,
    ) -> None:
        self.name, self.cluster, self.seat = name, cluster, seat
        self.tail: collections.deque[str] = collections.deque(maxlen=TAIL)
        self.began = time.monotonic()
        self.ended = 0.0
        self.reason = ""  # why it was ended, if it was
        self.at_eof = False
        self._lines = Lines()
        self._stopped_since = 0.0
        self.pipe, theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.pipe, False)
        try:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                env=os.environ | dict(environment) | dict(seat.environment),
                pass_fds=seat.descriptors,
                process_group=0,
                preexec_fn=_die_with_parent,  # this process has no threads
            )
        except BaseException:
            os.close(self.pipe)
            raise
        finally:
            os.close(theirs)
        self.pidfd = os.pidfd_open(self.popen.pid)

    @property
    def runs(self) -> bool:
        """Whether it was not yet seen to end."""
        return self.popen.returncode is None

    def read(self) -> Iterator[str]:
        """Its new lines."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.pipe, _CHUNK)
            self.at_eof = not data
            yield from self._kept(self._lines.feed(data))

    def standing(self, now: float) -> str:
        """The state of a progress bar, now and then; nothing where there is none."""
        return self._lines.standing(now)

    def at_end(self) -> Iterator[str]:
        """After its exit: the lines that are left, without waiting for those who hold its pipe."""
        self.popen.wait()
        self.ended = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.pipe, _CHUNK):
                yield from self._kept(self._lines.feed(data))
        yield from self._kept(self._lines.end())

    def _kept(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            self.tail.append(line)
            yield line

    def signal(self, number: signal.Signals) -> None:
        """To its process group."""
        if not self.runs:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, number)

    def kill(self) -> None:
        """It and all below it, now."""
        if self.runs:
            launch.kill_family(self.popen.pid)
            self.signal(signal.SIGKILL)

    def stopped_for(self) -> float:
        """For how long it has been seen stopped (SIGSTOP), in seconds."""
        if _state(self.popen.pid) != "T":
            self._stopped_since = 0.0
            return 0.0
        self._stopped_since = self._stopped_since or time.monotonic()
        return time.monotonic() - self._stopped_since

    def ending(self) -> Ending:
        """How it failed."""
        at = self.ended or time.monotonic()
        return Ending(self.name, self.popen.returncode, at, tuple(self.tail), self.reason)

    def close(self) -> None:
        """Forget it; it has ended."""
        os.close(self.pipe)
        os.close(self.pidfd)


def command_of(script: str, arguments: tuple[str, ...]) -> list[str]:
    """How a task is started: with this Python, by way of `begin`."""
    return [sys.executable, "-m", "penstock.train.launcher.begin", script, *arguments]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
