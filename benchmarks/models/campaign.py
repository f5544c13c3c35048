"""The run itself.

network   the model's file, images, and the answers that are right
starts    the engine with an empty cache, and again with the one that this left; several times
sweep     every way to compile at every batch size, in one process; the best go on
rounds    all ways in turn, several times: the machine is noisy, and only figures that were taken
          side by side can be compared
memory    of each way, while no process of another has TensorFlow loaded: both would share its
          libraries, and each count half. So `predict` is measured before the others start, and
          `tf.function` after they have ended. A quick run leaves this out

A way that fails is taken down as failed, and the run goes on without it.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.core.load import Timing
from benchmarks.core.processes import Child, ChildFailed, Workspace
from benchmarks.models.findings import Figures, Findings, Measured, Pair, Trial
from benchmarks.models.plan import Plan
from benchmarks.models.served import EngineProcess
from benchmarks.models.sweep import Sweep, finalists
from benchmarks.models.ways import Group, InBatches, OwnModels, ThroughPenstock

Announce = Callable[[str], None]
Turn = tuple[Figures, Callable[[Timing], Measured]]
_MADE_WITHIN = 180.0
G = TypeVar("G", bound=Group)


class Campaign:
    """Runs a plan; announces each of its steps before taking it."""

    def __init__(self, plan: Plan, workspace: Workspace, announce: Announce) -> None:
        self._plan = plan
        self._workspace = workspace
        self._announce = announce
        self._folder: Path = workspace.folder
        self._cache = workspace.folder / "cache"
        self.findings = Findings()

    def steps(self) -> int:
        """How many steps `run` will announce."""
        plan = self._plan
        before = 1 + 2 * plan.pairs + len(plan.cells()) + (4 if plan.memory else 1)
        return before + 2 + plan.rounds * (3 + plan.finalists)

    def run(self) -> Findings:
        self._make_network()
        self._measure_starts()
        self._sweep()
        if self._plan.memory:
            self._announce("Memory of Penstock")
            self._measure_memory(self.findings.penstock, self._penstock)
            for trial in finalists(self.findings.trials, 1):
                self._announce(f"Memory of {named(trial)}")
                limit = self.findings.limits[named(trial)]
                self._measure_memory(limit, partial(self._in_batches, trial))
        self._compare()
        return self.findings

    # ── before the rounds ──────────────────────────────────────────────────────────────────────

    def _make_network(self) -> None:
        self._announce("Making the network")
        command = ["benchmarks.models.network", str(self._folder), str(self._plan.images)]
        child = Child(command, self._workspace)
        try:
            self.findings.network = child.hear(time.monotonic() + _MADE_WITHIN)
        finally:
            child.dismiss()
            child.close(time.monotonic() + 1.0)

    def _measure_starts(self) -> None:
        for turn in range(self._plan.pairs):
            shutil.rmtree(self._cache, ignore_errors=True)
            try:
                starts = []
                for which in ("empty", "filled"):
                    self._announce(f"Start {turn + 1} with the cache {which}")
                    engine = self._engine()
                    engine.close()
                    starts.append(engine.start)
                if starts[0].cached or not starts[1].cached:
                    raise ChildFailed(f"the cache did not do what it should: {starts}")
                self.findings.pairs.append(Pair(*starts))
            except ChildFailed as failure:
                self._note(failure)

    def _sweep(self) -> None:
        findings = self.findings
        findings.trials = Sweep(self._plan, self._folder, self._workspace).run(self._announce)
        for trial in finalists(findings.trials, self._plan.finalists):
            findings.limits[named(trial)] = Figures(f"one process: {named(trial)}")

    def _measure_memory(self, figures: Figures, start: Callable[[], Group]) -> None:
        """Of a way that is started for this alone."""
        assert self._plan.memory is not None
        try:
            with contextlib.closing(start()) as group:
                group.measure(self._plan.memory)
                figures.memory_bytes = group.memory_bytes()
        except (ChildFailed, OSError) as failure:
            self._note(failure)

    def _take_memory(self, figures: Figures, group: OwnModels, way: str) -> None:
        """Of a way that goes on, after a load."""
        if self._plan.memory and figures.failure is None:
            with self._noted(figures):
                group.measure_way(way, self._plan.memory)
                figures.memory_bytes = group.memory_bytes()

    # ── the rounds ─────────────────────────────────────────────────────────────────────────────

    def _compare(self) -> None:
        findings, shared = self.findings, self._plan.memory is None
        with contextlib.ExitStack() as last, contextlib.ExitStack() as others:
            self._announce("Starting 8 × model.predict")
            predict = self._started(others, findings.predict, self._own_models)
            if predict is not None:
                self._take_memory(findings.predict, predict, "predict")
            if shared:
                function = predict
            else:
                self._announce("Starting 8 × tf.function")
                function = self._started(last, findings.function, self._own_models)
            turns = self._other_turns(others)
            for figures, way, group in (
                (findings.predict, "predict", predict),
                (findings.function, "function", function),
            ):
                if group is not None:
                    turns.append((figures, partial(group.measure_way, way)))
            for turn in range(self._plan.rounds):
                self._round(turn, turns)
            others.close()
            if function is not None and not shared:
                self._take_memory(findings.function, function, "function")

    def _other_turns(self, stack: contextlib.ExitStack) -> list[Turn]:
        """Start Penstock and the limits."""
        findings = self.findings
        turns: list[Turn] = []
        self._announce("Starting Penstock")
        penstock = self._started(stack, findings.penstock, self._penstock)
        if penstock is not None:
            turns.append((findings.penstock, partial(self._through, penstock)))
        self._announce("Starting the best functions")
        for trial in finalists(findings.trials, self._plan.finalists):
            figures = findings.limits[named(trial)]
            process = self._started(stack, figures, partial(self._in_batches, trial))
            if process is not None:
                turns.append((figures, process.measure))
        return turns

    def _round(self, turn: int, turns: list[Turn]) -> None:
        for place in range(len(turns)):
            figures, measure = turns[(turn + place) % len(turns)]
            self._announce(f"Round {turn + 1}: {figures.title}")
            if figures.failure is None:
                with self._noted(figures):
                    figures.rounds[turn] = measure(self._plan.load)

    def _through(self, penstock: ThroughPenstock, timing: Timing) -> Measured:
        measured = penstock.measure(timing)
        if penstock.served is not None:
            self.findings.served.append(penstock.served)
        self.findings.facts = penstock.engine.facts
        return measured

    # ── starting ───────────────────────────────────────────────────────────────────────────────

    def _engine(self) -> EngineProcess:
        return EngineProcess(self._folder, self._cache, self._workspace)

    def _penstock(self) -> ThroughPenstock:
        engine = self._engine()
        try:
            return ThroughPenstock(engine, self._folder, self._workspace)
        except BaseException:
            engine.close()
            raise

    def _own_models(self) -> OwnModels:
        return OwnModels(self._folder, self._workspace)

    def _in_batches(self, trial: Trial) -> InBatches:
        return InBatches(trial, self._folder, self._workspace)

    def _started(
        self, stack: contextlib.ExitStack, figures: Figures, start: Callable[[], G]
    ) -> G | None:
        group: G | None = None
        with self._noted(figures):
            group = stack.enter_context(contextlib.closing(start()))
        return group

    @contextlib.contextmanager
    def _noted(self, figures: Figures) -> Iterator[None]:
        """Let the run go on without a way that fails."""
        try:
            yield
        except (ChildFailed, OSError) as failure:
            figures.failure = self._note(failure)

    def _note(self, failure: Exception) -> str:
        """Keep a failure in full for the terminal; for the results, what failed and how."""
        self.findings.failures.append(str(failure))
        lines = str(failure).splitlines() or [type(failure).__name__]
        return lines[0] if len(lines) == 1 else f"{lines[0]}: {lines[-1]}"


def named(trial: Trial) -> str:
    """A cell of the sweep in words."""
    return f"{trial.mode}, {trial.size} at once"
