"""Measuring a model at a few sizes, in the mode that was chosen: time, throughput and memory.

The decisions are elsewhere: `sizes` says which size to measure next and when to stop, `peak` what
memory a size will need. What did not fit all the same (TensorFlow waits ten seconds before it says
so) ends the search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.model import pace, peak
from penstock.model.peak import NOTHING, Memory, Need
from penstock.model.samples import Samples
from penstock.model.shortage import is_out_of_memory
from penstock.model.sizes import MOST, Curve, DoesNotFit, Search, ladder_of, search
from penstock.transport.tensors import Array

_SMALL = (4, 16)  # four rows were run before, to see whether they are independent
_TOPS = (256, 128, 64, 32, 16, 8, 4, 2)
_SHARE = 32  # of the limit a batch of inputs takes one part at most: there are several such buffers

Run = Callable[[list[Array]], object]
Tell = Callable[[str], None]


class Sweep:
    """Of one model: what was measured at which size."""

    def __init__(self, samples: Samples, memory: Memory, device: str, tell: Tell) -> None:
        self._samples = samples
        self._memory = memory
        self._in_flight = device == "GPU"
        self._tell = tell
        self.latency: dict[int, float] = {}
        self.each: dict[int, float] = {}  # seconds from one batch to the next
        self.peaks: dict[int, int] = {}
        self.held = memory.held()
        self.limit = memory.limit()
        self._guess = NOTHING
        self.too_large = 0  # rows that did not fit, whatever was thought; 0: none

    def guess_need(self, run: Run) -> None:
        """The memory that a batch needs, from two small ones in a mode that compiles for none."""
        peaks: dict[int, int] = {}
        try:
            for size in _SMALL:
                rows = self._samples.rows(size)
                run(rows)
                self._memory.forget()
                run(rows)
                peaks[size] = self._memory.peak()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.too_large = size
        self._guess = peak.fitted(peaks)

    @property
    def need(self) -> Need:
        """What a batch needs, as far as that was measured."""
        return peak.fitted(self.peaks) if len(self.peaks) > 1 else self._guess

    def fits(self, size: int) -> bool:
        """Whether a batch of this size fits into the device's memory, by what is known."""
        return self.need.fits(size, self.limit) and not 0 < self.too_large <= size

    def cut(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Those that fit, by what is known, and a large one in place of those that do not."""
        fitting = peak.cut(sizes, self.need, self.limit)
        if not 0 < self.too_large <= fitting[-1]:
            return fitting
        half = max(self.too_large // 2, 1)
        return (*(size for size in fitting if size < half), half)

    def first_top(self) -> int:
        """A large size to compare compile modes at: up to 256 rows, if they fit."""
        return next((size for size in _TOPS if self.fits(size)), 1)

    def measure(self, run: Run, size: int) -> float:
        """Seconds from one batch of this size to the next."""
        self._tell(f"measuring batches of {size}")
        rows = self._samples.rows(size)
        try:
            run(rows)
            self._memory.forget()
            self.latency[size] = pace.alone(lambda: run(rows))
            each = pace.in_flight(lambda: run(rows)) if self._in_flight else self.latency[size]
        except Exception as error:
            if is_out_of_memory(error):
                self.too_large = min(size, self.too_large or size)
                raise DoesNotFit(str(error)) from error
            raise
        self.each[size] = each
        if self._memory.peak():
            self.peaks[size] = self._memory.peak()
        return each

    def climb(self, run: Run, sizes: Sequence[int]) -> int:
        """Measure each of these sizes that fits; returns the largest."""
        best = 0
        for size in self.cut(sizes):
            try:
                self.measure(run, size)
            except DoesNotFit:
                if not best:
                    raise
                break
            best = size
        return best

    def search(
        self, run: Run, known: Mapping[int, float], most: int, done: Callable[[], bool]
    ) -> Search:
        """The largest batch worth having."""
        return search(
            lambda size: self.measure(run, size),
            most=most,
            fits=self.fits,
            known=known,
            done=done,
        )

    def ladder(self, top: int, known: Mapping[int, float]) -> tuple[int, ...]:
        """The sizes worth padding to, by the latencies measured here and before."""
        return ladder_of(Curve({**known, **self.latency}), top)

    def told_memory(self) -> dict[str, Any]:
        """As findings keep it; nothing where nothing is known."""
        need = self.need
        if need == NOTHING:
            return {}
        return {
            "held": self.held,
            "fixed": need.fixed,
            "per_row": need.per_row,
            "buffers_per_row": pace.HANDS * row_bytes(self._samples),
            "limit": self.limit,
            "peaks": {str(size): bytes_ for size, bytes_ in sorted(self.peaks.items())},
        }


def most_rows(samples: Samples, allowed: int, limit: int = 0) -> int:
    """How large a batch may be at all: what the settings allow, else what buffers can hold.

    Those are beside TensorFlow's limit, and an engine has left so much for them.
    """
    if allowed:
        return allowed
    most = min(pace.BATCH_BYTES, limit // _SHARE) if limit else pace.BATCH_BYTES
    return max(1, min(MOST, most // max(row_bytes(samples), 1)))


def row_bytes(samples: Samples) -> int:
    """Bytes of one row of all inputs."""
    return sum(array.nbytes for array in samples.chosen([0]))
