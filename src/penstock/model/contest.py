"""Which compile modes compete, and at which sizes. `choice` measures them.

Some modes would answer wrongly or abort the process, and are not let in; one that has killed its
process before is not, either. Where the largest size does not fit into the device's memory, a
smaller one will do to compare them: that says something of the memory, and nothing of the model, so
it is not `lasting`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from penstock.config import Model
from penstock.errors import DeviceMemoryError
from penstock.model import pace
from penstock.model.cache import Entry
from penstock.model.choice import Choice, Chooser
from penstock.model.graph import Graph
from penstock.model.handover import to_array, to_tensor
from penstock.model.operations import Operations
from penstock.model.samples import Samples
from penstock.model.shortage import is_out_of_memory
from penstock.transport.tensors import Array

_TRY_ORDER = {
    "CPU": ("function", "frozen", "frozen-xla", "xla"),
    "GPU": ("frozen", "frozen-xla", "function", "xla"),
}
_BUDGET = {"CPU": 20.0, "GPU": 45.0}  # seconds; XLA compiles ResNet-50 for a GPU in 5 to 10


class Contest:
    """Of one model, on one device. `run` runs arrays in a mode; in the entry, modes that may kill
    their process are marked."""

    def __init__(
        self,
        graph: Graph,
        model: Model,
        device: str,
        run: Callable[[str, list[Array]], list[Array]],
        entry: Entry,
    ) -> None:
        self._graph = graph
        self._model = model
        self._device = device
        self._run = run
        self._entry = entry
        self.notes: list[str] = []
        self.lasting = True  # whether another start would find the same

    def candidates(self, operations: Operations, unbatched: bool) -> tuple[str, ...]:
        """The modes to try, in this order; the only one that the settings name."""
        if self._model.compile != "auto":
            return (self._model.compile,)
        is_open = any(None in tensor.shape for tensor in self._graph.inputs)
        if unbatched or is_open:
            self.notes.append("XLA was not tried: it would compile for every new size")
        elif operations.has_strings():
            self.notes.append("XLA was not tried: it knows no strings")
        elif operations.has_checks():
            self.notes.append("XLA was not tried: it would drop the model's own checks (Assert)")
        else:
            order = _TRY_ORDER[self._device]
            deadly = [mode for mode in order if self._entry.deadly(mode)]
            self.lasting = self.lasting and not deadly
            self.notes += [f"{mode} was not tried: workers died of it" for mode in deadly]
            return tuple(mode for mode in order if mode not in deadly)
        return "function", "frozen"

    def decide(
        self,
        candidates: Sequence[str],
        samples: Samples,
        sizes: tuple[int, ...],
        tolerance: float,
    ) -> tuple[Choice, tuple[int, ...]]:
        """The best mode, and the sizes at which it is: a top that does not fit is halved.

        Raises `DeviceMemoryError` where not even the smallest size fits.
        """
        wanted = sizes[-1]
        while True:
            single = sizes[0] == sizes[-1]
            try:
                choice = self._choose_at(candidates, samples, sizes, tolerance)
                short = choice.short
            except Exception as error:
                if single or not is_out_of_memory(error):
                    raise
                choice, short = Choice("", {}), str(error)
            if short:
                self.lasting = False
            if choice.mode or not short:
                break
            if single:
                raise DeviceMemoryError(f"not even a batch of {sizes[0]} rows fits: {short}")
            sizes = (sizes[0], max(sizes[0], sizes[-1] // 2))
        if sizes[-1] < wanted:
            self.notes.append(
                f"a batch of {wanted} rows did not fit into the device's memory in any mode, "
                f"one of {sizes[-1]} did"
            )
        return choice, sizes

    def _choose_at(
        self,
        candidates: Sequence[str],
        samples: Samples,
        sizes: tuple[int, ...],
        tolerance: float,
    ) -> Choice:
        seen: set[tuple[str, int]] = set()

        def run(mode: str, arrays: list[Array]) -> list[Array]:
            first = (mode, len(arrays[0]))
            if not mode.endswith("xla") or first in seen:
                return self._run(mode, arrays)
            seen.add(first)
            with self._entry.trying(mode):
                return self._run(mode, arrays)

        budget = _BUDGET[self._device] if self._model.compile == "auto" else math.inf
        in_flight = pace.as_served if self._device == "GPU" else None
        rest = (samples, sizes, tolerance, budget, time.perf_counter, in_flight)
        try:
            chooser = Chooser(run, self._plainly, *rest)
        except Exception as error:
            if is_out_of_memory(error) and sizes[0] != sizes[-1]:
                raise
            self.notes.append(f"compared with tf.function: uncompiled, it raises {error}"[:300])
            chooser = Chooser(run, lambda arrays: self._run("function", arrays), *rest)
        return chooser.choose(candidates)

    def _plainly(self, arrays: list[Array]) -> list[Array]:
        """The plain model, not compiled at all."""
        tensors = [to_tensor(array) for array in arrays]
        return [to_array(tensor) for tensor in self._graph.call(tensors)]
