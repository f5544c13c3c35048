"""Shared memory that cannot shrink under its readers and leaves nothing behind.

A segment is an anonymous memory file (`memfd_create`): it has no name, travels as a descriptor, and
the kernel frees it with its last user, however that one dies. It is allocated at once (a sparse
one could kill its reader when memory runs out) and sealed, so that its size is final: reading it
can give wrong bytes when its owner misbehaves, but never a signal.

Who releases: whoever holds a `Mapping` calls `close`; whoever holds a bare descriptor closes that.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import weakref

_NOT_WRITABLE = fcntl.F_SEAL_WRITE | 0x10  # the second: F_SEAL_FUTURE_WRITE
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class BadSegment(Exception):
    """A descriptor that is not an allocated, sealed memory file of the size it should have."""


def create(size: int) -> int:
    """A new sealed segment; returns its descriptor. Raises `OSError` when there is no memory."""
    descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def verify(descriptor: int, size: int) -> None:
    """Raise `BadSegment` unless this is a memory file that was made as `create` makes them."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        raise BadSegment("the descriptor is no memory file") from None
    if seals & _NOT_WRITABLE or fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR:
        raise BadSegment("the segment cannot be mapped to be written")
    if seals & SEALS != SEALS:
        raise BadSegment(f"the segment is not sealed against a change of its size ({seals:#x})")
    status = os.fstat(descriptor)
    if status.st_size != size:
        raise BadSegment(f"the segment has {status.st_size} bytes, not {size}")
    if status.st_blocks * 512 < size:
        raise BadSegment(f"of {size} bytes only {status.st_blocks * 512} are allocated")


class Mapping:
    """A segment in this process's memory, as `view` (a writable memoryview of bytes).

    Unmapped when `close` was called and nobody holds a piece of the view any more. Not inherited by
    forked children: there the range is free for other uses, so that a child must not touch it, and
    does not unmap it. Python's own `mmap` would keep a copy of the descriptor, which a child does
    inherit; hence the C library's.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = _libc.mmap(None, size, access, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, f"a segment cannot be mapped: {os.strerror(number)}")
        _libc.madvise(address, size, mmap.MADV_DONTFORK)
        memory = (ctypes.c_ubyte * size).from_address(address)
        weakref.finalize(memory, _unmap, os.getpid(), address, size).atexit = False
        self.size = size
        self.address: int = address
        self.view = memoryview(memory).cast("B")

    def close(self) -> None:
        """Let go of it; if somebody still holds a piece of the view, the last of them unmaps."""
        with contextlib.suppress(BufferError):
            self.view.release()
        self.view = _NOTHING


def _unmap(pid: int, address: int, size: int) -> None:
    if pid == os.getpid():  # in a forked child the range may be anything's
        _libc.munmap(address, size)


_NOTHING = memoryview(b"")
_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
