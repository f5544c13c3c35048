"""Finding out all there is to know of a model before it serves: the first start does this.

In this order: whether it keeps state (`operations`; if so it is not run before it serves), rows to
try it with (`samples`), whether its rows are independent (`independence`), which compile mode is
right and fast (`choice`). The `Findings` are remembered (`cache`), so that later starts have only
to build what was chosen.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.config import COMPILE_MODES, Model
from penstock.errors import ModelLoadError
from penstock.model.agreement import COARSE_TOLERANCE, TOLERANCE
from penstock.model.cache import Entry
from penstock.model.choice import Choice, Chooser, Told
from penstock.model.graph import Graph
from penstock.model.handover import to_array, to_tensor
from penstock.model.independence import dependence
from penstock.model.modes import Modes, shapes_of
from penstock.model.operations import Operations
from penstock.model.samples import Samples, find_samples, made_up
from penstock.transport.tensors import Array

_TRY_ORDER = ("function", "frozen", "frozen-xla", "xla")
_BUDGET = {"CPU": 20.0, "GPU": 120.0}  # seconds; XLA compiles ResNet-50 for a GPU in 5 to 10
_SAYS_SO = "the settings say so (batched=False)"


@dataclass(frozen=True)
class Findings:
    """What was found out about a model on one device."""

    mode: str
    modes: dict[str, Told] = field(default_factory=dict)
    latency: dict[str, int] = field(default_factory=dict)  # nanoseconds by size
    unbatched: str = ""
    notes: list[str] = field(default_factory=list)
    measured: bool = True  # whether there are rows to try it with

    def to_json(self) -> dict[str, Any]:
        """As the cache keeps it."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any] | None) -> Findings | None:
        """From the cache; `None` for what is none."""
        try:
            findings = Findings(**data) if data is not None else None
        except TypeError:
            return None
        if findings is None or findings.mode not in COMPILE_MODES:
            return None
        return findings


class Examination:
    """Of one model, on one device."""

    def __init__(
        self, graph: Graph, modes: Modes, model: Model, sizes: Sequence[int], device: str
    ) -> None:
        self._graph = graph
        self._modes = modes
        self._model = model
        self._sizes = sizes
        self._device = device
        self._notes: list[str] = []
        self.samples: Samples | None = None
        self.lasting = True  # whether another start would find the same

    def findings(self, entry: Entry) -> Findings:
        """Find out. Raises `ModelLoadError` when the mode that the settings want is not to be had.

        The entry is only where deadly modes are marked.
        """
        operations = Operations(self._traced())
        state = self._graph.stateful or operations.hidden_state()
        self._refuse(state, operations)
        if state:
            self._notes.append("not tried before it serves, because that would change its state")
            return Findings("function", {}, {}, state, self._notes, measured=False)
        samples, missing = find_samples(
            self._graph.inputs, self._model.sample, lambda made: self._run("function", made.rows(2))
        )
        if samples is None:
            return self._unmeasured(missing)
        self.samples = samples
        tolerance = self._model.tolerance or (
            COARSE_TOLERANCE
            if operations.has_half_precision() or self._device == "GPU"
            else TOLERANCE
        )
        unbatched = self._unbatched(samples, tolerance)
        sizes = (1,) if unbatched else (self._sizes[0], self._sizes[-1])
        candidates = self._candidates(bool(unbatched), operations, entry)
        choice = self._choose(candidates, samples, sizes, tolerance, entry)
        mode = choice.mode
        if not mode:
            if self._model.compile != "auto":
                self._cannot(str(choice.modes[self._model.compile]))
            mode = "function"
            self._notes.append("no mode's answers agree with the plain model's")
        if mode.endswith("xla") and operations.looks_up():
            self._notes.append("with XLA, an index outside of a table is not an error")
        measured = choice.modes.get(mode)
        latency = dict(measured) if isinstance(measured, dict) else {}
        return Findings(mode, choice.modes, latency, unbatched, self._notes)

    def _traced(self) -> Any:
        """The graph, traced but not run."""
        try:
            return self._modes.traced(self._modes.open)
        except Exception:
            made = next(made_up(self._graph.inputs))
            return self._modes.traced(shapes_of(made.rows(1)))

    def _run(self, mode: str, arrays: list[Array]) -> list[Array]:
        run = self._modes.run(mode, shapes_of(arrays))
        return [to_array(tensor) for tensor in run([to_tensor(array) for array in arrays])]

    def _plainly(self, arrays: list[Array]) -> list[Array]:
        """The plain model, not compiled at all."""
        tensors = [to_tensor(array) for array in arrays]
        return [to_array(tensor) for tensor in self._graph.call(tensors)]

    def _unmeasured(self, missing: str) -> Findings:
        """Nothing could be tried: take what is almost always right and fast."""
        self._notes.append(f"not measured, and rows not checked for independence: {missing}")
        mode = self._model.compile
        if mode == "auto":
            mode = "frozen"
            try:
                self._modes.run(mode, self._modes.open)
            except Exception as error:
                mode = "function"
                self._notes.append(f"it cannot be frozen: {error}"[:300])
        unbatched = "" if self._model.batched else _SAYS_SO
        return Findings(mode, {}, {}, unbatched, self._notes, measured=False)

    def _unbatched(self, samples: Samples, tolerance: float) -> str:
        if not self._model.batched:
            return _SAYS_SO
        if samples.different < 2:
            self._notes.append("rows not checked for independence: the sample has a single one")
            return ""
        try:
            return dependence(lambda rows: self._run("function", rows), samples, tolerance)
        except Exception as error:
            return f"it does not run on any number of rows ({type(error).__name__}: {error})"[:300]

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

    def _candidates(self, unbatched: bool, operations: Operations, entry: Entry) -> tuple[str, ...]:
        if self._model.compile != "auto":
            return (self._model.compile,)
        is_open = any(None in tensor.shape for tensor in self._graph.inputs)
        if unbatched or is_open:
            self._notes.append("XLA was not tried: it would compile for every new size")
        elif operations.has_strings():
            self._notes.append("XLA was not tried: it knows no strings")
        elif operations.has_checks():
            self._notes.append("XLA was not tried: it would drop the model's own checks (Assert)")
        else:
            deadly = [mode for mode in _TRY_ORDER if entry.deadly(mode)]
            self.lasting = not deadly
            self._notes += [f"{mode} was not tried: workers died of it" for mode in deadly]
            return tuple(mode for mode in _TRY_ORDER if mode not in deadly)
        return "function", "frozen"

    def _choose(
        self,
        candidates: Sequence[str],
        samples: Samples,
        sizes: Sequence[int],
        tolerance: float,
        entry: Entry,
    ) -> Choice:
        seen: set[tuple[str, int]] = set()

        def run(mode: str, arrays: list[Array]) -> list[Array]:
            first = (mode, len(arrays[0]))
            if not mode.endswith("xla") or first in seen:
                return self._run(mode, arrays)
            seen.add(first)
            with entry.trying(mode):
                return self._run(mode, arrays)

        budget = _BUDGET[self._device] if self._model.compile == "auto" else math.inf
        rest = (samples, sizes, tolerance, budget, time.perf_counter)
        try:
            chooser = Chooser(run, self._plainly, *rest)
        except Exception as error:
            self._notes.append(f"compared with tf.function: uncompiled, it raises {error}"[:300])
            chooser = Chooser(run, lambda arrays: self._run("function", arrays), *rest)
        return chooser.choose(candidates)
