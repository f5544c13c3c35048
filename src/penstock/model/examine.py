"""Finding out all there is to know of a model before it serves: the first start does this.

In this order: whether it keeps state (`operations`; if so it is not run before it serves), rows to
try it with (`samples`), whether its rows are independent (`independence`), which compile mode is
right and fast (`contest`), which precision (`trial`, where the settings leave that open), and how
large batches should be (`sweep`: on GPUs where the settings leave that open, and for `tune`). The
`Findings` are remembered (`cache`), so that later starts have only to build what was chosen.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from penstock.config import DEFAULT_BATCH, Model
from penstock.errors import ModelLoadError
from penstock.model import rounding
from penstock.model.agreement import COARSE_TOLERANCE, TOLERANCE
from penstock.model.cache import Entry
from penstock.model.contest import Contest
from penstock.model.findings import Findings
from penstock.model.graph import Graph
from penstock.model.handover import gathered
from penstock.model.independence import dependence
from penstock.model.modes import Modes, shapes_of
from penstock.model.operations import Operations
from penstock.model.peak import Memory, memory_of
from penstock.model.samples import Samples, find_samples, made_up
from penstock.model.shortage import is_about_files, is_out_of_memory
from penstock.model.sizes import DoesNotFit
from penstock.model.sweep import Sweep, most_rows
from penstock.model.trial import Chosen, Trial, run_in
from penstock.transport.tensors import Array

_SEARCHING = {"CPU": 45.0, "GPU": 50.0}  # seconds since the beginning, until sizes are enough
_SAYS_SO = "the settings say so (batched=False)"


class Examination:
    """Of one model, on one device. `thorough`: as `tune` wants it, with sizes on CPUs too."""

    def __init__(
        self,
        graph: Graph,
        modes: Modes,
        model: Model,
        device: str,
        *,
        thorough: bool = False,
        memory: Memory | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._own = graph
        self._graph = graph
        self.modes = modes  # of the precision that was chosen
        self._model = model
        self._device = device
        self._thorough = thorough
        self._memory = memory or memory_of(device)
        self._tell = tell
        self._notes: list[str] = []
        self._began = time.perf_counter()
        self.samples: Samples | None = None
        self.lasting = True  # whether another start would find the same

    def findings(self, entry: Entry) -> Findings:
        """Find out. Raises `ModelLoadError` when what the settings want is not to be had.

        The entry is only where deadly modes are marked.
        """
        precision = self._model.precision
        if precision:
            self._take("float32" if precision == "auto" else precision)
        operations = Operations(self._traced())
        state = self._graph.stateful or operations.hidden_state()
        self._refuse(state, operations)
        if state:
            self._notes.append("not tried before it serves, because that would change its state")
            return self._untried("function", state)
        samples, missing = find_samples(self._graph.inputs, self._model.sample, self._try)
        if samples is None:
            return self._unmeasured(missing)
        samples.place = gathered
        self.samples = samples
        tolerance = self._model.tolerance or (
            COARSE_TOLERANCE
            if operations.has_half_precision() or self._device == "GPU" or precision == "int8"
            else TOLERANCE
        )
        unbatched = self._unbatched(samples, tolerance)
        sweep = Sweep(samples, self._memory, self._device, self._tell)
        sizes = self._sizes(unbatched, sweep)
        contest = Contest(self._graph, self._model, self._device, self._run, entry)
        candidates = contest.candidates(operations, bool(unbatched))
        self._tell(f"compile modes at {' and '.join(map(str, sorted(set(sizes))))} rows")
        choice, sizes = contest.decide(candidates, samples, sizes, tolerance)
        self._notes += contest.notes
        self.lasting = self.lasting and contest.lasting
        mode = choice.mode
        if not mode:
            if self._model.compile != "auto":
                self._cannot(str(choice.modes[self._model.compile]))
            mode = "function"
            self._notes.append("no mode's answers agree with the plain model's")
        if mode.endswith("xla") and operations.looks_up():
            self._notes.append("with XLA, an index outside of a table is not an error")
        measured = choice.modes.get(mode)
        found = Findings(
            mode,
            choice.modes,
            dict(measured) if isinstance(measured, dict) else {},
            unbatched,
            self._notes,
            max_batch=self._top() if unbatched else sizes[-1],
            rates={str(sizes[-1]): choice.rates[mode]} if mode in choice.rates else {},
            memory=sweep.told_memory(),
            reasons={"max_batch": self._why_so_many(unbatched)},
        )
        if precision:
            found = self._in_precision(found, samples, sizes[-1])
        return self._searched(found, sweep)

    # ── precision ──────────────────────────────────────────────────────────────────────────────

    def _take(self, precision: str) -> None:
        """From here on the model computes in this precision."""
        self._graph = self._own.at(precision)
        self.modes = Modes(self._graph)

    def _in_precision(self, found: Findings, samples: Samples, top: int) -> Findings:
        """How far off the precision is that the settings name, or which one is taken."""
        named = self._model.precision if self._model.precision != "auto" else ""
        try:
            trial = Trial(self._own, found.mode, samples, top, self._device)
            if named:
                chosen = trial.named(named, self.modes, f"model {self._model.name!r}")
            else:
                tolerance = self._model.tolerance or COARSE_TOLERANCE
                chosen = trial.best(self.modes, tolerance, self._tell, self._notes)
        except Exception as error:
            if not self._for_want_of_memory(error):
                raise
            chosen = Chosen(named or "float32", "too little memory to compare it with others", {})
        self.lasting = self.lasting and not chosen.short
        found = dataclasses.replace(
            found,
            precision=chosen.precision,
            drift=rounding.told(chosen.tried),
            reasons={**found.reasons, "precision": chosen.why},
        )
        if chosen.graph is None or chosen.modes is None:
            return found
        self._graph, self.modes = chosen.graph, chosen.modes
        each = chosen.tried[chosen.precision].seconds
        rates = {str(top): top / each} if self._device == "GPU" else {}
        return dataclasses.replace(found, latency={}, rates=rates)  # those were float32's

    # ── sizes ──────────────────────────────────────────────────────────────────────────────────

    def _sizes(self, unbatched: str, sweep: Sweep) -> tuple[int, ...]:
        """The smallest and the largest size, as far as they are known before anything is timed."""
        if unbatched:
            return (1,)
        if self._device == "GPU":
            self._tell("memory at 4 and 16 rows")
            try:
                sweep.guess_need(lambda rows: self._run("function", rows))
            except Exception as error:
                self._notes.append(f"memory could not be measured: {error}"[:300])
        if self._model.ladder or self._model.max_batch:
            wanted = self._model.ladder or (1, self._model.max_batch)
            sizes = sweep.cut(wanted)
            if sizes[-1] < wanted[-1]:
                self.lasting = False  # there may be more memory another time
                self._notes.append(
                    f"a batch of {wanted[-1]} rows needs {sweep.need.at(wanted[-1]) >> 20} MB of "
                    f"the device's memory, of which there are {sweep.limit >> 20} MB: "
                    f"at most {sizes[-1]} rows"
                )
            return sizes[0], sizes[-1]
        return 1, DEFAULT_BATCH if self._device == "CPU" else sweep.first_top()

    def _top(self) -> int:
        return self._model.max_batch or DEFAULT_BATCH

    def _why_so_many(self, unbatched: str) -> str:
        if unbatched:
            return "rows are run as they come"
        if self._model.ladder or self._model.max_batch:
            return "the settings say so"
        return "the default; `penstock tune` measures" if self._device == "CPU" else "not searched"

    def _searched(self, found: Findings, sweep: Sweep) -> Findings:
        """With the largest batch worth having and a ladder, where they are to be found."""
        given = bool(self._model.ladder or self._model.max_batch)
        wanted = self._thorough or (self._device == "GPU" and not given)
        if not wanted or found.unbatched:
            return dataclasses.replace(found, searched=self._thorough)
        assert self.samples is not None
        known = {int(size): time / 1e9 for size, time in found.latency.items()}
        each = known | {int(size): int(size) / rate for size, rate in found.rates.items()}
        until = self._began + _SEARCHING[self._device]

        def run(rows: list[Array]) -> object:
            return self._run(found.mode, rows)

        try:
            if self._model.ladder:
                best, why = sweep.climb(run, self._model.ladder), "the settings say so"
            else:
                most = most_rows(self.samples, self._model.max_batch, sweep.limit)
                result = sweep.search(run, each, most, lambda: time.perf_counter() > until)
                best, why = result.best, result.why
                each = {**each, **result.curve.measured}
        except Exception as error:  # what was found before that is enough to serve
            self._for_want_of_memory(error)
            self._notes.append(f"sizes were not searched: {type(error).__name__}: {error}"[:300])
            return found
        latency = known | sweep.latency
        ladder = () if self._model.ladder or len(latency) < 2 else sweep.ladder(best, known)
        rates = {str(size): size / seconds for size, seconds in sorted((each | sweep.each).items())}
        return dataclasses.replace(
            found,
            max_batch=best,
            ladder=list(ladder),
            latency={str(size): int(s * 1e9) for size, s in sorted(latency.items())},
            rates=rates,
            memory=sweep.told_memory(),
            reasons={
                **found.reasons,
                "max_batch": why,
                "ladder": "the settings say so"
                if self._model.ladder
                else "sizes that take a tenth less time than the next larger one",
            },
            searched=True,
        )

    # ── memory ─────────────────────────────────────────────────────────────────────────────────

    def _for_want_of_memory(self, error: BaseException) -> bool:
        """Whether that is why; then another start may find something else, and nothing is kept."""
        short = isinstance(error, DoesNotFit) or is_out_of_memory(error)
        self.lasting = self.lasting and not short
        return short

    def _try(self, samples: Samples) -> None:
        """Raises what the model raises on these rows, two of them or one."""
        try:
            self._run("function", samples.rows(2))
        except Exception as error:
            if not self._for_want_of_memory(error):
                raise
            self._run("function", samples.rows(1))

    # ── compile modes ──────────────────────────────────────────────────────────────────────────

    def _traced(self) -> Any:
        """The graph, traced but not run."""
        try:
            return self.modes.traced(self.modes.open)
        except Exception:
            made = next(made_up(self._graph.inputs))
            return self.modes.traced(shapes_of(made.rows(1)))

    def _run(self, mode: str, arrays: list[Array]) -> list[Array]:
        try:
            return run_in(self.modes, mode, arrays)
        except Exception as error:
            self.lasting = self.lasting and not is_about_files(error)  # there may be room again
            raise

    def _unmeasured(self, missing: str) -> Findings:
        """Nothing could be tried: take what is almost always right and fast."""
        self._notes.append(f"not measured, and rows not checked for independence: {missing}")
        mode = self._model.compile
        if mode == "auto":
            mode = "frozen"
            try:
                self.modes.run(mode, self.modes.open)
            except Exception as error:
                mode = "function"
                self._for_want_of_memory(error)
                self._notes.append(f"it cannot be frozen: {error}"[:300])
        unbatched = "" if self._model.batched else _SAYS_SO
        return self._untried(mode, unbatched)

    def _untried(self, mode: str, unbatched: str) -> Findings:
        precision = self._model.precision
        if precision == "auto":
            self._notes.append("precision: nothing could be measured, so it is float32")
            precision = "float32"
        return Findings(
            mode,
            unbatched=unbatched,
            notes=self._notes,
            measured=False,
            max_batch=self._top(),
            precision=precision,
            searched=self._thorough,
        )

    def _unbatched(self, samples: Samples, tolerance: float) -> str:
        if not self._model.batched:
            return _SAYS_SO
        if samples.different < 2:
            self._notes.append("rows not checked for independence: the sample has a single one")
            return ""

        def run(rows: list[Array]) -> list[Array]:
            return self._run("function", rows)

        for together in (4, 2):
            try:
                return dependence(run, samples, tolerance, together)
            except Exception as error:
                if not self._for_want_of_memory(error):
                    return _any_number(error)
        return "there is too little memory on the device to run two rows at a time"

    def _refuse(self, state: str, operations: Operations) -> None:
        """Modes that would not raise but answer wrongly, or abort the process."""
        mode = self._model.compile
        if mode not in ("auto", "function") and state:
            self._cannot(state)
        if mode.endswith("xla") and operations.has_strings():
            self._cannot("it computes with strings, which XLA cannot")

    def _cannot(self, why: str) -> None:
        raise ModelLoadError(
            f"model {self._model.name!r}: compile={self._model.compile!r} cannot be had: {why}"
        )


def _any_number(error: Exception) -> str:
    return f"it does not run on any number of rows ({type(error).__name__}: {error})"[:300]
