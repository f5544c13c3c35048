"""Functions that a worker can import: `Engine("penstock.testing.models:double")`.

What they do depends on the rows alone, so that a test steers them by what it sends. Those that end
their process do so in a worker only; in a `LocalEngine`, use `engine.faults` for that.
"""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_UNLUCKY = 13


def double(x: Any) -> Any:
    """Twice the input, whatever its shape; a dict in, a dict out."""
    if isinstance(x, dict):
        return {name: double(array) for name, array in x.items()}
    return x + x


def checksum(x: Array) -> Array:
    """The CRC-32 of each row's bytes: tells whether a row arrived whole."""
    rows = np.ascontiguousarray(x)
    return np.array([zlib.crc32(row.tobytes()) for row in rows], np.uint32)


def worker_pid(x: Array) -> Array:
    """The process that ran each row."""
    return np.full(len(x), os.getpid(), np.int64)


def raise_on_negative(x: Array) -> Array:
    """Twice the input; raises when any element of the batch is negative."""
    if (x < 0).any():
        raise ValueError(f"a negative value: {x.min()}")
    return x + x


def exit_on_13(x: Array) -> Array:
    """Twice the input; a row that begins with 13 ends the worker's process, as a crash would."""
    if (first_elements(x) == _UNLUCKY).any():
        _only_in_a_worker()
        os._exit(1)
    return x + x


def sleep(x: Array) -> Array:
    """Sleeps as many seconds as the largest first element of the rows says; returns the rows."""
    time.sleep(float(first_elements(x).max(initial=0.0)))
    return x


def hold_until_file(x: Array) -> Array:
    """Rows are paths, as texts; returns them when every one of these files is there."""
    for path in x.reshape(-1).tolist():
        while not Path(os.fsdecode(path)).exists():
            time.sleep(0.002)
    return x


class Loaded:
    """Each row's answer is the number of calls that this instance has had: one a worker."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, x: Array) -> Array:
        """Count."""
        self._calls += 1
        return np.full(len(x), self._calls, np.int64)


def first_elements(x: Array) -> Array:
    """The first element of every row."""
    return x.reshape(len(x), -1)[:, 0] if x.size else np.zeros(0)


def _only_in_a_worker() -> None:
    if "PENSTOCK_WORKER" not in os.environ:
        raise RuntimeError(
            "this would end the process of the test itself: "
            "with a LocalEngine, use engine.faults.lose_worker_on"
        )
