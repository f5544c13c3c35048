"""The statistics that the engine tells: plain numbers, as `penstock.statistics` names them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from penstock.engine.workers import WorkerState

if TYPE_CHECKING:
    from penstock.engine.core import Core

_STATES = ("loading", "ready", "failed", "closing")


def report(core: Core, now: int, started: int) -> dict[str, Any]:
    """A snapshot of everything that is counted."""
    waiting = Counter[int]()
    for lane in core.batcher.queue.lanes():
        waiting[lane.model] += lane.rows
    return {
        "name": core.config.name,
        "pid": core.pid,
        "state": _STATES[core.state[0]],
        "healthy": all(worker.state is WorkerState.READY for worker in core.workers),
        "uptime": (now - started) / 1e9,
        "requests": {
            "admitted": core.admission.admitted,
            "queued": core.batcher.requests,
            "queued_rows": core.batcher.rows,
            "done": core.answers.ended["done"],
            "partial": core.answers.ended["partial"],
            "failed": core.answers.ended["failed"],
            "cancelled": core.answers.ended["cancelled"],
            "refused": dict(core.answers.refused),
        },
        "batches": {
            "count": sum(counters.batches for counters in core.counters),
            "rows": sum(counters.rows for counters in core.counters),
            "sizes": _sizes(core),
        },
        "deaths": core.health.deaths,
        "restarts": core.health.restarts,
        "models": [
            {
                "name": card.name,
                "max_batch": max(core.limits(number).values(), default=card.max_batch),
                "limits": core.limits(number),
                "batched": card.batched,
                "queued_rows": waiting[number],
                "facts": _facts(core, number),
                **core.counters[number].report(now),
            }
            for number, card in core.cards.items()
        ],
        "workers": [
            {
                "index": worker.index,
                "pid": worker.pid,
                "device": worker.device,
                "state": worker.state.value,
                "warm": worker.warm,
                "starts": worker.starts,
                "batches": worker.batches_done,
                "rows": worker.rows_done,
                "busy": worker.busy_ns / 1e9,
                "inflight": worker.inflight,
                "segments": len(worker.mapped),
            }
            for worker in core.workers
        ],
        "clients": [
            {
                "number": client.number,
                "pid": client.pid,
                "label": client.label,
                "outstanding": len(client.requests),
                "answered": client.answered,
                "rows": client.rows_done,
                "segments": len(client.segments),
                "bytes": client.bytes_held,
            }
            for client in core.clients.values()
        ],
    }


def _facts(core: Core, model: int) -> dict[str, Any]:
    """What the first worker that has told found out."""
    told = (worker.means[model].facts for worker in core.workers if model in worker.means)
    return next(told, {})


def _sizes(core: Core) -> dict[str, int]:
    sizes: Counter[int] = Counter()
    for counters in core.counters:
        sizes.update(counters.sizes)
    return {str(size): count for size, count in sorted(sizes.items())}
