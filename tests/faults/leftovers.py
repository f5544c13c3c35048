"""What tests must not leave behind: the one check that ends every test here.

- processes: whatever carries the test's mark in its environment (engines, workers and all that
  they started, in whatever session), and every descendant of this process
- in this process: descriptors, mappings of segments, threads
- files in the folder where engines put their sockets and locks

`belongings` counts before, `remains` says afterwards what there is more. `Footprint` is the same
idea for another process: descriptors, threads, segments and memory of an engine or a worker.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

MARK = "PENSTOCK_TEST_FOLDER"  # the variable whose value marks a test's processes
SEGMENT = "memfd:penstock"
_KEPT_THREADS = {"penstock-callbacks"}  # one for the process, kept for good


@dataclass(frozen=True)
class Belongings:
    """What this process has at one moment."""

    descriptors: frozenset[tuple[int, str]]
    mappings: int
    threads: frozenset[threading.Thread]
    processes: frozenset[int]


def belongings() -> Belongings:
    """What this process has now."""
    return Belongings(
        frozenset(descriptors(os.getpid()).items()),
        mappings(os.getpid()),
        frozenset(threading.enumerate()),
        frozenset(descendants(os.getpid())),
    )


def remains(before: Belongings, mark: str, folder: Path) -> list[str]:
    """What there is more than before, in words; empty when all is as it was.

    Cyclic garbage is collected first: errors that a test caught keep frames alive, and with them
    whatever those frames hold. That clients themselves need no collector is a test of its own.
    """
    gc.collect()
    now = belongings()
    found = [f"process {pid}: {command}" for pid, command in marked(mark).items()]
    found += [f"child {pid}: {command_of(pid)}" for pid in now.processes - before.processes]
    found += [
        f"descriptor {number}: {target}" for number, target in now.descriptors - before.descriptors
    ]
    if now.mappings > before.mappings:
        found.append(f"{now.mappings - before.mappings} mappings of segments")
    found += [
        f"thread {thread.name}"
        for thread in now.threads - before.threads
        if thread.name not in _KEPT_THREADS
    ]
    if folder.is_dir():
        found += [f"file {path.name}" for path in folder.iterdir()]
    return found


def kill_marked(mark: str) -> None:
    """End what a failed test has left, so that the next one starts clean."""
    for pid in marked(mark):
        kill(pid)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal; the process may be gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def marked(mark: str) -> dict[int, str]:
    """The processes that were started under this mark, but this one, with their commands."""
    wanted = f"{MARK}={mark}".encode()
    found: dict[int, str] = {}
    for pid in _pids():
        if pid == os.getpid():
            continue
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in variables:
            found[pid] = command_of(pid)
    return found


def alive(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs, zombies too."""
    parents: dict[int, list[int]] = {}
    for child in _pids():
        try:
            text = Path(f"/proc/{child}/stat").read_text()
        except OSError:
            continue
        parents.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(child)
    found: list[int] = []
    pending = [pid]
    while pending:
        below = parents.get(pending.pop(), [])
        found += below
        pending += below
    return found


def descriptors(pid: int) -> dict[int, str]:
    """The descriptors of a process, by number, with what they are."""
    found: dict[int, str] = {}
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        try:
            found[int(name)] = os.readlink(f"{folder}/{name}")
        except OSError:
            continue  # the listing's own, or one that was closed meanwhile
    return {number: target for number, target in found.items() if target != f"/proc/{pid}/fd"}


def mappings(pid: int) -> int:
    """How many segments a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count(SEGMENT)


def segments_held(pid: int) -> int:
    """How many segments a process holds as descriptors."""
    return sum(SEGMENT in target for target in descriptors(pid).values())


def command_of(pid: int) -> str:
    """A process's command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return "(gone)"


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


@dataclass(frozen=True)
class Footprint:
    """What a process uses: compare two with `growth`."""

    descriptors: int
    threads: int
    mappings: int
    kilobytes: int

    def growth(self, later: Footprint, kilobytes: int) -> list[str]:
        """What `later` has more, in words; of memory only beyond so many kilobytes."""
        pairs = {
            "descriptors": (self.descriptors, later.descriptors),
            "threads": (self.threads, later.threads),
            "mappings of segments": (self.mappings, later.mappings),
        }
        found = [f"{now - then} {what} more" for what, (then, now) in pairs.items() if now > then]
        if later.kilobytes > self.kilobytes + kilobytes:
            found.append(f"{later.kilobytes - self.kilobytes} KB of memory more")
        return found


def footprint(pid: int) -> Footprint:
    """What a process uses now. Memory is its own: not what it shares."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return Footprint(
        len(descriptors(pid)),
        int(status["Threads"]),
        mappings(pid),
        int(status["RssAnon"].split()[0]),
    )
