"""The machine: Python, kernel, cores, memory, descriptors, and what the core builds on.

What the core builds on is tried, not looked up: sealed memory files, seqpacket sockets that carry
descriptors, and descriptors of processes.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import select
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from penstock.cli.doctor.finding import Finding, note, ok, problem
from penstock.transport import channel, rendezvous, segment

_GROUP = Path("/sys/fs/cgroup")
_LITTLE_MEMORY = 1 << 30
_FEW_FILES = 4096


def findings() -> Iterator[Finding]:
    """Everything here."""
    yield _python()
    yield ok("system", f"{_distribution()}, kernel {platform.release()}, {platform.machine()}")
    yield _cores()
    yield _memory()
    yield _files()
    yield _shared_memory()
    yield _sockets()
    yield _process_descriptors()


def _python() -> Finding:
    text = f"{platform.python_version()} ({sys.executable})"
    if sys.maxsize < 2**32:
        return problem("python", f"{text}, 32 bits", "install a Python of 64 bits")
    return ok("python", text)


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _cores() -> Finding:
    usable, there = cores(), os.cpu_count() or 1
    text = f"{usable}" if usable == there else f"{usable} of the machine's {there}"
    with contextlib.suppress(OSError, ValueError):
        quota, period = (_GROUP / "cpu.max").read_text().split()
        if quota != "max" and int(quota) / int(period) < usable:
            share = int(quota) / int(period)
            return note(
                "cores",
                f"{text}, but the container may use {share:g} at a time",
                "set OMP_NUM_THREADS and TF_NUM_INTRAOP_THREADS: libraries count cores, not quotas",
            )
    return ok("cores", text)


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    with contextlib.suppress(OSError, ValueError, KeyError):
        limit = int((_GROUP / "memory.max").read_text())
        used = int((_GROUP / "memory.current").read_text())
        facts = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        used -= int(facts["inactive_file"])  # of files, and given up when it is needed
        total, free = min(total, limit), min(free, limit - used)
    text = f"{free / 2**30:.1f} of {total / 2**30:.1f} GB free"
    if free < _LITTLE_MEMORY:
        return note("memory", text, "a worker with TensorFlow takes about 0.7 GB: end something")
    return ok("memory", text)


def _files() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    text = f"a process may open {'any number of' if unlimited else f'{hard:,}'} files"
    if not unlimited and hard < _FEW_FILES:
        return problem(
            "files",
            f"{text}; an engine needs a few for each client",
            f"raise the hard limit to {_FEW_FILES} or more (ulimit -Hn, LimitNOFILE= in systemd)",
        )
    return ok("files", text)


def _shared_memory() -> Finding:
    try:
        descriptor = segment.create(4096)
        try:
            segment.verify(descriptor, 4096)
            segment.Mapping(descriptor, 4096).close()
        finally:
            os.close(descriptor)
    except (OSError, segment.BadSegment) as error:
        return problem(
            "memory files",
            f"a sealed memory file cannot be made: {error}",
            "Penstock needs memfd_create with seals: Linux, and a sandbox that allows it",
        )
    return ok("memory files", "can be made, sealed and mapped")


def _sockets() -> Finding:
    advice = (
        "Penstock needs unix sockets of the kind SEQPACKET: Linux, and a sandbox that allows it"
    )
    try:
        ends = [channel.Channel(end) for end in _pair()]
        try:
            ends[0].send(b"hello", (0,))
            received = ends[1].receive()
            if received is None or received[0] != b"hello" or len(received[1]) != 1:
                return problem("sockets", "a message did not arrive as it was sent", advice)
            os.close(received[1][0])
        finally:
            for end in ends:
                end.close()
    except (OSError, channel.Closed) as error:
        return problem("sockets", f"two processes could not talk: {error}", advice)
    return ok("sockets", "carry messages and descriptors")


def _pair() -> tuple[socket.socket, socket.socket]:
    """Two ends that know whose the other one is."""
    ends = channel.pair()
    rendezvous.peer(ends[0])
    return ends


def _process_descriptors() -> Finding:
    try:
        descriptor = os.pidfd_open(os.getpid())
        try:
            select.select([descriptor], [], [], 0)
        finally:
            os.close(descriptor)
    except (OSError, AttributeError) as error:
        return problem(
            "processes",
            f"the exit of a process cannot be watched: {error}",
            "Penstock needs pidfd_open: Linux 5.3 or newer, and a sandbox that allows it",
        )
    return ok("processes", "their exits can be watched")
