"""Signals to the processes of a real engine. Each returns the process's id when it took effect.

`kill_worker` returns when the engine has noticed, too, so that `wait_healthy` afterwards means the
successor. A stopped worker is noticed within some two seconds, killed and replaced:
`wait_healthy(engine, without=pid)` waits for that.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

from penstock.client.client import Client
from penstock.engine.owner import Engine
from penstock.errors import EngineClosed

_LIMIT = 10.0
_PAUSE = 0.002


def kill_worker(engine: Engine | Client, index: int = 0) -> int:
    """SIGKILL a worker; returns when it is gone and the engine knows."""
    pid = _worker(engine, index)
    _kill(pid)
    _wait(lambda: _current(engine, index) != pid, f"the engine to notice that {pid} is gone")
    return pid


def stop_worker(engine: Engine | Client, index: int = 0) -> int:
    """SIGSTOP a worker; returns when it stands still."""
    pid = _worker(engine, index)
    os.kill(pid, signal.SIGSTOP)
    _wait(lambda: _state(pid) in "TZ", f"process {pid} to stop")
    return pid


def continue_worker(engine: Engine | Client, index: int = 0) -> int:
    """SIGCONT a worker; returns when it moves again."""
    pid = _worker(engine, index)
    os.kill(pid, signal.SIGCONT)
    _wait(lambda: _state(pid) != "T", f"process {pid} to continue")
    return pid


def kill_engine(engine: Engine | Client) -> int:
    """SIGKILL the engine's own process; returns when it is gone. Its workers exit by themselves."""
    pid = engine.statistics().pid
    _kill(pid)
    return pid


def _worker(engine: Engine | Client, index: int) -> int:
    """The process in that worker's place; waits for one that is just being restarted."""
    _wait(lambda: _current(engine, index) != 0, f"worker {index} to have a process")
    return _current(engine, index)


def _current(engine: Engine | Client, index: int) -> int:
    with contextlib.suppress(EngineClosed):
        return engine.statistics().workers[index].pid
    return 0


def _kill(pid: int) -> None:
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        if not select.select([process], [], [], _LIMIT)[0]:
            raise TimeoutError(f"process {pid} was killed and is still there")
    finally:
        os.close(process)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def _wait(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _LIMIT
    while not condition():
        if time.monotonic() >= until:
            raise TimeoutError(f"waited {_LIMIT:g} s for {what}")
        time.sleep(_PAUSE)
