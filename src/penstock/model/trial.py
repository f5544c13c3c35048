"""Trying a model in other precisions, in the compile mode that was chosen: time, and drift.

The reference is the float32 model, uncompiled, on the rows that the model is tried with. `rounding`
decides what to make of the figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from penstock.model import pace, rounding
from penstock.model.drift import Drift, drift_of
from penstock.model.graph import Graph
from penstock.model.handover import to_array, to_tensor
from penstock.model.modes import Modes, shapes_of
from penstock.model.precision import refuse
from penstock.model.rounding import Tried
from penstock.model.samples import Samples
from penstock.model.shortage import is_out_of_memory
from penstock.transport.tensors import Array

_NOTHING_LEFT = 1.0  # of drift on average: Keras quantizes some layers wrongly (TimeDistributed)


def run_in(modes: Modes, mode: str, arrays: list[Array]) -> list[Array]:
    """What a graph answers in a mode."""
    run = modes.run(mode, shapes_of(arrays))
    return [to_array(tensor) for tensor in run([to_tensor(array) for array in arrays])]


class Chosen(NamedTuple):
    """A precision, why, all that were tried, and the model in it where it is not float32."""

    precision: str
    why: str
    tried: dict[str, Tried]
    short: bool = False  # whether one was not tried for want of memory
    graph: Graph | None = None
    modes: Modes | None = None


class Trial:
    """Of one model, at one size. `own` is its graph as it was saved."""

    def __init__(self, own: Graph, mode: str, samples: Samples, size: int, device: str) -> None:
        self._own = own
        self._mode = mode
        self._size = size
        self._rows = samples.rows(size)
        self._in_flight = device == "GPU"
        self._exact = own.at("float32")
        self._count = min(samples.different, size)
        self._reference = self._plainly(samples.rows(self._count))

    def named(self, precision: str, modes: Modes, what: str) -> Chosen:
        """The precision that the settings name. Raises why it should not be had."""
        tried = self._tried(modes)
        if tried.drift.largest == math.inf:
            why = f"it gives {tried.drift}; mixed_bfloat16 has the range of float32"
            raise refuse(precision, what, why)
        if precision == "int8" and tried.drift.mean > _NOTHING_LEFT:
            raise refuse(
                precision, what, f"quantized by Keras, it answers otherwise: {tried.drift}"
            )
        if precision == "int8":
            exact = self._seconds(Modes(self._exact))
            if tried.seconds >= exact:
                raise refuse(
                    precision,
                    what,
                    f"it gains nothing: {tried.seconds * 1e3:.3g} ms for a batch of {self._size}, "
                    f"where float32 takes {exact * 1e3:.3g} ms",
                )
        return Chosen(precision, f"the settings say so; {tried.drift}", {precision: tried})

    def best(
        self, exact: Modes, tolerance: float, tell: Callable[[str], None], notes: list[str]
    ) -> Chosen:
        """The fastest that is close enough; `exact` is the model in float32."""
        seconds = self._seconds(exact)
        tried: dict[str, Tried] = {}
        made: dict[str, tuple[Graph, Modes]] = {}
        short = False
        for name in rounding.AUTO:
            tell(f"precision {name} at {self._size} rows")
            try:
                graph = self._own.at(name)
                made[name] = graph, Modes(graph)
                tried[name] = self._tried(made[name][1])
            except Exception as error:
                short = short or is_out_of_memory(error)
                notes.append(f"{name} was not taken: {type(error).__name__}: {error}"[:300])
        taken, why = rounding.decide(seconds, tried, tolerance)
        return Chosen(taken, why, tried, short, *made.get(taken, (None, None)))

    def _tried(self, modes: Modes) -> Tried:
        outputs = run_in(modes, self._mode, self._rows)
        drift = self._drift(outputs)
        return Tried(self._seconds(modes), drift)

    def _drift(self, outputs: list[Array]) -> Drift:
        return drift_of([output[: self._count] for output in outputs], self._reference)

    def _seconds(self, modes: Modes) -> float:
        run_in(modes, self._mode, self._rows)
        measure = pace.as_served if self._in_flight else pace.alone
        return measure(lambda: run_in(modes, self._mode, self._rows))

    def _plainly(self, arrays: list[Array]) -> list[Array]:
        """Uncompiled; as a `tf.function` where it does not run so."""
        try:
            tensors = [to_tensor(array) for array in arrays]
            return [to_array(tensor) for tensor in self._exact.call(tensors)]
        except Exception:
            return run_in(Modes(self._exact), "function", arrays)
