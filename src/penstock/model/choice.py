"""Which way to compile a model is the fastest here: measured, and only among those that are right.

Each mode runs at the smallest and at the largest size. A mode that raises, or whose answers differ
from the plain model's beyond the tolerance, is never taken. Of the others the one is taken whose
times, each divided by the best mode's at that size, have the smallest product: what is lost in
latency at the small size must be won in throughput at the large one. When two are within 10 %,
the one that comes first in `ORDER` is taken, which has less to compile.

Trying is bounded: XLA may compile for minutes, and on CPUs often runs slower than without. A mode
that takes twice the best time at the small size is not tried at the large one; nor is one that took
so long to compile that the time for all of this would be used up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.model.agreement import difference
from penstock.model.samples import Samples
from penstock.transport.tensors import Array

ORDER = ("frozen", "function", "frozen-xla", "xla")

_CLEARLY = 2.0
_ALIKE = 1.1
_ENOUGH = 0.25  # seconds of measuring one mode at one size
_PATIENCE = 1.0  # seconds more, for a few runs of what is slow
_FEWEST, _MOST = 3, 5_000
_TEXT = 300

Run = Callable[[str, list[Array]], list[Array]]
Told = dict[str, int] | str


class Choice(NamedTuple):
    """The mode to take ("": none is right), and of each mode its times, or why it is not taken.

    Times are nanoseconds by size.
    """

    mode: str
    modes: dict[str, Told]


class _NotTaken(Exception):
    """Why a mode is out."""


class Chooser:
    """Tries one mode after the other."""

    def __init__(
        self,
        run: Run,
        reference: Callable[[list[Array]], list[Array]],
        samples: Samples,
        sizes: Sequence[int],
        tolerance: float,
        budget: float,
        clock: Callable[[], float],
    ) -> None:
        self._run = run
        self._clock = clock
        self._tolerance = tolerance
        self._rows = {size: samples.rows(size) for size in sorted(set(sizes))}
        self._until = clock() + budget
        self._wanted = {size: reference(rows) for size, rows in self._rows.items()}
        self._best: dict[int, float] = {}

    def choose(self, modes: Sequence[str]) -> Choice:
        """The best of these modes, tried in this order."""
        told: dict[str, Told] = {}
        times: dict[str, dict[int, float]] = {}
        for mode in modes:
            try:
                if mode == "frozen-xla" and "frozen" in modes and "frozen" not in times:
                    raise _NotTaken("not tried: the model could not be frozen, or is slow then")
                if mode == "xla" and "frozen" in times:
                    raise _NotTaken("not tried: frozen-xla is the same with less to pass on")
                times[mode] = self._measured(mode)
            except _NotTaken as reason:
                told[mode] = str(reason)[:_TEXT]
            except Exception as error:
                told[mode] = f"{type(error).__name__}: {error}"[:_TEXT]
            else:
                told[mode] = {str(size): int(t * 1e9) for size, t in times[mode].items()}
        return Choice(self._winner(times), told)

    def _measured(self, mode: str) -> dict[int, float]:
        if self._clock() >= self._until:
            raise _NotTaken("not tried: the time for trying was used up")
        times: dict[int, float] = {}
        compiling = 0.0
        for size, rows in self._rows.items():
            if self._clock() + compiling >= self._until:
                raise _NotTaken(f"compiling took {compiling:.1f} s for a batch of {min(times)}")
            began = self._clock()
            outputs = self._run(mode, rows)
            compiling = self._clock() - began
            why = difference(outputs, self._wanted[size], self._tolerance)
            if why:
                raise _NotTaken(f"wrong at {size} rows: {why}")
            times[size] = self._timed(mode, rows, size)
            best = self._best.get(size, times[size])
            if times[size] >= _CLEARLY * best:
                raise _NotTaken(
                    f"slower: {times[size] * 1e3:.3g} ms for {size} rows, where another mode "
                    f"takes {best * 1e3:.3g} ms"
                )
        for size, time in times.items():
            self._best[size] = min(time, self._best.get(size, time))
        return times

    def _timed(self, mode: str, rows: list[Array], size: int) -> float:
        """The shortest of several runs: what disturbs a measurement only makes it longer."""
        best = float("inf")
        hopeless = _CLEARLY * self._best.get(size, float("inf"))
        until = self._clock() + _ENOUGH
        for count in range(1, _MOST + 1):
            began = self._clock()
            self._run(mode, rows)
            now = self._clock()
            best = min(best, now - began)
            if count > 1 and best >= hopeless:
                break
            if now >= until + (_PATIENCE if count < _FEWEST else 0.0):
                break
        return best

    def _winner(self, times: dict[str, dict[int, float]]) -> str:
        best, lowest = "", float("inf")
        for mode in sorted(times, key=ORDER.index):
            score = 1.0
            for size, time in times[mode].items():
                score *= time / self._best[size]
            if score * _ALIKE < lowest:
                best, lowest = mode, score
        return best
