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
    if seals & SEALS != SEALS:
        raise BadSegment(f"the segment is not sealed against a change of its size ({seals:#x})")
    status = os.fstat(descriptor)
    if status.st_size != size:
        raise BadSegment(f"the segment has {status.st_size} bytes, not {size}")
    if status.st_blocks * 512 < size:
        raise BadSegment(f"of {size} bytes only {status.st_blocks * 512} are allocated")


class Mapping:
    """A segment in this process's memory, as `view` (a writable memoryview of bytes).

    Not inherited by forked children: there the range is free for other uses, so that a child must
    neither touch nor unmap it (`abandon_in_child`).
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._map = mmap.mmap(descriptor, size)
        self._map.madvise(mmap.MADV_DONTFORK)
        self.size = size
        self.view = memoryview(self._map)

    def close(self) -> None:
        """Unmap; if somebody still holds a view of it, the last of them unmaps."""
        with contextlib.suppress(BufferError):
            self.view.release()
            self._map.close()

    def abandon_in_child(self) -> None:
        """After a fork, in the child: make sure that nothing ever unmaps this address range."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._map))
