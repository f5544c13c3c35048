"""What an engine tells of itself: a typed snapshot, from `Client.statistics()`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RequestStatistics:
    """What became of requests since the engine was started, and what waits now."""

    admitted: int
    queued: int
    queued_rows: int
    done: int
    partial: int
    failed: int
    cancelled: int
    refused: dict[str, int]


@dataclass(frozen=True)
class BatchStatistics:
    """Batches sent to workers, rows that came back, and how many batches had each size."""

    count: int
    rows: int
    sizes: dict[int, int]


@dataclass(frozen=True)
class Percentiles:
    """Seconds within which half, nine tenths and 99 of 100 were done, in the last seconds."""

    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True)
class ModelStatistics:
    """A model: its limits, what waits for it, its batches and why they were closed.

    `max_batch` is the most rows that a worker can hold at a time, `limits` what each can, by its
    index: less where there is less memory, or where a batch has not fit.
    `padding` counts rows that were run only to fill a compiled size. `times` has percentiles of the
    last seconds: in the queue, from sending a batch to its return (`run`), and in all (`total`);
    and of a batch in its worker, `gather`, `model` and `scatter`.
    `facts` is what the first worker found out: how it is compiled, how long each size takes.
    """

    name: str
    max_batch: int
    batched: bool
    limits: dict[int, int] = field(default_factory=dict)
    queued_rows: int = 0
    batches: int = 0
    rows: int = 0
    padding: int = 0
    busy: float = 0.0
    sizes: dict[int, int] = field(default_factory=dict)
    closed: dict[str, int] = field(default_factory=dict)
    times: dict[str, Percentiles] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerStatistics:
    """A worker's place: the process in it now, and what was done in it so far.

    `warm`: whether every size of its models is compiled; before that it is busy with more than
    answers.
    """

    index: int
    pid: int
    device: str
    state: str
    warm: bool
    starts: int
    batches: int
    rows: int
    busy: float
    inflight: int
    segments: int


@dataclass(frozen=True)
class ClientStatistics:
    """A connected client: what it has outstanding, what it was answered, what it holds."""

    number: int
    pid: int
    label: str
    outstanding: int
    answered: int
    rows: int
    segments: int
    bytes: int


@dataclass(frozen=True)
class Statistics:
    """An engine at one moment. `healthy`: every worker is ready now."""

    name: str
    pid: int
    state: str
    healthy: bool
    uptime: float
    requests: RequestStatistics
    batches: BatchStatistics
    deaths: int
    restarts: int
    models: tuple[ModelStatistics, ...]
    workers: tuple[WorkerStatistics, ...]
    clients: tuple[ClientStatistics, ...]


def statistics_of(data: bytes) -> Statistics:
    """The snapshot that an engine sent as JSON."""
    values: dict[str, Any] = json.loads(data)
    batches = values["batches"]
    sizes = {int(size): count for size, count in batches["sizes"].items()}
    return Statistics(
        **{
            **values,
            "requests": RequestStatistics(**values["requests"]),
            "batches": BatchStatistics(batches["count"], batches["rows"], sizes),
            "models": tuple(_model(model) for model in values["models"]),
            "workers": tuple(WorkerStatistics(**worker) for worker in values["workers"]),
            "clients": tuple(ClientStatistics(**client) for client in values["clients"]),
        }
    )


def _model(values: dict[str, Any]) -> ModelStatistics:
    sizes = {int(size): count for size, count in values["sizes"].items()}
    times = {name: Percentiles(*shares) for name, shares in values["times"].items()}
    limits = {int(index): rows for index, rows in values["limits"].items()}
    return ModelStatistics(**{**values, "limits": limits, "sizes": sizes, "times": times})
