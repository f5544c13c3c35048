"""How long a batch takes: what was measured lately for each size, and a line in between.

A size's estimate is the median of its last few measurements, so that one slow batch changes
nothing and a lasting change is seen after three. Warm-up may have measured sizes before (`seed`).
Sizes that were not seen lie on the line between their neighbours. Measurements that are old
(`fresh`) must not refuse anybody: whoever comes next is the probe that makes them new. Each size
has its own age, else small batches that keep coming would make an old time of a large one look new.

Where batches overlap (a worker with several hands), a batch is told to be done when its hand comes
to tell it, so two may come at once and the next one late. There the mean of the middle ones counts:
of 2, 14, 2, 14 and 2 ms the median is 2, and the device takes 8.

What sizes take beside each other (`likely`) is asked by whoever chooses between them for longer
than a batch. There every measurement counts, and each only a little: two sizes that differ by a
tenth would be taken in turns, else. A size that is not used any more is not measured any more
either: what it would take now is what warm-up has measured, as many times longer as the sizes in
use are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

_KEPT = 5
_FRESH = 1_000_000_000  # nanoseconds
_STEADY = 32  # measurements of which one is a part of what a size takes on the whole
_SEED = 16  # measurements that warm-up's is worth
_ODD = 4  # times what is usual: no measurement counts as more than that


class _Size:
    """The measurements of batches of about one size."""

    __slots__ = ("counted", "observed", "rows", "samples", "seed", "steady", "time")

    def __init__(self, rows: float, time: int) -> None:
        self.rows = rows
        self.time = time
        self.seed = 0  # what warm-up has measured
        self.steady = float(time)  # on the whole, of so many measurements
        self.counted = 0
        self.samples: deque[int] = deque(maxlen=_KEPT)
        self.observed = 0  # when, the last time

    def fresh(self, now: int) -> bool:
        return self.observed > 0 and now - self.observed <= _FRESH

    def observe(self, rows: int, nanoseconds: int, now: int, overlap: bool) -> None:
        self.rows += (rows - self.rows) / 4
        samples = self.samples
        if not self.fresh(now):
            samples.clear()
        self.observed = now
        self.counted += 1
        known = min(self.counted + (_SEED if self.seed else 0), _STEADY)
        self.steady += (min(nanoseconds, _ODD * self.steady) - self.steady) / known
        samples.append(nanoseconds)
        ordered = sorted(samples)
        if overlap and len(ordered) == _KEPT:
            middle = ordered[1:-1]
            self.time = sum(middle) // len(middle)
        else:
            self.time = ordered[len(ordered) // 2]


class Estimates:
    """Nanoseconds that a batch of so many rows takes, in one lane, on one worker."""

    def __init__(self) -> None:
        self.overlap = False  # whether batches overlap
        self.changes = 0  # counts what was measured
        self._sizes: list[_Size] = []
        self._limits: list[int] = []  # the largest number of rows that each size stands for

    def __bool__(self) -> bool:
        """Whether anything is known."""
        return bool(self._sizes)

    def seed(self, size: int, nanoseconds: int) -> None:
        """What warm-up has measured; less worth than the first measurement at work."""
        self.changes += 1
        entry = self._entry(size, max(nanoseconds, 1))
        entry.seed = max(nanoseconds, 1)
        if not entry.samples:
            entry.time = max(nanoseconds, 1)
        if not entry.counted:
            entry.steady = float(max(nanoseconds, 1))

    def observe(self, rows: int, nanoseconds: int, now: int) -> None:
        """A batch that was run at this size took that long."""
        self.changes += 1
        nanoseconds = max(nanoseconds, 1)
        self._entry(rows, nanoseconds).observe(rows, nanoseconds, now, self.overlap)

    def predict(self, rows: int) -> int:
        """What a batch will probably take; 0 when nothing was seen at all."""
        if not self._sizes:
            return 0
        left, right = self._around(rows)
        return self._between(rows, left, right, left.time, right.time)

    def likely(self, rows: int, now: int) -> int:
        """What batches would take on the whole, also at a size that was not used lately."""
        if not self._sizes:
            return 0
        left, right = self._around(rows)
        used = [size for size in self._sizes if size.seed and size.fresh(now)]
        if not used or all(size.fresh(now) or not size.seed for size in (left, right)):
            return self._between(rows, left, right, left.steady, right.steady)
        last = max(used, key=lambda size: size.observed)
        return int((left.seed + right.seed) / 2 * last.steady / last.seed)

    def _between(self, rows: int, left: _Size, right: _Size, low: float, high: float) -> int:
        """On the line through what these sizes take, or beyond the last of them."""
        if left is not right:
            return int(low + (rows - left.rows) / (right.rows - left.rows) * (high - low))
        return int(low * rows / max(left.rows, 1.0) if rows > self._limits[-1] else low)

    def fresh(self, rows: int, now: int) -> bool:
        """Whether what `predict` says of so many rows was measured a moment ago."""
        return bool(self._sizes) and all(size.fresh(now) for size in self._around(rows))

    def _around(self, rows: int) -> tuple[_Size, _Size]:
        """The sizes between which so many rows lie; twice the same where one is all there is."""
        sizes = self._sizes
        at = min(bisect_left(self._limits, rows), len(sizes) - 1)
        right = sizes[at]
        if rows >= right.rows or at == 0:
            return right, right
        left = sizes[at - 1]
        return (left, left) if rows <= left.rows else (left, right)

    def _entry(self, rows: int, nanoseconds: int) -> _Size:
        limit = 1 << max(rows - 1, 0).bit_length()
        at = bisect_left(self._limits, limit)
        if at == len(self._limits) or self._limits[at] != limit:
            self._limits.insert(at, limit)
            self._sizes.insert(at, _Size(rows, nanoseconds))
        return self._sizes[at]
