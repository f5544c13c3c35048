"""Starting Penstock's own processes: `python -m penstock.…`, with settings and descriptors.

Not by fork, which would copy whatever threads and GPU state the caller has, and not by
`multiprocessing`, which would import the caller's `__main__` again. The settings travel as JSON in
an anonymous memory file; descriptors keep their numbers and are listed by name in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_PACKAGE_ROOT = Path(__file__).resolve().parent.parent
_SET_DEATH_SIGNAL = 1
_SET_SUBREAPER = 36


def start(
    module: str,
    settings: str,
    descriptors: Mapping[str, int],
    *,
    detached: bool,
    log: Any = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start `python -m module`. The descriptors stay the caller's, too, to be closed.

    `environment` is what is different for it.
    `detached`: in a session of its own, so that the terminal's signals do not reach it.
    """
    memory = os.memfd_create("penstock-settings", os.MFD_CLOEXEC)
    try:
        text = json.dumps({"settings": settings, "descriptors": dict(descriptors)})
        os.write(memory, text.encode())
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(memory)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(memory, *descriptors.values()),
            env=_environment() | dict(environment or {}),
            start_new_session=detached,
            process_group=None if detached else 0,
        )
    finally:
        os.close(memory)


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    if _PACKAGE_ROOT.name not in ("site-packages", "dist-packages"):
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), known]))
    return environment


def open_standard() -> list[int]:
    """Open what is closed of stdin, stdout and stderr, to nowhere; returns which were.

    Else the next descriptor that is made would be one of them: it could not be handed to a started
    process, and what is meant for a person would be written into it.
    """
    opened: list[int] = []
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free
            opened.append(number)
    return opened


def read_settings(arguments: list[str]) -> tuple[str, dict[str, int]]:
    """In the started process: its settings and descriptors (close-on-exec from here on).

    Signals that its starter blocks, and children whose end it does not want to know of, are the
    starter's own affair.
    """
    if len(arguments) != 2 or not arguments[1].isdigit():
        raise SystemExit(f"{arguments[0]} is started by penstock, not by hand")
    open_standard()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    memory = int(arguments.pop())  # a model that reads its program's arguments finds none
    with os.fdopen(memory, "rb") as file:
        file.seek(0)
        data = json.load(file)
    for descriptor in data["descriptors"].values():
        os.set_inheritable(descriptor, False)
    return data["settings"], data["descriptors"]


def heeded(signals: Iterable[signal.Signals]) -> set[signal.Signals]:
    """Those of them that whoever started this process has not told it to ignore: `nohup` does that
    with SIGHUP, a shell with SIGINT in the background."""
    return {number for number in signals if signal.getsignal(number) is not signal.SIG_IGN}


def wake_with_parent() -> None:
    """Should this process be stopped when its parent dies, it goes on, to see that."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGCONT, 0, 0, 0)


def adopt_orphans() -> None:
    """Grandchildren whose parent dies become children of this process, not of init."""
    ctypes.CDLL(None).prctl(_SET_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """The direct children of a process."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except (OSError, ValueError):
        pass
    return found


def kill_descendants(pid: int) -> None:
    """Kill everything below a process, those in sessions of their own too."""
    for child in children(pid):
        kill_family(child)


def kill_family(pid: int) -> None:
    """Kill a process and everything below it. Stopped first, it starts no other meanwhile."""
    _send(pid, signal.SIGSTOP)
    kill_descendants(pid)
    _send(pid, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def wait(process: subprocess.Popen[bytes], seconds: float) -> int:
    """`Popen.wait`, but for its naps of up to 50 ms between two looks: returns with the exit."""
    try:
        exited = os.pidfd_open(process.pid)
    except OSError:  # it was waited for before, or there are no more descriptors
        return process.wait(seconds)
    try:
        poll = select.poll()
        poll.register(exited, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)
    finally:
        os.close(exited)
    return process.wait(0)


def exit_text(code: int) -> str:
    """How a process ended, in words, from `Popen.returncode`."""
    if code >= 0:
        return f"it exited with code {code}"
    try:
        return f"it was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was killed by signal {-code}"
