"""Which batch sizes are worth having: few are measured, the rest is fitted. Knows no model.

The largest batch. Time is close to a + b·n, so throughput grows towards 1/b and a larger batch is
worth ever less. `search` measures 16 and then four times the largest so far, again and again, fits
the last two, and stops when no larger batch could bring 1 % more. Where throughput falls again
(rows that outgrow a cache), a parabola through the three sizes around the best says where to look
once or twice more. The smallest size within 1 % of the best is taken; both together stay within 2 %
of what measuring every size would find, as long as the curve is one of these. A step that no
measured size falls on (a tile of 96 rows, say) can hide more than that: up to 5 % were seen.

The ladder. Batches are padded to the next size, so a size more saves what padding to the next one
costs. `ladder_of` keeps a power of two only where it takes at least a tenth less time than the next
larger size that is kept, and at most eight sizes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

FIRST = 16
MOST = 2048
PROBES = 6  # for XLA on a GPU, each is a compilation of 5 to 10 s
_STEP = 4
_SLACK = 0.01  # of throughput: what may be left to gain, and what a smaller batch may lose
_SAVES = 0.1
_RUNGS = 8
_REFINED = 2

Measure = Callable[[int], float]
Fits = Callable[[int], bool]


class DoesNotFit(Exception):
    """A batch of this size could not be run: the device's memory is too small."""


@dataclass(frozen=True)
class Curve:
    """Seconds by batch size: measured at some, a straight line between and beyond them."""

    measured: Mapping[int, float]

    def at(self, size: int) -> float:
        """Seconds for a batch of so many rows."""
        known = self.measured.get(size)
        if known is not None:
            return known
        sizes = sorted(self.measured)
        if len(sizes) == 1:
            return self.measured[sizes[0]] * max(1.0, size / sizes[0])
        after = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
        low, high = sizes[after - 1], sizes[after]
        start, slope = _line(low, self.measured[low], high, self.measured[high])
        return start + slope * size

    def rate(self, size: int) -> float:
        """Rows a second."""
        return size / self.at(size)


@dataclass(frozen=True)
class Search:
    """What was found: the largest batch worth having, the curve, and why there."""

    best: int
    curve: Curve
    why: str
    failed: int = 0  # a size that did not fit, although it was thought to
    probes: tuple[int, ...] = field(default=())


def search(
    measure: Measure,
    *,
    most: int = MOST,
    fits: Fits = lambda size: True,
    known: Mapping[int, float] | None = None,
    probes: int = PROBES,
    done: Callable[[], bool] = lambda: False,
) -> Search:
    """Find the largest batch worth having, at most `most` rows.

    `measure` returns the seconds from one batch of a size to the next, or raises `DoesNotFit`;
    `fits` says beforehand whether a size can be run; `known` are times that were measured before.
    At most `probes` sizes are measured, and none when `done` says that the time is used up.
    """
    seeker = _Seeker(measure, most, fits, dict(known or {}), probes, done)
    why = seeker.climb()
    times = seeker.times
    if not times:
        raise DoesNotFit("not a single size could be measured")
    seeker.refine()
    curve = Curve(times)
    top = max(curve.rate(size) for size in times)
    best = min(size for size in times if curve.rate(size) >= (1 - _SLACK) * top)
    larger = [size for size in times if size > best]
    if larger and best < max(times) and curve.rate(max(times)) < (1 - _SLACK) * curve.rate(best):
        why = f"larger batches are slower a row, of {max(times)} rows for one"
    elif larger:
        why = f"larger batches bring less than 1 % more, of {max(times)} rows for one"
    return Search(best, curve, why, seeker.failed, tuple(seeker.probed))


