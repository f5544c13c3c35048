"""How a compiled model gets ready: what is known of it, and which of its sizes are warm.

The first start finds out how it runs best (`examine`), later ones read that (`cache`):

    start     it is remembered, else found out; the smallest and the largest size are run
    warm_up   beside the one that serves already: the sizes in between, then `keep`
    keep      for the next start: the frozen graph (`stored`), and where the findings are (`plans`)
    cut       a batch did not fit: the next start need not try that size again

Findings are for all cards of a name. Where more has not fit, that is written down for the card that
it did not fit on, and read first.
"""

from __future__ import annotations

import dataclasses
import logging
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from penstock.config import Model
from penstock.errors import DeviceMemoryError, ModelLoadError
from penstock.model import plans, stored
from penstock.model.beginning import beginning, may_begin_anew
from penstock.model.cache import Entry
from penstock.model.calls import Calls
from penstock.model.circumstances import circumstances, device_kind
from penstock.model.examine import Examination
from penstock.model.findings import Findings
from penstock.model.graph import Graph
from penstock.model.handover import gathered
from penstock.model.modes import Bound, Modes
from penstock.model.peak import memory_of
from penstock.model.rungs import Rungs
from penstock.model.samples import Samples, find_samples

_log = logging.getLogger(__name__)
_PATIENCE = 180.0  # seconds to wait for another worker that finds out the same
_TIMED = 0.1  # seconds of measuring one size
_MUCH = 1.25  # times: more memory than was held before


