"""A worker's process as the engine holds it: its channel, its pidfd, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from penstock import launch
from penstock.transport.channel import Channel, pair

_BACKLOG = 64 << 20
_DESCRIPTORS = 1 << 16  # a batch may come with a segment a row, and the worker be busy with another


class WorkerProcess:
    """One process; when it has exited, `reap` and forget it."""

    def __init__(
        self,
        index: int,
        settings: str,
        descriptors: dict[str, int],
        environment: dict[str, str],
    ) -> None:
        ours, theirs = pair()
        try:
            self.popen = launch.start(
                "penstock.worker",
                settings,
                {"channel": theirs.fileno()} | descriptors,
                detached=False,
                environment=environment,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.index = index
        self.channel = Channel(ours, _BACKLOG, _DESCRIPTORS)
        self.broken = False  # it said something that is no message: nothing more is read
        try:
            self.pidfd = os.pidfd_open(self.popen.pid)
        except BaseException:
            self.channel.close()
            self.kill()
            self.popen.wait()
            raise
        self._stopped_since = 0.0

    def kill(self) -> None:
        """End it and what shares its process group, now."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)

    def stopped_for(self) -> float:
        """For how long it has been seen stopped (SIGSTOP), in seconds."""
        if _state(self.popen.pid) != "T":
            self._stopped_since = 0.0
            return 0.0
        now = time.monotonic()
        self._stopped_since = self._stopped_since or now
        return now - self._stopped_since

    def reap(self) -> str:
        """After its exit: collect it, and say how it ended."""
        self.channel.close()
        os.close(self.pidfd)
        code = self.popen.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        return launch.exit_text(code)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def reap_orphans(known: set[int]) -> int:
    """Kill and collect adopted processes (what dead workers left); returns how many there were."""
    found = 0
    for pid in launch.children(os.getpid()):
        if pid not in known:
            found += 1
            launch.kill_family(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    return found
