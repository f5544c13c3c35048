"""Where the time went: a request's by stage, a worker's by what it did or waited for.

A worker's time is one of::

    busy       gathering, running or scattering
    messages   it has a batch, but news of it is on the way
    held       it has nothing, and requests wait: for others to join them, or for their turn
    starved    it has nothing, and nothing waits
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.tracing.advice import Limit, limit_of
from penstock.tracing.record import Load, Trace, TracedBatch

STAGES = ("queue", "waiting", "gather", "run", "scatter", "reply")
Interval = tuple[int, int]


@dataclass(frozen=True)
class Stage:
    """A stage of requests' time in the engine: its share of all, and seconds."""

    share: float
    mean: float
    p50: float
    p99: float


@dataclass(frozen=True)
class WorkerUse:
    """Shares of a worker's time; the first three are parts of `busy`."""

    gather: float
    run: float
    scatter: float
    busy: float
    messages: float
    held: float
    starved: float


@dataclass(frozen=True)
class ModelUse:
    """A model's batches. `busy` is its share of the workers' time, `padding` of rows that ran."""

    batches: int
    rows: int
    busy: float
    mean_batch: float
    max_batch: int
    padding: float
    closed: dict[str, float]
    unbatched: str


@dataclass(frozen=True)
class Summary:
    """A trace in figures. `total`: whole requests; `workers`: by index; `device`: their mean."""

    seconds: float
    requests: int
    left_out: int
    rows: int
    batches: int
    load: Load
    total: Stage
    stages: dict[str, Stage]
    device: WorkerUse
    workers: tuple[WorkerUse, ...]
    models: dict[str, ModelUse]
    limit: Limit


def summary_of(trace: Trace) -> Summary:
    """Count it all."""
    stages, total = _stages(trace.batches)
    workers = tuple(_workers(trace))
    models = {
        model.name: _model(
            [batch for batch in trace.batches if batch.model == model.name],
            trace.seconds * len(workers),
            model.max_batch,
            _reason(model.batched, model.facts),
        )
        for model in trace.engine.models
    }
    device = _mean(workers)
    return Summary(
        seconds=trace.seconds,
        requests=trace.requests,
        left_out=trace.left_out,
        rows=sum(batch.rows for batch in trace.batches),
        batches=len(trace.batches),
        load=trace.load,
        total=total,
        stages=stages,
        device=device,
        workers=workers,
        models=models,
        limit=limit_of(device, models, trace.load),
    )


def _reason(batched: bool, facts: dict[str, object]) -> str:
    return "" if batched else str(facts.get("unbatched") or "its settings say so")


def _stages(batches: tuple[TracedBatch, ...]) -> tuple[dict[str, Stage], Stage]:
    times: dict[str, list[int]] = {name: [] for name in STAGES}
    totals: list[int] = []
    for batch in batches:
        start, gathered, ran, scattered = batch.placed
        shared = (start - batch.sent, gathered - start, ran - gathered, scattered - ran)
        for request in batch.requests:
            parts = (batch.sent - request.admitted, *shared, batch.ended - scattered)
            for name, part in zip(STAGES, parts, strict=True):
                times[name].append(part)
            totals.append(batch.ended - request.admitted)
    whole = sum(totals)
    return {name: _stage(values, whole) for name, values in times.items()}, _stage(totals, whole)


def _stage(values: list[int], whole: int) -> Stage:
    if not values:
        return Stage(0.0, 0.0, 0.0, 0.0)
    values.sort()
    total, last = sum(values), len(values) - 1
    p50, p99 = (values[round(share * last)] / 1e9 for share in (0.5, 0.99))
    return Stage(total / whole if whole else 0.0, total / len(values) / 1e9, p50, p99)


def _model(
    batches: list[TracedBatch], available: float, max_batch: int, unbatched: str
) -> ModelUse:
    count, rows = len(batches), sum(batch.rows for batch in batches)
    busy = sum(batch.placed.scattered - batch.placed.start for batch in batches) / 1e9
    size = sum(max(batch.size, batch.rows) for batch in batches)
    closed = Counter(batch.closed for batch in batches)
    return ModelUse(
        batches=count,
        rows=rows,
        busy=busy / available if available else 0.0,
        mean_batch=rows / count if count else 0.0,
        max_batch=max_batch,
        padding=1 - rows / size if size else 0.0,
        closed={reason: number / count for reason, number in closed.most_common()},
        unbatched=unbatched,
    )


# ── the workers' time ──────────────────────────────────────────────────────────────────────────


def _workers(trace: Trace) -> Iterator[WorkerUse]:
    end = round(trace.seconds * 1e9)
    waiting = union(
        ((r.admitted, batch.sent) for batch in trace.batches for r in batch.requests), end
    )
    for worker in trace.engine.workers:
        batches = [batch for batch in trace.batches if batch.worker == worker.index]
        stages = [
            length(union(((b.placed[stage], b.placed[stage + 1]) for b in batches), end))
            for stage in range(3)
        ]
        busy = sum(stages)
        given = union(((batch.sent, batch.ended) for batch in batches), end)
        held = length(waiting) - length(common(waiting, given))
        shares = (*stages, busy, length(given) - busy, held, end - length(given) - held)
        yield WorkerUse(*(share / end if end else 0.0 for share in shares))


def _mean(workers: tuple[WorkerUse, ...]) -> WorkerUse:
    names = WorkerUse.__dataclass_fields__
    count = len(workers) or 1
    return WorkerUse(*(sum(getattr(worker, name) for worker in workers) / count for name in names))


def union(intervals: Iterable[Interval], end: int) -> list[Interval]:
    """The time that they cover from 0 to `end`, as intervals that do not touch."""
    found: list[Interval] = []
    for first, last in sorted((max(0, a), min(b, end)) for a, b in intervals):
        if first >= last:
            continue
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def common(some: list[Interval], others: list[Interval]) -> list[Interval]:
    """The time that is in both of two unions."""
    found: list[Interval] = []
    at = 0
    for first, last in some:
        while at < len(others) and others[at][1] <= first:
            at += 1
        look = at
        while look < len(others) and others[look][0] < last:
            found.append((max(first, others[look][0]), min(last, others[look][1])))
            look += 1
    return found


def length(intervals: Iterable[Interval]) -> int:
    """How long they are together."""
    return sum(last - first for first, last in intervals)
