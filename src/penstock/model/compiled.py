"""A TensorFlow model as something to run: compiled, warm, at a ladder of sizes.

The first start finds out how (`examine`), later ones read that (`cache`, `stored`). The smallest
and the largest size are warm when the model is made; `warm_up` does the rest while it already
serves. Until then a batch runs at the next larger size that is warm.

Where sizes are compiled (XLA) or chosen for by the device (GPUs), batches are padded to the sizes
of the ladder. On CPUs without XLA one function runs any number of rows: 17 rows of MobileNetV2 take
28 ms, and 47 ms when they are padded to 32. There nothing is padded unless the settings name a
ladder, and the facts' ladder is empty.
"""

from __future__ import annotations

import dataclasses
import logging
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.config import DEFAULT_BATCH, Model
from penstock.errors import DeviceMemoryError, ModelError, ModelLoadError
from penstock.model import plans, stored
from penstock.model.beginning import beginning, may_begin_anew
from penstock.model.cache import Entry
from penstock.model.calls import Calls, blank, padded
from penstock.model.circumstances import circumstances, device_kind
from penstock.model.examine import Examination
from penstock.model.findings import Findings
from penstock.model.graph import Graph
from penstock.model.handover import gathered
from penstock.model.modes import Bound, Modes
from penstock.model.peak import memory_of
from penstock.model.rungs import Rungs, ladder
from penstock.model.samples import Samples, find_samples
from penstock.spec import ModelSpec, Signature, TensorSpec
from penstock.transport.tensors import Array, dtype_name, numpy_dtype

_log = logging.getLogger(__name__)
_PATIENCE = 180.0  # seconds to wait for another worker that finds out the same
_TIMED = 0.1  # seconds of measuring one size
_MUCH = 1.25  # times: more memory than was held before
_KEPT = 256


