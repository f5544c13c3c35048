"""The parts `crowd`, `few`, `one`, `array` and `again`: one engine, and clients of it."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from statistics import median
from typing import Any

from benchmarks.core.load import Timing
from benchmarks.core.processes import children
from benchmarks.core.systems.interface import Load
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.results import Row
from benchmarks.gpu.served import ServedNetwork
from benchmarks.models.findings import Measured, Served
from benchmarks.models.served import between
from benchmarks.models.ways import Group

_WITHIN = 300.0
_WARM_SHARE = 10


def crowd(bench: Bench) -> Iterator[Row]:
    """Many clients with many images outstanding."""
    row = _load(bench, bench.plan.crowd())
    assert row.images_per_s is not None
    yield _noted(row, bench.against_limit(row.images_per_s))


def few(bench: Bench) -> Iterator[Row]:
    """Many clients with one image outstanding."""
    yield _load(bench, bench.plan.few())


def one(bench: Bench) -> Iterator[Row]:
    """One client with one image outstanding."""
    row = _load(bench, Load(1, 1))
    bare = bench.results.bare_ms(bench.plan.precision, 1)
    assert row.p50_ms is not None
    yield _noted(row, f"{row.p50_ms / bare:.2f} × the bare call" if bare else "")


def array(bench: Bench) -> Iterator[Row]:
    """One client's `predict` on one large array."""
    plan, place = bench.plan, bench.place
    rows = plan.array_rows
    endpoint = bench.engine().endpoint
    command = ["benchmarks.gpu.array", endpoint, str(place.files), str(rows)]
    with children([command], place) as [child]:
        child.hear(time.monotonic() + _WITHIN)
        seconds = []
        for some in [rows // _WARM_SHARE, *[rows] * plan.rounds]:
            child.say({"rows": some})
            seconds.append(child.hear(time.monotonic() + _WITHIN)["seconds"])
    rates = [round(rows / each, 1) for each in seconds[1:]]
    yield Row(
        f"Penstock, predict on {rows:,} images",
        median(rates),
        note=bench.against_limit(median(rates)),
        details={"rates": rates},
    )


def again(bench: Bench) -> Iterator[Row]:
    """The start of the engine that the parts before this one had, and another start after it."""
    first = bench.engine()
    yield _started("Penstock, first start", first)
    bench.end_engine()
    second = bench.engine()
    yield _noted(
        _started("Penstock, second start", second),
        f"{first.ready_s / second.ready_s:.2f} × sooner",
    )


def _started(title: str, engine: ServedNetwork) -> Row:
    how = "from the cache" if engine.facts["cached"] else "found out"
    note = f"ready in {engine.ready_s:.1f} s ({how}), all sizes warm in {engine.warm_s:.1f} s"
    return Row(title, note=note, details=engine.summary())


class Clients(Group):
    """Client processes of an engine. `served`: what the engine did in the last load."""

    def __init__(self, bench: Bench, load: Load) -> None:
        self._engine = bench.engine()
        self.served: Served | None = None
        of_all = ["benchmarks.gpu.client", self._engine.endpoint, str(bench.place.files)]
        commands = [[*of_all, str(number), str(load.outstanding)] for number in range(load.clients)]
        super().__init__(load, commands, bench.place)

    def measure(self, timing: Timing) -> Measured:
        before = self._engine.read()
        measured = super().measure(timing)
        used = measured.sample.client_cpu_us_per_row
        self.served = between(before, self._engine.read(), used)
        return measured

    def pids(self) -> list[int]:
        return [*super().pids(), *self._engine.pids()]


def _load(bench: Bench, load: Load) -> Row:
    clients = Clients(bench, load)
    rounds: list[tuple[Measured, Any]] = []
    try:
        for _ in range(bench.plan.rounds):
            rounds.append((clients.measure(bench.plan.load()), clients.served))
    finally:
        clients.close()
    samples = [measured.sample for measured, _ in rounds]
    served = rounds[-1][1]
    return Row(
        f"Penstock, {load.clients} × {load.outstanding} single images",
        round(median(sample.rows_per_s for sample in samples), 1),
        round(median(sample.p50_us for sample in samples) / 1000, 3),
        round(median(sample.p99_us for sample in samples) / 1000, 3),
        note=f"{served.mean_batch():.1f} a batch",
        details={
            "rounds": [asdict(measured) for measured, _ in rounds],
            "served": [asdict(each) for _, each in rounds],
            "engine": bench.engine().summary(),
        },
    )


def _noted(row: Row, note: str) -> Row:
    return Row(**asdict(row) | {"note": f"{note}; {row.note}" if note else row.note})
