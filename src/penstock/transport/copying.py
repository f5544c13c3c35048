"""Large copies by several threads: one core cannot move bytes as fast as memory takes them.

A copy is cut into parts. The caller's thread takes one after the other, and so do a few helpers,
while numpy lets them run at the same time; what no helper has begun, the caller does. So nothing
depends on helpers being there, which they are not after a fork. Whatever interrupts the caller,
nobody writes to the target any more when `copy` is over.

Small copies, and machines with few cores, know nothing of all this.

Arrays that say how (`read_into`) are read rather than looked at: rows of a file that is mapped,
which may be cut short at any time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_LARGE = 8 << 20  # bytes
_PART = 2 << 20
_READABLE = 256 << 10  # smaller ones are looked at
_FEW_CORES = 8
_MOST_THREADS = 4


class Readable(Protocol):
    """An array whose bytes can be had without looking at its memory."""

    def read_into(self, target: Array, address: int) -> None:
        """As many bytes as there is room for, of those from this address on."""


class Part:
    """Some of the bytes. Whoever claims it first copies it."""

    def __init__(self, target: Array, source: Array) -> None:
        self._target, self._source = target, source
        self._owner: dict[None, object] = {}
        self._over = threading.Lock()
        self._over.acquire()

    def claim(self, who: object) -> bool:
        """Whether it is theirs now, or was before."""
        return self._owner.setdefault(None, who) is who

    def copy(self) -> None:
        """For the one whose it is."""
        _move(self._target, self._source)

    def help(self, who: object) -> None:
        """Copy it, unless somebody else does."""
        if self.claim(who):
            try:
                self.copy()
            finally:
                self._over.release()

    def wait(self, who: object) -> None:
        """Until no helper writes it, nor will."""
        if not self.claim(who):
            with self._over:
                pass


class Helpers:
    """Threads that wait for parts, started with the first ones."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._parts: SimpleQueue[Part] = SimpleQueue()
        self._started = False

    def offer(self, parts: list[Part]) -> None:
        """Let them take these, if they come to it."""
        if not self._started:
            self._started = True
            with contextlib.suppress(RuntimeError):  # there may be no more threads
                for _ in range(self.count):
                    threading.Thread(target=self._help, name="penstock-copy", daemon=True).start()
        for part in parts:
            self._parts.put(part)

    def _help(self) -> None:
        me = object()
        while True:
            self._parts.get().help(me)


def copy(target: Array, source: Array) -> None:
    """Copy everything; both have one shape. When it is over, nobody writes there any more."""
    helpers = _helpers
    if target.nbytes < _LARGE or not helpers.count or target.dtype.hasobject:
        if target.nbytes < _READABLE:
            target[...] = source
        else:
            _move(target, source)
        return
    me = object()
    parts = _cut(target, source)
    try:
        helpers.offer(parts[1:])
        for part in parts:
            if part.claim(me):
                part.copy()
        for part in parts:
            part.wait(me)
    except BaseException:
        _let_go(parts, me)
        raise


def copied(source: Array) -> Array:
    """A copy of it, in one piece."""
    if source.nbytes < _LARGE:
        return source.copy()
    target = np.empty(source.shape, source.dtype)
    copy(target, source)
    return target


def _move(target: Array, source: Array) -> None:
    readable = _readable(source)
    whole = source.flags.c_contiguous and target.flags.c_contiguous
    if readable is None or not whole or target.dtype != source.dtype:
        np.copyto(target, source, casting="unsafe")
    else:
        readable.read_into(target, source.ctypes.data)


def _readable(source: Any) -> Readable | None:
    """What it is a view of, if that is one."""
    while isinstance(source, np.ndarray):
        if type(source) is not np.ndarray and hasattr(source, "read_into"):
            readable: Readable = source
            return readable
        source = source.base
    return None


def _let_go(parts: list[Part], me: object) -> None:
    """Wait for helpers, however often the caller is interrupted."""
    while True:
        try:
            for part in parts:
                part.wait(me)
            return
        except KeyboardInterrupt:
            continue


def _cut(target: Array, source: Array) -> list[Part]:
    """Along the first axis; one row alone byte by byte, if it lies in one piece."""
    if len(target) == 1 and target.flags.c_contiguous and source.flags.c_contiguous:
        target, source = target.reshape(-1), source.reshape(-1)
    count = min(target.nbytes // _PART, len(target))
    edges = [len(target) * number // count for number in range(count + 1)]
    return [Part(target[low:high], source[low:high]) for low, high in itertools.pairwise(edges)]


def _wanted() -> int:
    """Helpers beside the caller: a quarter of the cores is for copying, of few cores none."""
    cores = len(os.sched_getaffinity(0))
    return 0 if cores < _FEW_CORES else min(cores // 4, _MOST_THREADS) - 1


def _forget_in_child() -> None:
    global _helpers
    _helpers = Helpers(_wanted())


_helpers = Helpers(_wanted())
os.register_at_fork(after_in_child=_forget_in_child)
