"""Whether a step is better compiled by XLA: tried on the first steps of a run, which count.

No step is taken for the trial alone: the first ones run as they are, a few of them timed; then, if
enough is left to do for a compilation to pay, the same number compiled; then all the rest in the
better of the two ways. Where XLA cannot compile the model, that is told, and is no error.

`Contest` decides, and owns no clock; `Tried` is a step that asks it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

TIMED = 4  # steps of each way that count; the first of each traces or compiles
MARGIN = 0.97  # of the other's time: noise decides nothing
WORTH = 20.0  # seconds that must be left for a compilation to be tried


class NotCompiled(Exception):
    """XLA could not compile the step, which was not taken: its batch has to be read again."""


class Contest:
    """Which way the next step goes. `steps`: how many the run has; None where nobody knows."""

    def __init__(self, steps: int | None, *, timed: int = TIMED, worth: float = WORTH) -> None:
        self._left, self._timed, self._worth = steps, timed, worth
        self._times: dict[bool, list[float]] = {False: [], True: []}
        self.compiled: bool | None = None  # the verdict, once there is one
        self.why = ""

    @property
    def next(self) -> bool:
        """Whether the coming step is the compiled one."""
        if self.compiled is not None:
            return self.compiled
        return len(self._times[False]) > self._timed

    def took(self, seconds: float) -> bool:
        """What the step took, waited for. Whether there is a verdict now."""
        self._times[self.next].append(seconds)
        if self._left is not None:
            self._left -= 1
        plain, compiled = self._times[False], self._times[True]
        if len(compiled) > self._timed:
            self._decide(statistics.median(plain[1:]), statistics.median(compiled[1:]))
        elif not compiled and len(plain) > self._timed and not self._pays(plain):
            self.compiled = False
            self.why = "too little is left to do for a compilation to pay"
        return self.compiled is not None

    def failed(self, why: str) -> None:
        """The compiled step cannot be had."""
        self.compiled, self.why = False, f"XLA cannot compile it: {why}"

    def report(self) -> dict[str, Any]:
        """What was found, for people and for JSON."""
        found: dict[str, Any] = {"jit": self.compiled, "why": self.why}
        for name, way in (("plain_ms", False), ("compiled_ms", True)):
            if len(self._times[way]) > 1:
                found[name] = round(1000 * statistics.median(self._times[way][1:]), 3)
        if self._times[True]:
            found["compilation_s"] = round(self._times[True][0], 2)
        return found

    def _pays(self, plain: list[float]) -> bool:
        return self._left is None or self._left * statistics.median(plain[1:]) >= self._worth

    def _decide(self, plain: float, compiled: float) -> None:
        self.compiled = compiled < MARGIN * plain
        self.why = f"{1000 * compiled:.1f} ms a step compiled, {1000 * plain:.1f} ms not"


class Tried:
    """A step that is one of two, the better one in the end.

    `ways` makes the step of a way: False or True, compiled. `wait` waits for what a step gives.
    """

    def __init__(
        self,
        ways: Callable[[bool], Callable[..., Any]],
        contest: Contest,
        wait: Callable[[Any], object],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._ways, self.contest, self._wait, self._clock = ways, contest, wait, clock
        self._made: dict[bool, Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Take a step. Raises NotCompiled where it was not taken."""
        contest = self.contest
        way = contest.next
        step = self._step(way)
        if contest.compiled is not None:
            return step(*arguments)
        began = self._clock()
        try:
            given = step(*arguments)
            self._wait(given)
        except Exception as error:
            if not way or not _is_of_the_compiler(error):
                raise
            contest.failed(_told(error))
            self._made.pop(True, None)
            raise NotCompiled(contest.why) from error
        if contest.took(self._clock() - began):
            self._made.pop(not contest.next, None)
        return given

    def undo(self) -> None:
        """After a step that raised in its middle: see `TrainStep.undo`."""
        step: Any = self._made.get(self.contest.next)
        if step is not None:
            step.undo()

    def _step(self, way: bool) -> Callable[..., Any]:
        if way not in self._made:
            self._made[way] = self._ways(way)
        return self._made[way]


def _told(error: Exception) -> str:
    """What TensorFlow says: first, or in the end where it begins with the stack of a node."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(("[[", "[Op:"))]
    if not told:
        return type(error).__name__
    return told[-1 if told[0].startswith("Graph execution error") else 0][:300]


def _is_of_the_compiler(error: Exception) -> bool:
    """What XLA raises for what it cannot do; running out of memory and of data are not among it."""
    return type(error).__name__ in ("InvalidArgumentError", "UnimplementedError", "NotFoundError")