class Compiled:
    """A model that runs in the mode that suits it best. A `Runnable`."""

    def __init__(
        self,
        graph: Graph,
        model: Model,
        frozen: Bound | None = None,
        *,
        thorough: bool = False,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`thorough`: measure sizes also where a worker would not, as `tune` does."""
        self.spec = ModelSpec(graph.inputs, graph.outputs)
        self.max_batch = model.max_batch or DEFAULT_BATCH
        self.batched = model.batched
        self.cached = False
        self.changed = False
        self.device = device_kind()
        self._names = [tensor.name for tensor in graph.inputs]
        self._inputs = graph.inputs
        self._outputs = graph.outputs
        self._rungs = Rungs(model.ladder or ladder(self.max_batch))
        self._model = model
        self._frozen = frozen
        self._calls = Calls(Modes(graph, frozen), self._shorten)
        self._thorough = thorough
        self._tell = tell
        self._signatures: dict[tuple[Any, ...], Signature] = {}
        self._samples: Samples | None = None
        self._findings: Findings
        self._begun = False
        self._remembering = threading.Lock()
        self._content = graph.key  # a hash; "" where it cannot be known
        self._card = plans.own_device()
        key = circumstances(graph.key, model)
        self._shared = self._entry = Entry(key)  # with all cards of a name
        self._own = Entry({**key, "card": self._card} if key else {})  # where more has not fit
        if not self._remembered(graph):
            with self._shared.alone(_PATIENCE):
                if not self._remembered(graph):
                    self._found_out(graph)
        self._calls.modes.settle(self._calls.mode)

    # ── run ────────────────────────────────────────────────────────────────────────────────────

    def __call__(self, inputs: Any, rows: int) -> tuple[Signature, list[Array]]:
        """Run a batch; one that is not of a size of the ladder is padded first."""
        arrays = [inputs[name] for name in self._names] if isinstance(inputs, dict) else [inputs]
        if rows == 0:
            return self._nothing(arrays)
        if rows > self._rungs.most:
            raise DeviceMemoryError(
                f"a batch of {rows} rows: the device has memory for {self._rungs.most}"
            )
        size = self.padded(rows)
        if size != rows:
            arrays = [padded(array, size) for array in arrays]
        outputs = self._calls(arrays)
        for output in outputs:
            if output.ndim == 0 or len(output) != size:
                got = "a scalar" if output.ndim == 0 else f"{len(output)}"
                raise ModelError(f"expected {size} rows, as many as came in, got {got}")
        if size != rows:
            outputs = [output[:rows] for output in outputs]
        return self._signature(outputs), outputs

    def padded(self, rows: int) -> int:
        """The next size that is warm; the rows themselves where any size can be run."""
        return self._rungs.padded(rows)

    def _shorten(self, size: int) -> None:
        """A batch of this size did not fit into the device's memory: from now on only smaller ones.

        The batch itself is taken apart by whoever runs it.
        """
        self._rungs.shorten(size)
        self.changed = True
        _log.warning(
            "out of memory at a batch of %d rows: at most %d from now on", size, self._rungs.most
        )
        if self._begun:
            self._remember_cut()

    def _remember_cut(self) -> None:
        """What has not fit here need not be tried again by the next start, on this card."""
        limit = memory_of(self.device).limit()
        with self._remembering:
            self._findings = self._findings.cut(min(self.max_batch, self._rungs.most), limit)
            self._write_cut()

    def _write_cut(self) -> None:
        self._entry = self._own
        self._entry.write(self._findings.to_json())
        self._note()

    def _signature(self, outputs: list[Array]) -> Signature:
        kind = tuple((output.dtype, output.shape[1:]) for output in outputs)
        known = self._signatures.get(kind)
        if known is None:
            if len(outputs) != len(self._outputs):
                raise ModelError(f"expected {len(self._outputs)} outputs, got {len(outputs)}")
            known = tuple(
                TensorSpec(dtype_name(output.dtype), output.shape[1:], tensor.name)
                for output, tensor in zip(outputs, self._outputs, strict=True)
            )
            self.spec.check_outputs(known)
            if len(self._signatures) >= _KEPT:
                self._signatures.clear()
            self._signatures[kind] = known
        return known

    def _nothing(self, arrays: list[Array]) -> tuple[Signature, list[Array]]:
        """No rows: nothing is run, unless only a run can tell the outputs' sizes."""
        signature = self._outputs
        if any(None in tensor.shape for tensor in signature):
            if self._rungs.warm:
                arrays = [blank(array, self._rungs.warm[0]) for array in arrays]
            signature = self._signature(self._calls(arrays))
        return signature, [
            np.empty((0, *tensor.sizes), numpy_dtype(tensor.dtype)) for tensor in signature
        ]

    # ── get ready ──────────────────────────────────────────────────────────────────────────────

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
            self._shared.write(findings.to_json())
            self._write_cut()
        else:
            self._shared.write(self._findings.to_json())

    def _begin(self, findings: Findings, samples: Samples | None) -> None:
        """Decide on sizes, and warm the smallest and the largest."""
        self._findings = findings
        self._begun = False
        self.batched = not findings.unbatched
        limit = memory_of(self.device).limit()  # perhaps less than when this was found out
        sizes = beginning(findings, self._model, self._inputs, limit)
        self._rungs = Rungs(sizes)
        planned = self.max_batch = sizes[-1]
        smallest = self._rungs.sizes[0] if self.batched else 1
        if samples is None and findings.measured:
            samples, _ = find_samples(
                self._inputs,
                self._model.sample,
                lambda made: self._calls(made.rows(smallest)),
            )
            if samples is None:
                raise ModelLoadError(f"it does not run any more in the mode {findings.mode}")
        if samples is not None:
            samples.place = gathered
        self._samples = samples
        latency = dict(findings.latency)
        warm = {smallest}
        if samples is not None:
            latency.setdefault(str(smallest), self._first_time(samples, smallest, latency))
            warm.add(self._warm_largest(samples, latency) if self.batched else smallest)
        if self.device == "GPU" and self.batched:
            self._rungs.most = self.max_batch  # a card beside this one may have room for more
        if self._pads():
            self._rungs.warm = sorted(warm) if samples is not None else list(self._rungs.sizes)
        if self.max_batch < planned:
            findings = findings.cut(self.max_batch, limit)
        self._findings = dataclasses.replace(findings, latency=latency)
        self._begun = True

    def _warm_largest(self, samples: Samples, latency: dict[str, int]) -> int:
        """Warm the largest size that fits; the ladder ends there.

        What a failure leaves behind only the process's end gives back: then it is remembered for
        the next one that this size does not fit.
        """
        memory = memory_of(self.device)
        while True:
            size = self.max_batch = self._rungs.sizes[-1]
            held = memory.held()
            try:
                latency.setdefault(str(size), self._first_time(samples, size, latency))
                return size
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

    def _first_time(self, samples: Samples, size: int, latency: dict[str, int]) -> int:
        return self._time(samples, size, once=str(size) in latency)

    def _pads(self) -> bool:
        if not self.batched:
            return False
        by_size = self._calls.mode.endswith("xla") or bool(self._calls.modes.needs_sizes)
        return by_size or self.device != "CPU" or bool(self._model.ladder)

    def warm_up(self) -> bool:
        """The sizes in between; then the frozen graph is kept for the next start."""
        changed = self._warm_rest()
        self.keep()
        return changed

    def keep(self) -> None:
        """Keep the frozen graph for the next start, if there is one, and what memory it needs."""
        if not self._entry.kept:
            return
        frozen = self._calls.modes.frozen()
        if frozen is not None:
            stored.keep(self._shared, self._model, self._inputs, self._outputs, frozen)
        self._note()

    def _note(self) -> None:
        if self._entry.kept and self._findings.memory:
            plans.note(self._model, self._card, self._entry.path)

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
                time_ns = self._time(self._samples, size, once=str(size) in latency)
            except Exception as error:
                _log.warning("a batch of %d could not be warmed up: %s", size, error)
                continue
            latency.setdefault(str(size), time_ns)
            rungs.warmed(size)
            changed = True
        with self._remembering:
            self._findings = dataclasses.replace(self._findings, latency=latency)
            if changed:
                self._entry.write(self._findings.to_json())
        return changed

    def _time(self, samples: Samples, size: int, once: bool = False) -> int:
        """Nanoseconds that a batch takes, hand-over included; the first run does not count."""
        arrays = samples.rows(size)
        began = time.perf_counter()
        self._calls(arrays)
        _log.info("the first batch of %d took %.1f s", size, time.perf_counter() - began)
        self._calls.find_way_out(arrays)
        if once:
            return 0
        times: list[int] = []
        until = time.perf_counter() + _TIMED
        while len(times) < 3 or (time.perf_counter() < until and len(times) < 50):
            began = time.perf_counter_ns()
            self._calls(arrays)
            times.append(time.perf_counter_ns() - began)
        return int(statistics.median(times))

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
            "max_batch": min(self.max_batch, self._rungs.most),
            "rungs": list(self._rungs.sizes) if self._pads() else [],
            "rates": findings.rates,
            "memory": findings.memory,
            "precision": findings.precision,
            "drift": findings.drift,
            "reasons": findings.reasons,
        }