class Preparation:
    """Of one model: its calls are told their mode, its rungs their sizes. Both are its owner's."""

    def __init__(
        self,
        graph: Graph,
        model: Model,
        calls: Calls,
        rungs: Rungs,
        frozen: Bound | None,
        *,
        thorough: bool,
        tell: Callable[[str], None],
    ) -> None:
        self.device = device_kind()
        self.cached = False
        self._inputs = graph.inputs
        self._outputs = graph.outputs
        self._content = graph.key  # a hash; "" where it cannot be known
        self._model = model
        self._calls = calls
        self._rungs = rungs
        self._frozen = frozen
        self._thorough = thorough
        self._tell = tell
        self._findings: Findings
        self._samples: Samples | None = None
        self._begun = False  # until then, what does not fit was only tried
        self._remembering = threading.Lock()
        self._card = plans.own_device()
        if thorough and self.device == "CPU" and self._card != "cpu":
            raise ModelLoadError(
                "nothing can be measured on the GPU: TensorFlow sees none (penstock doctor --deep "
                "says why); device='cpu' measures on the CPU"
            )
        key = circumstances(graph.key, model)
        self._shared = self._entry = Entry(key)  # with all cards of a name
        self._own = Entry({**key, "card": self._card} if key else {})  # where more has not fit

    @property
    def batched(self) -> bool:
        """Whether rows of several callers may be run together."""
        return not self._findings.unbatched

    @property
    def remembered_at(self) -> str:
        """The file that the findings are kept in; "" where they are not."""
        return str(self._entry.path) if self._entry.kept else ""

    def facts(self) -> dict[str, Any]:
        """How it is compiled and how long sizes take (nanoseconds)."""
        findings = self._findings
        return {
            "mode": findings.mode,
            "content": self._content,
            "modes": findings.modes,
            "ladder": list(self._rungs.warm),
            "latency": dict(sorted(findings.latency.items(), key=lambda item: int(item[0]))),
            "unbatched": findings.unbatched,
            "notes": findings.notes,
            "cached": self.cached,
            "device": self.device,
            "max_batch": self._rungs.largest,
            "rungs": list(self._rungs.sizes) if self._pads() else [],
            "rates": findings.rates,
            "memory": findings.memory,
            "precision": findings.precision,
            "drift": findings.drift,
            "reasons": findings.reasons,
        }

    # ── start ──────────────────────────────────────────────────────────────────────────────────

    def start(self, graph: Graph) -> None:
        """Get ready to serve. The graph is not held: what its model has may be let go of."""
        if not self._remembered(graph):
            with self._shared.alone(_PATIENCE):
                if not self._remembered(graph):
                    self._found_out(graph)
        self._calls.modes.settle(self._calls.mode)

    def _remembered(self, graph: Graph) -> bool:
        """Whether an earlier start has found out everything, and it can still be had."""
        return any(self._taken_from(entry, graph) for entry in (self._own, self._shared))

    def _taken_from(self, entry: Entry, graph: Graph) -> bool:
        findings = Findings.from_json(entry.read())
        if findings is None or (self._thorough and not findings.searched):
            return False
        if findings.outgrown(memory_of(self.device).limit()):
            return False
        try:
            modes = self._calls.modes
            if findings.precision and self._frozen is None:
                modes = Modes(graph.at(findings.precision))
            self._calls.take(modes, findings.mode)
            self._begin(findings, None)
        except DeviceMemoryError:
            raise
        except Exception as error:
            _log.info("cache: %s is made anew: %s", entry.path, error)
            return False
        self.cached, self._entry = True, entry
        if self._findings.max_batch < findings.max_batch:
            self._write_cut()
        return True

    def _found_out(self, graph: Graph) -> None:
        examination = Examination(
            graph,
            Modes(graph, self._frozen),
            self._model,
            self.device,
            thorough=self._thorough,
            tell=self._tell,
        )
        findings = examination.findings(self._shared)
        self._calls.take(examination.modes, findings.mode)
        if not examination.lasting:
            self._shared = self._own = Entry({})
        self._own.forget()
        self._shared.write(findings.to_json())  # should what follows fail, it is known all the same
        self._begin(findings, examination.samples)
        self._entry = self._shared
        if self._findings.max_batch < findings.max_batch:
            self._write_cut()
        else:
            self._shared.write(self._findings.to_json())

    def _begin(self, findings: Findings, samples: Samples | None) -> None:
        """Decide on sizes, and warm the smallest and the largest."""
        self._findings = findings
        self._begun = False
        rungs = self._rungs
        limit = memory_of(self.device).limit()  # perhaps less than when this was found out
        rungs.begin(beginning(findings, self._model, self._inputs, limit))
        planned = rungs.sizes[-1]
        smallest = rungs.sizes[0] if self.batched else 1
        if samples is None and findings.measured:
            samples, _ = find_samples(
                self._inputs,
                self._model.sample,
                lambda made: self._calls(made.rows(smallest)),
            )
            if samples is None:
                raise ModelLoadError(f"it does not run any more in the mode {findings.mode}")
        self._samples = samples
        latency = dict(findings.latency)
        if samples is not None:
            samples.place = gathered
            self._warm(samples, smallest, latency)
            if self.batched:
                self._warm_largest(samples, latency)
        if self.device == "GPU" and self.batched:
            rungs.most = rungs.sizes[-1]  # a card beside this one may have room for more
        if self._pads():
            ends = sorted({smallest, rungs.sizes[-1]})
            rungs.warm = ends if samples is not None else list(rungs.sizes)
        if rungs.sizes[-1] < planned:
            findings = findings.cut(rungs.sizes[-1], limit)
        self._findings = dataclasses.replace(findings, latency=latency)
        self._begun = True

    def _pads(self) -> bool:
        if not self.batched:
            return False
        by_size = self._calls.mode.endswith("xla") or bool(self._calls.modes.needs_sizes)
        return by_size or self.device != "CPU" or bool(self._model.ladder)

    # ── warm sizes ─────────────────────────────────────────────────────────────────────────────

    def warm_up(self) -> bool:
        """The sizes in between; then the frozen graph is kept for the next start."""
        changed = self._warm_rest()
        self.keep()
        return changed

    def _warm_largest(self, samples: Samples, latency: dict[str, int]) -> None:
        """Warm the largest size that fits; the ladder ends there.

        What a failure leaves behind only the process's end gives back: then it is remembered for
        the next one that this size does not fit.
        """
        memory = memory_of(self.device)
        while True:
            held = memory.held()
            try:
                self._warm(samples, self._rungs.sizes[-1], latency)
                return
            except DeviceMemoryError as error:
                short = error.with_traceback(None)  # whose frames hold the batch
                short.__context__ = None
            if len(self._rungs.sizes) == 1:
                raise short
            self._rungs.drop_largest()
            if memory.held() > _MUCH * held and self._own.kept and may_begin_anew():
                self._findings = self._findings.cut(self._rungs.sizes[-1], memory.limit())
                self._write_cut()
                raise short

    def _warm_rest(self) -> bool:
        if self._samples is None or not self.batched:
            return False
        latency = dict(self._findings.latency)
        changed = False
        rungs = self._rungs
        for size in rungs.sizes:
            if size > rungs.most:
                break
            if str(size) in latency and (size in rungs.warm or not rungs.warm):
                continue
            try:
                self._warm(self._samples, size, latency)
            except Exception as error:
                _log.warning("a batch of %d could not be warmed up: %s", size, error)
                continue
            rungs.warmed(size)
            changed = True
        with self._remembering:
            self._findings = dataclasses.replace(self._findings, latency=latency)
            if changed:
                self._entry.write(self._findings.to_json())
        return changed

    def _warm(self, samples: Samples, size: int, latency: dict[str, int]) -> None:
        """Run a batch of this size, hand-over included, and time it where nobody has.

        The first run does not count.
        """
        arrays = samples.rows(size)
        began = time.perf_counter()
        self._calls(arrays)
        _log.info("the first batch of %d took %.1f s", size, time.perf_counter() - began)
        self._calls.find_way_out(arrays)
        if str(size) not in latency:
            latency[str(size)] = self._time(arrays)

    def _time(self, arrays: list[Any]) -> int:
        """Nanoseconds that a batch takes."""
        times: list[int] = []
        until = time.perf_counter() + _TIMED
        while len(times) < 3 or (time.perf_counter() < until and len(times) < 50):
            began = time.perf_counter_ns()
            self._calls(arrays)
            times.append(time.perf_counter_ns() - began)
        return int(statistics.median(times))

    # ── keep ───────────────────────────────────────────────────────────────────────────────────

    def keep(self) -> None:
        """Keep the frozen graph for the next start, if there is one, and what memory it needs."""
        if not self._entry.kept:
            return
        frozen = self._calls.modes.frozen()
        if frozen is not None:
            stored.keep(self._shared, self._model, self._inputs, self._outputs, frozen)
        self._note()

    def cut(self) -> None:
        """What has not fit here need not be tried again by the next start, on this card."""
        if not self._begun:
            return
        limit = memory_of(self.device).limit()
        with self._remembering:
            self._findings = self._findings.cut(self._rungs.largest, limit)
            self._write_cut()

    def _write_cut(self) -> None:
        self._entry = self._own
        self._entry.write(self._findings.to_json())
        self._note()

    def _note(self) -> None:
        if self._entry.kept and self._findings.memory:
            plans.note(self._model, self._card, self._entry.path)
