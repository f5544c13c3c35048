"""Every way to compile the network at every batch size, briefly, to find the best.

One process tries them in turn. XLA may compile for long: a cell that takes longer than it may is
skipped, with the larger sizes of its mode, and its process is replaced.
"""

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.core.processes import Child, ChildFailed, Workspace
from benchmarks.models.findings import Trial
from benchmarks.models.plan import XLA_MODES, Plan

_WITHIN = 180.0
MODULE = "benchmarks.models.limit"


class Sweep:
    """Finds the best cells."""

    def __init__(self, plan: Plan, folder: Path, workspace: Workspace) -> None:
        self._plan = plan
        self._folder = folder
        self._workspace = workspace
        self._child: Child | None = None

    def run(self, announce: Callable[[str], None]) -> list[Trial]:
        """Try every cell."""
        trials: list[Trial] = []
        hopeless: dict[str, str] = {}
        try:
            for mode, size in self._plan.cells():
                announce(f"In one process: {mode}, {size} at once")
                if mode in hopeless:
                    trials.append(Trial(mode, size, skipped=hopeless[mode]))
                    continue
                trial = self._try(mode, size)
                if trial.skipped:
                    hopeless[mode] = f"not tried: {trial.skipped} at {size}"
                trials.append(trial)
        finally:
            self._end()
        return trials

    def _try(self, mode: str, size: int) -> Trial:
        child = self._process()
        within = self._plan.xla_within if mode in XLA_MODES else _WITHIN
        try:
            child.say({"cell": [mode, size]})
            built = child.hear(time.monotonic() + within)["built_s"]
            child.say({"seconds": self._plan.cell})
            rate = child.hear(time.monotonic() + _WITHIN)["images_per_s"]
        except ChildFailed as failure:
            late = child.alive()
            self._end()
            why = f"compiling took over {within:g} s" if late else str(failure).splitlines()[-1]
            return Trial(mode, size, skipped=why)
        return Trial(mode, size, images_per_s=rate, built_s=built)

    def _process(self) -> Child:
        if self._child is None:
            self._child = Child([MODULE, str(self._folder)], self._workspace)
            self._child.hear(time.monotonic() + _WITHIN)
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.dismiss()
            child.close(time.monotonic())


def finalists(trials: list[Trial], count: int) -> list[Trial]:
    """The cells with the most images a second."""
    measured = [trial for trial in trials if trial.images_per_s is not None]
    return sorted(measured, key=lambda trial: trial.images_per_s or 0.0, reverse=True)[:count]
