"""CUDA, made up: the device's memory is the host's, and copies are done only when somebody waits.

Stands in for `penstock.worker.cuda.Cuda`. What the driver would refuse, or what would read memory
that is not there, fails here.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import Counter
from typing import Any

import numpy as np

from penstock.errors import DeviceMemoryError
from penstock.worker.cuda import DeviceLost


class FakeCuda:
    """A device with so many bytes."""

    def __init__(self, total: int = 1 << 30) -> None:
        self.total = total
        self.calls: Counter[str] = Counter()
        self.allocated: dict[int, Any] = {}
        self.pinned: dict[int, int] = {}
        self.log: list[tuple[str, int, int]] = []  # pinned and unpinned, with the bytes
        self.pin_error = ""
        self.may_pin = threading.Event()
        self.may_pin.set()
        self.copies_left = 1 << 30  # then there is no memory for another one
        self._waiting: dict[int, list[tuple[int, int, int]]] = {}
        self._numbers = itertools.count(1)
        self._entered = threading.local()
        self._freed: list[Any] = []  # so that a late reader finds rubbish, and no hole

    def enter(self) -> None:
        self._entered.here = True

    def stream(self) -> int:
        number = next(self._numbers)
        self._waiting[number] = []
        return number

    @property
    def waiting(self) -> int:
        """How many copies were begun and are not done."""
        return sum(map(len, self._waiting.values()))

    @property
    def used(self) -> int:
        return sum(map(ctypes.sizeof, self.allocated.values()))

    def allocate(self, size: int) -> int:
        self.calls["allocate"] += 1
        if self.used + size > self.total:
            raise DeviceMemoryError(f"{size} bytes, {self.total - self.used} are left")
        memory = (ctypes.c_ubyte * (size + 64))()
        ctypes.memset(memory, 0xAA, size + 64)
        skipped = -ctypes.addressof(memory) % 64
        pointer = ctypes.addressof(memory) + skipped
        self.allocated[pointer] = (ctypes.c_ubyte * size).from_buffer(memory, skipped)
        return pointer

    def free(self, pointer: int) -> None:
        self.calls["free"] += 1
        memory = self.allocated.pop(pointer)
        waiting = [copy for copies in self._waiting.values() for copy in copies]
        size = ctypes.sizeof(memory)
        assert not any(pointer <= target < pointer + size for target, _, _ in waiting)
        ctypes.memset(memory, 0xDD, size)
        self._freed.append(memory)

    def upload(self, target: int, source: int, size: int, stream: int) -> None:
        self.calls["upload"] += 1
        self._begin(target, source, size, stream)

    def upload_rows(
        self, target: int, source: int, pitch: int, size: int, rows: int, stream: int
    ) -> None:
        self.calls["upload_rows"] += 1
        if not size <= pitch < 1 << 31:
            raise DeviceLost(f"CUDA_ERROR_INVALID_VALUE: rows of {size} at a pitch of {pitch}")
        for row in range(rows):
            self._begin(target + row * size, source + row * pitch, size, stream)

    def duplicate(self, target: int, source: int, size: int, stream: int) -> None:
        self.calls["duplicate"] += 1
        self._inside(source, size)
        self._begin(target, source, size, stream)

    def wait(self, stream: int) -> None:
        for target, source, size in self._waiting[stream]:
            ctypes.memmove(target, source, size)
        self._waiting[stream].clear()

    def pin(self, address: int, size: int) -> str:
        self.enter()
        assert self.may_pin.wait(20)
        if self.pin_error:
            return self.pin_error
        assert address not in self.pinned
        ctypes.string_at(address, 1)  # it must be mapped
        self.pinned[address] = size
        self.log.append(("pin", address, size))
        return ""

    def unpin(self, address: int) -> str:
        ctypes.string_at(address, 1)  # it must be mapped still
        self.log.append(("unpin", address, self.pinned.pop(address)))
        return ""

    def view(self, pointer: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """What a model sees of the device's memory."""
        size = int(np.prod(shape)) * dtype.itemsize
        memory = self._inside(pointer, size)
        offset = pointer - ctypes.addressof(memory)
        return np.frombuffer(memory, np.uint8, size, offset).view(dtype).reshape(shape)

    def _begin(self, target: int, source: int, size: int, stream: int) -> None:
        assert getattr(self._entered, "here", False), "this thread has not entered the context"
        self._inside(target, size)
        if not self.copies_left:
            raise DeviceMemoryError("for another copy")
        self.copies_left -= 1
        self._waiting[stream].append((target, source, size))

    def _inside(self, pointer: int, size: int) -> Any:
        for begin, memory in list(self.allocated.items()):
            if begin <= pointer and pointer + size <= begin + ctypes.sizeof(memory):
                return memory
        raise AssertionError(f"{size} bytes at {pointer:#x} are not the device's")
