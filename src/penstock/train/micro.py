"""The largest micro-batch that fits a device, from peaks measured at small sizes.

Peak memory is nearly a straight line in the rows (`model.peak`). So a step is run at a small size,
and at a larger one where that is not yet enough to know; the line says how many rows fit; a
step of that size proves it. What does not fit all the same is halved.

A device that tells nothing (a CPU) is said to hold all. A room that a step has already gone beyond
was told wrongly, as where TensorFlow took the whole card at once: then all rows are tried.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from penstock.errors import DeviceMemoryError
from penstock.model.peak import ROOM, Memory, Need, fitted
from penstock.model.shortage import is_out_of_memory as is_out_of_memory

_FIRST, _SECOND = 16, 4  # probes are these parts of all rows


def largest_micro(measure: Callable[[int], int], rows: int, room: int) -> int:
    """How many of a device's `rows` of a step it takes at once.

    `measure` runs a step of so many rows, and says its peak in bytes, 0 where that is not known;
    it raises TensorFlow's ResourceExhaustedError where they do not fit. `room` are the bytes that
    there are, 0 where that is not known.
    """
    peaks: dict[int, int] = {}
    most = rows
    for part in (_FIRST, _SECOND):
        size = max(rows // part, 1)
        if size in peaks or size > most:
            continue
        try:
            peaks[size] = measure(size)
        except Exception as error:
            most = _halved(size, error)
            break
        room = 0 if peaks[size] > room else room
        if _surely(peaks, rows, room):
            return _proved(measure, rows, rows)
    return _proved(measure, rows, min(most, fitting(fitted(peaks), rows, room)))


def fitting(need: Need, rows: int, room: int) -> int:
    """As many of these rows as the line says, at least one."""
    if need.fits(rows, room):
        return rows
    left = int(ROOM * room) - need.fixed
    return max(min(left // need.per_row, rows), 1) if need.per_row else 1


def even(rows: int, most: int) -> int:
    """Pieces of at most so many rows, as few as can be, and as alike as can be."""
    pieces = -(-rows // most)
    return -(-rows // pieces)


def peaks_of(run: Callable[[int], object], memory: Memory) -> Callable[[int], int]:
    """A `measure`: what a device holds at its peak while `run` takes a step of some rows.

    `run` is to wait for the step's end, and to take it twice if it compiles something.
    """

    def measure(size: int) -> int:
        memory.forget()
        run(size)
        return memory.peak()

    return measure


def room_of(memory: Memory, tensorflow: Any) -> int:
    """Bytes that TensorFlow may take of its first GPU, 0 where that is not known.

    A limit that was set, or what is free where it grows as it needs; else it has taken nearly all
    at once, and its allocator knows how much.
    """
    told, config = memory.limit(), tensorflow.config
    gpus = config.list_physical_devices("GPU")
    if not gpus:
        return told
    configured = config.get_logical_device_configuration(gpus[0]) or []
    if any(place.memory_limit for place in configured):
        return told
    grows = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() == "true"
    if grows or config.experimental.get_memory_growth(gpus[0]):
        return told if told > memory.held() else 0  # no more than that: nobody could be asked
    return max(told, _allocators_limit())


def one_row_does_not_fit() -> DeviceMemoryError:
    """There is nothing left to halve."""
    return DeviceMemoryError(
        "a step of one row does not fit the device's memory; remat=True or "
        'precision="mixed_float16" take less'
    )


def _allocators_limit() -> int:
    from tensorflow.python.client import device_lib

    devices = device_lib.list_local_devices()
    return max((int(one.memory_limit) for one in devices if one.device_type == "GPU"), default=0)


def _surely(peaks: dict[int, int], rows: int, room: int) -> bool:
    """Whether all rows fit even if there is nothing but what each row takes."""
    size, peak = max(peaks.items())
    return room <= 0 or peak <= 0 or peak * rows <= ROOM * room * size


def _proved(measure: Callable[[int], int], rows: int, most: int) -> int:
    while True:
        size = even(rows, most)
        try:
            measure(size)
            return size
        except Exception as error:
            most = _halved(size, error)


def _halved(size: int, error: Exception) -> int:
    if not is_out_of_memory(error):
        raise error
    if size == 1:
        raise one_row_does_not_fit() from error
    return size // 2
