"""What an engine tells of itself: a typed snapshot, from `Client.statistics()`."""

from __future__ import annotations

import json
from dataclasses import dataclass
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
class ModelStatistics:
    """A model and its limits."""

    name: str
    max_batch: int
    batched: bool


@dataclass(frozen=True)
class WorkerStatistics:
    """A worker's place: the process in it now, and what was done in it so far."""

    index: int
    pid: int
    state: str
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
            "models": tuple(ModelStatistics(**model) for model in values["models"]),
            "workers": tuple(WorkerStatistics(**worker) for worker in values["workers"]),
            "clients": tuple(ClientStatistics(**client) for client in values["clients"]),
        }
    )
