"""The part `ways`: what people do who share nothing, at the same precision.

One process that calls `predict` with one, some and many images, and with the best compiled
function; and as many processes as `few` has clients, each with a network of its own and one image a
call.
"""

import time
from collections.abc import Iterator

from benchmarks.core.load import Timing
from benchmarks.core.processes import ChildFailed
from benchmarks.core.systems.interface import Load
from benchmarks.gpu import card
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.results import Row
from benchmarks.models.ways import Group

_BUILT_WITHIN = 240.0


def run(bench: Bench) -> Iterator[Row]:
    """One row a way; a way that fails is said to have."""
    plan = bench.plan
    best = bench.results.best_mode(plan.precision) or plan.modes[-1]
    single = [("predict", size) for size in plan.batches] + [(best, plan.batches[-1])]
    yield from _group(bench, 1, single)
    yield from _group(bench, plan.processes, [("predict", 1), ("function", 1)])


def _group(bench: Bench, processes: int, cells: list[tuple[str, int]]) -> Iterator[Row]:
    before = card.used_bytes()
    plan, files = bench.plan, str(bench.place.files)
    commands = [
        ["benchmarks.gpu.alone", files, str(number), plan.precision] for number in range(processes)
    ]
    try:
        group = Group(Load(processes, 1), commands, bench.place)
    except ChildFailed as failure:
        yield Row(f"{processes} × own model", note=_last_line(failure))
        return
    try:
        for way, size in cells:
            yield _measured(bench, group, way, size, before)
    finally:
        group.close()


def _measured(bench: Bench, group: Group, way: str, size: int, before: int | None) -> Row:
    own = f"{len(group.members)} × own " if len(group.members) > 1 else "one process: "
    called = "model.predict" if way == "predict" else f"tf.function ({way})"
    title = f"{own}{called}, {size} a call"
    try:
        for member in group.members:
            member.say({"cell": [way, size]})
        deadline = time.monotonic() + _BUILT_WITHIN
        for member in group.members:
            member.hear(deadline)
        sample = group.measure(Timing(bench.plan.warm_up / 2, bench.plan.ways_seconds)).sample
    except ChildFailed as failure:
        return Row(title, note=_last_line(failure))
    after = card.used_bytes()
    taken = None if before is None or after is None else after - before
    return Row(
        title,
        sample.rows_per_s,
        round(sample.p50_us / 1000, 3),
        round(sample.p99_us / 1000, 3),
        note="" if taken is None else f"{taken / 1e9:.1f} GB of the card",
        details={"way": way, "size": size, "processes": len(group.members), "gpu_bytes": taken},
    )


def _last_line(failure: ChildFailed) -> str:
    return str(failure).splitlines()[-1][:300]
