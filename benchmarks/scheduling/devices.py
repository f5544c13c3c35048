"""The simulated devices: how long a batch takes, from tables that were measured.

Between the measured sizes the time is a straight line. A batch runs at the next size of a ladder
1, 2, 4 … `max_batch`, padded: 17 rows cost as much as 32. The table's times are the least that a
batch takes; a run adds a little at random (`arrivals.slowdowns`).

On its way to the device a batch is gathered: a plain copy of its rows, at the 13.9 GB/s that memcpy
does on the machine of the tables. A GPU's gather runs beside the batch before it; a CPU's worker
does one thing at a time, so that there the gather is part of the batch's time.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

US, MS, S = 1_000, 1_000_000, 1_000_000_000
MESSAGE = 100 * US  # from one process to the next
_COPY = 13.9  # bytes a nanosecond


@dataclass(frozen=True)
class Device:
    """One kind of device, `workers` of them. `table`: (batch size, milliseconds), ascending."""

    name: str
    title: str
    table: tuple[tuple[int, float], ...]
    row_bytes: int
    gathers_beside: bool
    workers: int = 1

    @property
    def max_batch(self) -> int:
        """The largest batch."""
        return self.table[-1][0]

    @cached_property
    def ladder(self) -> tuple[int, ...]:
        """The sizes at which batches run."""
        return tuple(1 << power for power in range(self.max_batch.bit_length()))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The size at which so many rows run."""
        ladder = self.ladder
        return tuple(ladder[bisect_left(ladder, rows)] for rows in range(self.max_batch + 1))

    @cached_property
    def run(self) -> tuple[int, ...]:
        """Nanoseconds that so many rows take on the device, padded; no slowdown."""
        return tuple(self._interpolated(size) for size in self.sizes)

    @cached_property
    def gather(self) -> tuple[int, ...]:
        """Nanoseconds that it takes to bring so many rows together."""
        return tuple(int(rows * self.row_bytes / _COPY) for rows in range(self.max_batch + 1))

    @cached_property
    def busy(self) -> tuple[int, ...]:
        """Nanoseconds for which so many rows keep the device from others."""
        if self.gathers_beside:
            return self.run
        return tuple(map(sum, zip(self.run, self.gather, strict=True)))

    @property
    def single(self) -> int:
        """Nanoseconds from a client's request to its answer, on an idle device, alone."""
        return 4 * MESSAGE + self.gather[1] + self.run[1]

    @property
    def deadline(self) -> int:
        """How long an open loop's clients wait: 10 times the least, 4 times the largest batch."""
        return max(10 * self.single, 4 * self.run[self.max_batch])

    @property
    def capacity(self) -> float:
        """The most rows a second that all workers can do."""
        return self.workers * S * max(size / self.busy[size] for size in self.ladder)

    def _interpolated(self, size: int) -> int:
        at = next(i for i, (known, _) in enumerate(self.table) if known >= size)
        right, slow = self.table[at]
        left, quick = self.table[max(at - 1, 0)]
        share = (size - left) / (right - left) if right > left else 1.0
        return round((quick + share * (slow - quick)) * MS)


_IMAGE = 224 * 224 * 3
_SMALL_IMAGE = 96 * 96 * 3
_FROZEN_XLA = ((1, 1.9), (16, 1.9), (256, 8.5))

DEVICES = {
    device.name: device
    for device in (
        Device("resnet50-h200", "ResNet-50, H200, frozen and XLA", _FROZEN_XLA, _IMAGE, True),
        Device(
            "resnet50-h200-function",
            "ResNet-50, H200, tf.function",
            ((1, 9.7), (2, 9.4), (16, 9.4), (256, 64.0)),
            _IMAGE,
            True,
        ),
        # 735 rows/s at 32 is the measured figure for the frozen model. The smaller sizes were
        # measured in another run on two cores and scaled so that 32 agrees.
        Device(
            "mobilenetv2-cpu",
            "MobileNetV2, two CPU cores, frozen",
            ((1, 5.7), (2, 8.2), (4, 11.1), (8, 16.0), (16, 24.6), (32, 43.5)),
            _SMALL_IMAGE,
            False,
        ),
        Device(
            "resnet50-2-h200", "ResNet-50, two H200, frozen and XLA", _FROZEN_XLA, _IMAGE, True, 2
        ),
    )
}