class _Seeker:
    def __init__(
        self,
        measure: Measure,
        most: int,
        fits: Fits,
        times: dict[int, float],
        probes: int,
        done: Callable[[], bool],
    ) -> None:
        self._measure = measure
        self._most = most
        self._fits = fits
        self._left = probes
        self._done = done
        self.times = {size: time for size, time in times.items() if size <= most}
        self.probed: list[int] = []
        self.failed = 0

    def climb(self) -> str:
        """Ever larger sizes, until that is not worth it; returns why it ended."""
        size = min(FIRST, self._most)
        while True:
            fitting = self._fitting(size)
            if fitting < size and (not self.times or fitting <= max(self.times)):
                return self._no_room(size)
            if not self._probe(fitting):
                return self._no_room(size) if self.failed else "the time for measuring was used up"
            if fitting < size:
                return self._no_room(size)
            if max(self.times) >= self._most:
                return f"{self._most} rows are the most that is allowed"
            if not self._gains():
                return "a larger batch would bring less than 1 % more, by the fitted line"
            size = min(max(size, *self.times) * _STEP, self._most)

    def refine(self) -> None:
        """Look between the sizes around the best, where a parabola says that more is to be had."""
        for _ in range(_REFINED):
            sizes = sorted(self.times)
            if len(sizes) < 3:
                return
            best = max(size / self.times[size] for size in sizes)
            at = next(at for at, size in enumerate(sizes) if size / self.times[size] == best)
            at = min(max(at, 1), len(sizes) - 2)
            size, rate = self._peak(*sizes[at - 1 : at + 2])
            if rate <= (1 + _SLACK) * best or not self._fits(size) or not self._probe(size):
                return

    def _peak(self, low: int, middle: int, high: int) -> tuple[int, float]:
        """Where a parabola through three times has the most rows a second, and how many."""
        t0, t1, t2 = (self.times[size] for size in (low, middle, high))
        lower, upper = (t1 - t0) / (middle - low), (t2 - t1) / (high - middle)
        bend = (upper - lower) / (high - low)
        slope = lower - bend * (low + middle)
        start = t0 - slope * low - bend * low * low
        if start <= 0 or bend <= 0:
            return high, 0.0
        size = min(max(_rounded((start / bend) ** 0.5), low), high)
        time = start + slope * size + bend * size * size
        return size, size / time if time > 0 and size not in self.times else 0.0

    def _gains(self) -> bool:
        """Whether the line through the largest two sizes promises more at the most rows."""
        if len(self.times) < 2:
            return True
        low, high = sorted(self.times)[-2:]
        best = max(size / time for size, time in self.times.items())
        # A smaller batch could be padded: where it seems slower, it was disturbed.
        low_time = min(self.times[low], self.times[high])
        start, slope = _line(low, low_time, high, self.times[high])
        return self._most / (start + slope * self._most) > (1 + _SLACK) * best

    def _probe(self, size: int) -> bool:
        if size in self.times:
            return True
        if self._left <= 0 or self._done():
            return False
        self._left -= 1
        try:
            self.times[size] = self._measure(size)
        except DoesNotFit:
            self.failed = size
            return False
        self.probed.append(size)
        return True

    def _fitting(self, size: int) -> int:
        """The largest size up to this one that fits."""
        if self._fits(size):
            return size
        low, high = 0, size
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(middle) else (low, middle)
        return low

    def _no_room(self, size: int) -> str:
        return f"{self.failed or size} rows do not fit into the device's memory"


def _line(low: int, low_time: float, high: int, high_time: float) -> tuple[float, float]:
    """Start and slope of the line through two times; neither is less than nothing."""
    slope = max((high_time - low_time) / (high - low), 0.0)
    start = high_time - slope * high
    if start < 0:
        return 0.0, high_time / high
    return start, slope


def _rounded(size: float) -> int:
    """The next number with at most three binary digits that count, which kernels like."""
    unit = 1 << max(int(size).bit_length() - 3, 0)
    return max(round(size / unit) * unit, 1)


def ladder_of(curve: Curve, top: int) -> tuple[int, ...]:
    """The sizes to pad to, from one row to `top`: those that save a tenth of the time or more."""
    below = [1 << power for power in range(top.bit_length()) if 1 << power < top]
    saves = _SAVES
    while True:
        kept = [top]
        for size in reversed(below):
            if size == 1 or curve.at(size) <= (1 - saves) * curve.at(kept[0]):
                kept.insert(0, size)
        if len(kept) <= _RUNGS:
            return tuple(kept)
        saves *= 1.25
