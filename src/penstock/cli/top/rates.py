"""What an engine did between two of its answers.

Its counters only grow, so everything here is a difference, over the engine's own clock. A worker's
counters belong to its place and go on when its process is replaced; a client that is new counts
from nothing, one that has left is not listed (what it was answered is in the models' rows).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.cli.top.usage import NOT_SEEN, Usage
from penstock.devices.cards import Card
from penstock.statistics import (
    ClientStatistics,
    ModelStatistics,
    Percentiles,
    Statistics,
    WorkerStatistics,
)


@dataclass(frozen=True)
class EngineView:
    """The engine itself; rates are a second."""

    name: str
    pid: int
    state: str
    healthy: bool
    uptime: float
    deaths: int
    restarts: int
    cpu: float | None
    memory: int | None
    queued_rows: int
    requests: float
    failed: float
    refused: dict[str, float]


@dataclass(frozen=True)
class ModelView:
    """A model. `padding` is a share of the rows that were run, `closed` has shares of batches,
    `sizes` counts them; `times` are percentiles of the last seconds, in seconds. `limits` are the
    workers', by index, where they differ."""

    name: str
    mode: str
    unbatched: str
    max_batch: int
    limits: dict[int, int]
    queued_rows: int
    rows: float
    batches: float
    mean_batch: float | None
    padding: float | None
    sizes: dict[int, int]
    closed: dict[str, float]
    times: dict[str, Percentiles]


@dataclass(frozen=True)
class WorkerView:
    """A worker; `busy` is a share of the interval, `cpu` of a core, `gpu` of its card's time."""

    index: int
    pid: int
    device: str
    state: str
    starts: int
    cpu: float | None
    memory: int | None
    gpu: float | None
    gpu_memory: int | None
    busy: float
    rows: float
    inflight: int


@dataclass(frozen=True)
class ClientView:
    """A client; `bytes` is the shared memory that it holds."""

    number: int
    pid: int
    label: str
    outstanding: int
    rows: float
    bytes: int


@dataclass(frozen=True)
class View:
    """An engine during an interval. Clients are listed the busiest first."""

    seconds: float
    engine: EngineView
    models: tuple[ModelView, ...]
    workers: tuple[WorkerView, ...]
    clients: tuple[ClientView, ...]


def between(
    before: Statistics,
    after: Statistics,
    usage: Mapping[int, Usage],
    own_pid: int = 0,
    cards: Mapping[str, Card] | None = None,
) -> View:
    """What happened from one answer to the next. `own_pid`: who looks, and is not shown."""
    seconds = max(after.uptime - before.uptime, 1e-9)
    old_models = {model.name: model for model in before.models}
    old_workers = {worker.index: worker for worker in before.workers}
    old_clients = {client.number: client for client in before.clients}
    clients = [
        _client(client, old_clients.get(client.number), seconds)
        for client in after.clients
        if client.pid != own_pid
    ]
    return View(
        seconds=seconds,
        engine=_engine(before, after, usage.get(after.pid, NOT_SEEN), seconds),
        models=tuple(
            _model(model, old_models.get(model.name, model), seconds) for model in after.models
        ),
        workers=tuple(
            _worker(
                worker,
                old_workers.get(worker.index, worker),
                usage,
                (cards or {}).get(worker.device),
                seconds,
            )
            for worker in after.workers
        ),
        clients=tuple(sorted(clients, key=lambda c: (-c.rows, -c.outstanding, -c.bytes, c.number))),
    )


def _engine(before: Statistics, after: Statistics, usage: Usage, seconds: float) -> EngineView:
    old, new = before.requests, after.requests
    return EngineView(
        name=after.name,
        pid=after.pid,
        state=after.state,
        healthy=after.healthy,
        uptime=after.uptime,
        deaths=after.deaths,
        restarts=after.restarts,
        cpu=usage.cpu,
        memory=usage.memory,
        queued_rows=new.queued_rows,
        requests=(new.admitted - old.admitted) / seconds,
        failed=(new.failed + new.partial - old.failed - old.partial) / seconds,
        refused={
            reason: count / seconds for reason, count in _grown(old.refused, new.refused).items()
        },
    )


def _model(new: ModelStatistics, old: ModelStatistics, seconds: float) -> ModelView:
    sizes = _grown(old.sizes, new.sizes)
    closed = _grown(old.closed, new.closed)
    sent, rows, padding = sum(sizes.values()), new.rows - old.rows, new.padding - old.padding
    return ModelView(
        name=new.name,
        mode=str(new.facts.get("mode", "")),
        unbatched="" if new.batched else str(new.facts.get("unbatched") or "its settings say so"),
        max_batch=new.max_batch,
        limits=new.limits if len(set(new.limits.values())) > 1 else {},
        queued_rows=new.queued_rows,
        rows=rows / seconds,
        batches=(new.batches - old.batches) / seconds,
        mean_batch=sum(size * count for size, count in sizes.items()) / sent if sent else None,
        padding=padding / (rows + padding) if rows + padding else None,
        sizes=sizes,
        closed={
            reason: count / sum(closed.values())
            for reason, count in sorted(closed.items(), key=lambda item: -item[1])
        },
        times=new.times,
    )


def _worker(
    new: WorkerStatistics,
    old: WorkerStatistics,
    usage: Mapping[int, Usage],
    card: Card | None,
    seconds: float,
) -> WorkerView:
    used = usage.get(new.pid, NOT_SEEN)
    stuck = new.batches == old.batches and bool(new.inflight and old.inflight)  # in one batch
    return WorkerView(
        index=new.index,
        pid=new.pid,
        device=new.device,
        state=new.state if new.warm or new.state != "ready" else "warming up",
        starts=new.starts,
        cpu=used.cpu,
        memory=used.memory,
        gpu=card.busy if card else None,
        gpu_memory=dict(card.processes).get(new.pid) if card else None,
        busy=min((new.busy - old.busy) / seconds, 1.0) if not stuck else 1.0,
        rows=(new.rows - old.rows) / seconds,
        inflight=new.inflight,
    )


def _client(new: ClientStatistics, old: ClientStatistics | None, seconds: float) -> ClientView:
    return ClientView(
        number=new.number,
        pid=new.pid,
        label=new.label,
        outstanding=new.outstanding,
        rows=(new.rows - (old.rows if old else 0)) / seconds,
        bytes=new.bytes,
    )


def _grown(old: Mapping[Any, int], new: Mapping[Any, int]) -> dict[Any, int]:
    """What was counted meanwhile."""
    return {key: count - old.get(key, 0) for key, count in new.items() if count > old.get(key, 0)}
