"""How much of a device's memory a batch takes: measured at a few sizes, a straight line else.

TensorFlow's own allocator is asked, so what CUDA and its libraries take outside of it is not in
these figures. On CPUs there is nothing to ask, and everything fits.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.devices import ledger
from penstock.devices.cards import usable_cards
from penstock.devices.limit import BUFFERS, ROWS
from penstock.devices.plan import ROOM as ROOM
from penstock.devices.plan import fit
from penstock.devices.room import reckon
from penstock.errors import PenstockError
from penstock.model.pace import HANDS
from penstock.spec import STRING, Signature
from penstock.transport.tensors import numpy_dtype

_log = logging.getLogger(__name__)


class Memory(Protocol):
    """What is known of a device's memory."""

    def limit(self) -> int:
        """Bytes that TensorFlow may take there; 0 where that is not known."""

    def held(self) -> int:
        """Bytes that are taken now: weights, mostly."""

    def forget(self) -> None:
        """From here on the peak is another one."""

    def peak(self) -> int:
        """The most bytes that were taken at a time since then; 0 where that is not known."""


class NoMemory:
    """A device that nobody can ask."""

    def limit(self) -> int:
        return 0

    def held(self) -> int:
        return 0

    def forget(self) -> None:
        pass

    def peak(self) -> int:
        return 0


class GpuMemory:
    """The first GPU that TensorFlow sees here: a worker sees one."""

    def __init__(self, tensorflow: Any) -> None:
        self._config = tensorflow.config

    def limit(self) -> int:
        gpu = self._config.list_physical_devices("GPU")[0]
        configured = self._config.get_logical_device_configuration(gpu) or []
        limits = [place.memory_limit for place in configured if place.memory_limit]
        return int(limits[0]) << 20 if limits else _free_memory() + self.held()

    def held(self) -> int:
        return int(self._info()["current"])

    def forget(self) -> None:
        self._config.experimental.reset_memory_stats("GPU:0")

    def peak(self) -> int:
        return int(self._info()["peak"])

    def _info(self) -> Any:
        return self._config.experimental.get_memory_info("GPU:0")


def memory_of(device: str) -> Memory:
    """Of what TensorFlow runs on: "CPU" or "GPU"."""
    if device != "GPU":
        return NoMemory()
    from penstock.model.runtime import tf

    return GpuMemory(tf)


def _free_memory() -> int:
    """What no process has taken of the GPU that this one sees, nor was promised; 0: nobody knows.

    Where TensorFlow grows as it needs, that is what it can still take. Where it has taken all at
    once, this is less than it has: too small a figure is the safe one.
    """
    cards = usable_cards()
    try:
        rooms = reckon(cards, ledger.promises())
    except (OSError, PenstockError) as error:
        _log.info("promises of GPU memory are not known: %s", error)
        rooms = reckon(cards, [])
    return rooms[0].left if rooms else 0


@dataclass(frozen=True)
class Need:
    """Bytes that a batch needs at its peak: some always, some for each row."""

    fixed: int
    per_row: int

    @staticmethod
    def told(memory: Mapping[str, Any]) -> Need:
        """As findings keep it."""
        return Need(int(memory["fixed"]), int(memory["per_row"])) if memory else NOTHING

    def at(self, size: int) -> int:
        """For so many rows."""
        return self.fixed + self.per_row * size

    def fits(self, size: int, limit: int) -> bool:
        """Whether so many rows fit; a limit that is not known (0) fits all."""
        return limit <= 0 or self.at(size) <= ROOM * limit


NOTHING = Need(0, 0)


def buffered_rows(inputs: Signature) -> int:
    """How many rows an engine has left room for in a hand's buffers; 0: that is not known."""
    allowed = int(os.environ.get(BUFFERS) or 0) // HANDS
    if not allowed or any(None in tensor.shape or tensor.dtype == STRING for tensor in inputs):
        return 0
    row = sum(math.prod(tensor.sizes) * numpy_dtype(tensor.dtype).itemsize for tensor in inputs)
    return max(allowed // row, 1) if row else 0


def planned_rows(name: str) -> int:
    """How large batches of this model an engine has planned beside others in this worker; 0: it
    has not."""
    planned = json.loads(os.environ.get(ROWS) or "{}")
    return int(planned.get(name, 0))


def fitted(peaks: Mapping[int, int]) -> Need:
    """The line through what was measured, or above it; nothing where that is not known."""
    points = [(size, peak) for size, peak in sorted(peaks.items()) if peak > 0]
    return Need(*fit(points)) if points else NOTHING


def cut(ladder: Sequence[int], need: Need, limit: int, most: int = 0) -> tuple[int, ...]:
    """The sizes of a ladder that fit, and a large one that does in place of those that do not.

    That one is a round number: what is free changes a little from start to start, and a size is
    compiled for seconds. `most`: the rows that there is room for elsewhere; 0: any number.
    """
    most = most or ladder[-1]
    if need.fits(ladder[-1], limit):
        if ladder[-1] <= most:
            return tuple(ladder)
        largest = most
    else:
        room = int(ROOM * limit) - need.fixed
        largest = max(min(room // need.per_row if need.per_row else 0, most), 1)
    largest &= ~((1 << max(largest.bit_length() - 3, 0)) - 1)
    return (*(size for size in ladder if size < largest), largest)
