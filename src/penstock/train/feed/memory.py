"""Memory for pieces that is used again: fresh pages cost as much as filling them does.

TensorFlow uses an array's memory where it lies, and keeps the array until the last tensor over it
is gone. So a block is free when nobody but this store refers to it; nobody has to give it back.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np

from penstock.train.feed.tree import Array

_ALIGNMENT = 64  # where TensorFlow uses an array's memory without copying it
_WORTH = 256 << 10  # below, numpy's own allocator has pages at hand


class Memory:
    """Blocks by their size. As many as were ever in use at a time; freed with the store."""

    def __init__(self) -> None:
        self._blocks: dict[int, list[Array]] = {}
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array with anything in it, that begins where TensorFlow can use it."""
        size = int(np.prod(shape)) * dtype.itemsize
        with self._lock:
            block = self._free(size)
            start = -block.ctypes.data % _ALIGNMENT
            return block[start : start + size].view(dtype).reshape(shape)

    def _free(self, size: int) -> Array:
        blocks = self._blocks.setdefault(size, []) if size >= _WORTH else []
        for place, users in enumerate(_users(blocks)):
            if users == _NOBODY:
                return blocks[place]
        blocks.append(np.empty(size + _ALIGNMENT, np.uint8))
        return blocks[-1]


def _users(blocks: list[Array]) -> list[int]:
    return [sys.getrefcount(block) for block in blocks]


_NOBODY = _users([np.empty(0, np.uint8)])[
    0
]  # the list itself and the counting: no two Pythons agree
