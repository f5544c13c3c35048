"""Shared memory: only what was made as it should be is accepted, and it stays as it is."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import mmap
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.transport import segment
from penstock.transport.segment import SEALS, BadSegment, Mapping
from tests.conditions import descriptors

_SIZE = 3 * 4096
_SHRINK, _GROW, _SEAL = fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SEAL
_FUTURE_WRITE = 0x10


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = segment.create(_SIZE)
    yield made
    os.close(made)


def _memfd(size: int, seals: int, *, allocated: bool = True) -> int:
    made = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if allocated:
        os.posix_fallocate(made, 0, size)
    else:
        os.ftruncate(made, size)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
    return made


def _regular_file() -> int:
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(_SIZE))
        file.flush()
        return os.dup(file.fileno())


def _pipe() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader


def _folder() -> int:
    return os.open("/", os.O_RDONLY)


def _path_only() -> int:
    made = segment.create(_SIZE)
    try:
        return os.open(f"/proc/self/fd/{made}", os.O_PATH)
    finally:
        os.close(made)


def _read_only() -> int:
    made = segment.create(_SIZE)
    try:
        return os.open(f"/proc/self/fd/{made}", os.O_RDONLY)
    finally:
        os.close(made)


def _without_sealing() -> int:
    made = os.memfd_create("test", os.MFD_CLOEXEC)
    os.posix_fallocate(made, 0, _SIZE)
    return made


def _partly_allocated() -> int:
    made = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.posix_fallocate(made, 0, _SIZE)
    os.ftruncate(made, 1 << 20)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, SEALS)
    return made


@pytest.mark.parametrize(
    ("make", "size", "complaint"),
    [
        (_regular_file, _SIZE, "no memory file"),
        (_pipe, _SIZE, "no memory file"),
        (_folder, _SIZE, "no memory file"),
        (_path_only, _SIZE, "no memory file"),
        (lambda: os.open(os.devnull, os.O_RDWR), _SIZE, "no memory file"),
        (_without_sealing, _SIZE, "not sealed"),
        (lambda: _memfd(_SIZE, 0), _SIZE, "not sealed"),
        (lambda: _memfd(_SIZE, _SHRINK), _SIZE, "not sealed"),
        (lambda: _memfd(_SIZE, _GROW), _SIZE, "not sealed"),
        (lambda: _memfd(_SIZE, _SHRINK | _GROW), _SIZE, "not sealed"),
        (lambda: _memfd(_SIZE, _SHRINK | _SEAL), _SIZE, "not sealed"),
        (lambda: _memfd(_SIZE, SEALS), _SIZE + 1, "bytes"),
        (lambda: _memfd(_SIZE, SEALS), _SIZE - 1, "bytes"),
        (lambda: _memfd(_SIZE, SEALS), 1 << 63, "bytes"),
        (lambda: _memfd(_SIZE, SEALS, allocated=False), _SIZE, "allocated"),
        (_partly_allocated, 1 << 20, "allocated"),
    ],
)
def test_everything_else_is_refused(make: Callable[[], int], size: int, complaint: str) -> None:
    descriptor = make()
    try:
        with pytest.raises(BadSegment, match=complaint):
            segment.verify(descriptor, size)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    "make",
    [
        lambda: _memfd(_SIZE, SEALS | fcntl.F_SEAL_WRITE),
        lambda: _memfd(_SIZE, SEALS | _FUTURE_WRITE),
        _read_only,
    ],
)
def test_what_could_not_be_mapped_to_be_written_is_refused(make: Callable[[], int]) -> None:
    """A worker writes answers into it: one that it cannot map would be its end."""
    descriptor = make()
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, _SIZE)
        with pytest.raises(BadSegment):
            segment.verify(descriptor, _SIZE)
    finally:
        os.close(descriptor)


def test_a_closed_descriptor_is_refused() -> None:
    descriptor = segment.create(_SIZE)
    os.close(descriptor)
    with pytest.raises(BadSegment):
        segment.verify(descriptor, _SIZE)


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 1 << 20])
def test_what_is_created_is_accepted(size: int) -> None:
    descriptor = segment.create(size)
    try:
        segment.verify(descriptor, size)
    finally:
        os.close(descriptor)


def test_its_size_is_final(descriptor: int) -> None:
    for size in (0, 4096, _SIZE + 1, 1 << 30):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    with pytest.raises(PermissionError):
        os.posix_fallocate(descriptor, _SIZE, 4096)
    with pytest.raises(PermissionError):
        os.pwrite(descriptor, b"x", _SIZE)
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    segment.verify(descriptor, _SIZE)


def test_it_is_not_inherited_by_programs(descriptor: int) -> None:
    assert not os.get_inheritable(descriptor)


def test_no_memory_is_an_error_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "no memory")

    before = descriptors()
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="no memory"):
        segment.create(_SIZE)
    assert descriptors() == before


def test_two_mappings_are_the_same_memory(descriptor: int) -> None:
    one, other = Mapping(descriptor, _SIZE), Mapping(descriptor, _SIZE)
    one.view[5000:5003] = b"abc"
    assert bytes(other.view[5000:5003]) == b"abc"
    one.close()
    assert bytes(other.view[5000:5003]) == b"abc"
    other.close()
    assert not _maps_with("penstock")


def test_a_view_that_is_still_held_stays_readable(descriptor: int) -> None:
    mapping = Mapping(descriptor, _SIZE)
    mapping.view[0] = 7
    array = np.frombuffer(mapping.view, np.uint8)
    mapping.close()
    assert array[0] == 7
    del array
    del mapping
    assert not _maps_with("penstock")


def _maps_with(text: str) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if text in line]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_does_not_have_it(descriptor: int) -> None:
    mapping = Mapping(descriptor, _SIZE)
    mapping.view[0] = 1
    assert len(_maps_with("penstock")) == 1
    child = os.fork()
    if child == 0:
        inherited = len(_maps_with("penstock"))
        del mapping  # must unmap nothing: the range may belong to somebody else here
        os._exit(inherited)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert mapping.view[0] == 1
    mapping.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_keeps_what_lies_there_now(descriptor: int) -> None:
    mapping = Mapping(descriptor, _SIZE)
    line = _maps_with("penstock")[0]
    begin = int(line.partition("-")[0], 16)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        ours = _map_at(begin)
        del mapping
        os._exit(0 if ours is not None and _still_mapped(begin) else 1)
    _, status = os.waitpid(child, 0)
    mapping.close()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_what_was_garbage_at_the_fork_unmaps_nothing_in_the_child(descriptor: int) -> None:
    """A mapping that was let go of but not collected yet: nobody can tell the child of it."""

    class Cycle:
        pass

    gc.disable()
    try:
        holder = Cycle()
        holder.itself = holder  # type: ignore[attr-defined]
        holder.mapping = Mapping(descriptor, _SIZE)  # type: ignore[attr-defined]
        begin = int(_maps_with("penstock")[0].partition("-")[0], 16)
        del holder
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            ours = _map_at(begin)
            gc.collect()
            os._exit(0 if ours is not None and _still_mapped(begin) else 1)
        _, status = os.waitpid(child, 0)
    finally:
        gc.enable()
    assert os.waitstatus_to_exitcode(status) == 0
    gc.collect()
    assert not _maps_with("penstock")


def _map_at(address: int) -> object:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100000  # MAP_FIXED_NOREPLACE
    got = libc.mmap(address, _SIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    return got if got == address else None


def _still_mapped(address: int) -> bool:
    return any(line.startswith(f"{address:x}-") for line in _maps_with("-"))
