"""The part `limit`: every mode, every size of the best one, and the modes in other precisions."""

import time
from collections.abc import Iterator
from typing import Any

from benchmarks.core.processes import Child, ChildFailed
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.results import Row

_WITHIN = 240.0


def run(bench: Bench) -> Iterator[Row]:
    """One row a cell."""
    plan = bench.plan
    sweep = _Sweep(bench)
    try:
        modes = [(mode, size) for mode in plan.modes for size in plan.mode_sizes]
        tried = []
        for mode, size in modes:
            row = sweep.measure(plan.precision, mode, size)
            tried.append(row)
            yield row
        best = max(tried, key=lambda row: row.images_per_s or 0.0).details["mode"]
        for size in plan.sizes:
            if (best, size) not in modes:
                yield sweep.measure(plan.precision, best, size)
        for precision in plan.also:
            if precision != plan.precision:
                for mode, size in modes:
                    yield sweep.measure(precision, mode, size)
    finally:
        sweep.end()


def cell(bench: Bench, mode: str, size: int) -> Row:
    """One more, in a process of its own."""
    sweep = _Sweep(bench)
    try:
        return sweep.measure(bench.plan.precision, mode, size)
    finally:
        sweep.end()


class _Sweep:
    """One process for all cells; another one when that ends."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._child: Child | None = None

    def measure(self, precision: str, mode: str, size: int) -> Row:
        cell: dict[str, Any] = {"precision": precision, "mode": mode, "size": size}
        plan = self._bench.plan
        title = f"{precision} {mode}, batch {size}"
        try:
            child = self._process()
            child.say(cell | {"seconds": plan.cell_seconds, "calls": plan.calls})
            found = child.hear(time.monotonic() + _WITHIN)
        except ChildFailed as failure:
            self.end()
            found = {"error": str(failure).splitlines()[-1][:300]}
        if "error" in found:
            return Row(title, note=found["error"], details=cell)
        return Row(
            title,
            found["images_per_s"],
            found["p50_ms"],
            found["p99_ms"],
            note=f"compiled in {found['built_s']:.1f} s",
            details=cell | found,
        )

    def end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.dismiss()
            child.close(time.monotonic() + 1.0)

    def _process(self) -> Child:
        if self._child is None:
            place = self._bench.place
            self._child = Child(["benchmarks.gpu.limit", str(place.files)], place)
            self._child.hear(time.monotonic() + _WITHIN)
        return self._child
