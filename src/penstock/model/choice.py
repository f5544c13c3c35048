"""Which way to compile a model is the fastest here: measured, and only among those that are right.

Each mode runs at the smallest and at the largest size. A mode that raises, or whose answers differ
from the plain model's beyond the tolerance, is never taken. Of the others the one is taken whose
times, each divided by the best mode's at that size, have the smallest product: what is lost in
latency at the small size must be won in throughput at the large one. When two are within 10 %,
the one that comes first in `ORDER` is taken, which has less to compile.

On CPUs a call waits for its result. A GPU is faster than that tells, because a worker has the next
batch on its way meanwhile: there, throughput at the large size is measured with calls in flight
(`Pace`), and all modes are tried at the small size before any is at the large one.

Trying is bounded: XLA may compile for minutes, and on CPUs often runs slower than without. A mode
that takes twice the best time at the small size (on GPUs three times) is not tried at the large
one (its first few calls do not tell: those of a few microseconds take twice as long as later ones);
nor is one that took so long to compile that the time for all of this would be used up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.model.agreement import difference
from penstock.model.samples import Samples
from penstock.model.shortage import is_out_of_memory
from penstock.transport.tensors import Array

ORDER = ("frozen", "function", "frozen-xla", "xla")

_CLEARLY = 2.0
_HOPELESS = 3.0  # on GPUs, where sizes differ more
_ALIKE = 1.1
_ENOUGH = 0.25  # seconds of measuring one mode at one size
_PATIENCE = 1.0  # seconds more, for a few runs of what is slow
_FEWEST, _MOST = 3, 5_000
_SURE = 0.005  # seconds of measuring, before a mode is given up
_TEXT = 300

Run = Callable[[str, list[Array]], list[Array]]
Pace = Callable[[Callable[[], object]], float]  # seconds from one call to the next, in flight
Told = dict[str, int] | str


class Choice(NamedTuple):
    """The mode to take ("": none is right), and of each mode its times, or why it is not taken.

    Times are nanoseconds by size. `rates` are rows a second at the large size, by mode, where calls
    were in flight. `short`: a mode is out because there was too little memory for it, which may be
    otherwise another time; what was said then.
    """

    mode: str
    modes: dict[str, Told]
    rates: dict[str, float] = {}  # noqa: RUF012 (a named tuple's default, never changed)
    short: str = ""


class _NotTaken(Exception):
    """Why a mode is out."""


class _Slower(_NotTaken):
    """Another one takes much less time."""


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
        pace: Pace | None = None,
    ) -> None:
        self._run = run
        self._clock = clock
        self._pace = pace
        self._rates: dict[str, float] = {}
        self._tolerance = tolerance
        self._rows = {size: samples.rows(size) for size in sorted(set(sizes))}
        self._until = clock() + budget
        self._wanted = {size: reference(rows) for size, rows in self._rows.items()}
        self._best: dict[int, float] = {}
        self._compiling = 0.0
        self._short = ""

    def choose(self, modes: Sequence[str]) -> Choice:
        """The best of these modes, tried in this order."""
        if self._pace is not None:
            return self._choose_in_flight(modes, self._pace)
        told: dict[str, Told] = {}
        times: dict[str, dict[int, float]] = {}
        slow: set[str] = set()
        for mode in modes:
            try:
                if mode == "frozen-xla" and "frozen" in modes and "frozen" not in times:
                    raise _NotTaken("not tried: the model could not be frozen, or is slow then")
                if mode == "xla" and "frozen-xla" in times:
                    raise _NotTaken("not tried: frozen-xla is the same with less to pass on")
                if mode == "xla" and "frozen-xla" in slow:
                    raise _NotTaken("not tried: frozen-xla, with less to pass on, is slow already")
                times[mode] = self._measured(mode)
            except Exception as error:
                told[mode] = self._why_not(error)
                if isinstance(error, _Slower):
                    slow.add(mode)
            else:
                told[mode] = {str(size): int(t * 1e9) for size, t in times[mode].items()}
        return Choice(self._winner(times), told, short=self._short)

    def _choose_in_flight(self, modes: Sequence[str], pace: Pace) -> Choice:
        """The same, with the small size first for all modes, and calls in flight at the large."""
        told: dict[str, Told] = {}
        times: dict[str, dict[int, float]] = {}
        small, large = min(self._rows), max(self._rows)
        for mode in modes:
            try:
                if mode == "frozen-xla" and "frozen" in told:
                    raise _NotTaken("not tried: the model could not be frozen")
                if mode == "xla" and "frozen-xla" in times:
                    raise _NotTaken("not tried: frozen-xla is the same with less to pass on")
                times[mode] = {small: self._right(mode, small, 0.0)}
            except Exception as error:
                told[mode] = self._why_not(error)
        finished: dict[str, dict[int, float]] = {}
        fastest = min((found[small] for found in times.values()), default=0.0)
        for mode in sorted(times, key=lambda mode: times[mode][small]):
            try:
                if finished and times[mode][small] >= _HOPELESS * fastest:
                    raise _Slower(_slower(times[mode][small], small, fastest))
                found = times[mode]
                if large != small:
                    found[large] = self._right(mode, large, 0.0, late=not finished)
                each = pace(lambda mode=mode: self._run(mode, self._rows[large]))  # type: ignore[misc]
                self._rates[mode] = large / each
                told[mode] = {str(size): int(time * 1e9) for size, time in found.items()}
                finished[mode] = {**found, large: each} if large != small else found
            except Exception as error:
                told[mode] = self._why_not(error)
        for found in finished.values():
            for size, time in found.items():
                self._best[size] = min(time, self._best.get(size, time))
        return Choice(self._winner(finished), told, self._rates, self._short)

    def _measured(self, mode: str) -> dict[int, float]:
        times: dict[int, float] = {}
        compiling = 0.0
        for size in self._rows:
            began = self._clock()
            if times and began + compiling >= self._until:
                raise _NotTaken(f"compiling took {compiling:.1f} s for a batch of {min(times)}")
            times[size] = self._right(mode, size, _CLEARLY)
            compiling = self._compiling
            best = self._best.get(size, times[size])
            if times[size] >= _CLEARLY * best:
                raise _Slower(_slower(times[size], size, best))
        for size, time in times.items():
            self._best[size] = min(time, self._best.get(size, time))
        return times

    def _right(self, mode: str, size: int, hopeless: float, late: bool = False) -> float:
        """The time that a mode takes at a size. Raises unless its answers are right there.

        `late`: although the time for trying may be used up.
        """
        if self._clock() >= self._until and not late:
            raise _NotTaken("not tried: the time for trying was used up")
        began = self._clock()
        outputs = self._run(mode, self._rows[size])
        self._compiling = self._clock() - began
        why = difference(outputs, self._wanted[size], self._tolerance)
        if why:
            raise _NotTaken(f"wrong at {size} rows: {why}")
        best = self._best.get(size, float("inf"))
        return self._timed(mode, self._rows[size], hopeless * best if hopeless else float("inf"))

    def _timed(self, mode: str, rows: list[Array], hopeless: float) -> float:
        """The shortest of several runs: what disturbs a measurement only makes it longer."""
        best = float("inf")
        start = self._clock()
        until = start + _ENOUGH
        for count in range(1, _MOST + 1):
            began = self._clock()
            self._run(mode, rows)
            now = self._clock()
            best = min(best, now - began)
            if count > 1 and now >= start + _SURE and best >= hopeless:
                break
            if now >= until + (_PATIENCE if count < _FEWEST else 0.0):
                break
        return best

    def _why_not(self, error: Exception) -> str:
        """Why a mode is out, for people."""
        text = str(error) if isinstance(error, _NotTaken) else f"{type(error).__name__}: {error}"
        if is_out_of_memory(error):
            self._short = self._short or text[:_TEXT]
        return text[:_TEXT]

    def _winner(self, times: dict[str, dict[int, float]]) -> str:
        best, lowest = "", float("inf")
        for mode in sorted(times, key=ORDER.index):
            score = 1.0
            for size, time in times[mode].items():
                score *= time / self._best[size]
            if score * _ALIKE < lowest:
                best, lowest = mode, score
        return best


def _slower(time: float, size: int, best: float) -> str:
    return (
        f"slower: {time * 1e3:.3g} ms for {size} rows, where another mode takes {best * 1e3:.3g} ms"
    )
