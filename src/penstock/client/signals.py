"""Two descriptors that wake a poll: a bell that is rung, and a timer that runs out.

Both may be used from any thread, also when they have been closed meanwhile (then nothing happens: a
number that was closed may belong to another file by now). The locks are reentrant because the
garbage collector may run code that rings, at any point. A timer whose `set` or `stop` was cut short
may run when it need not, never the other way round.
"""

from __future__ import annotations

import ctypes
import os
import threading

_CLOCK_MONOTONIC, _NONBLOCK, _CLOEXEC = 1, 0o4000, 0o2000000
_libc = ctypes.PyDLL(None, use_errno=True)


class _Signal:
    """A descriptor that any thread may use, and any thread may close."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor
        self._lock = threading.RLock()

    def fileno(self) -> int:
        """The descriptor, to be polled."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor."""
        with self._lock:
            descriptor, self._fd = self._fd, -1
            if descriptor >= 0:
                os.close(descriptor)

    def close_in_child(self) -> None:
        """After a fork, in the child, where another thread's lock may be held for ever."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)


class Bell(_Signal):
    """Readable from `ring` until `clear` (an eventfd)."""

    def __init__(self) -> None:
        super().__init__(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def ring(self) -> None:
        """Wake whoever polls."""
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """It was heard."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return


class _Spec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Timer(_Signal):
    """Readable `nanoseconds` after `set`, until `clear`, unless `stop` comes first (a timerfd).

    Cheap enough to be set for every request. Python has its own call only from 3.13 on.
    """

    def __init__(self, nanoseconds: int) -> None:
        descriptor = _libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK | _CLOEXEC)
        if descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        super().__init__(descriptor)
        self._spec = ctypes.byref(_Spec(0, 0, *divmod(nanoseconds, 1_000_000_000)))
        self._never = ctypes.byref(_Spec(0, 0, 0, 0))
        self._settime = _libc.timerfd_settime
        self._running = False

    def set(self) -> None:
        """Start it, if it is not running."""
        if self._running:
            return
        with self._lock:
            if self._fd >= 0:
                self._settime(self._fd, 0, self._spec, None)
                self._running = True

    def stop(self) -> bool:
        """It is not needed now. Returns whether it was running."""
        if not self._running:
            return False
        with self._lock:
            if self._fd >= 0:
                self._running = False
                self._settime(self._fd, 0, self._never, None)
        return True

    def clear(self) -> None:
        """It was noticed."""
        self._running = False
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
