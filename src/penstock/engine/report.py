"""The statistics that the engine tells: plain numbers, as `penstock.statistics` names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.engine.workers import WorkerState

if TYPE_CHECKING:
    from penstock.engine.core import Core

_STATES = ("loading", "ready", "failed", "closing")


def report(core: Core, now: int, started: int) -> dict[str, Any]:
    """A snapshot of everything that is counted."""
    return {
        "name": core.config.name,
        "pid": core.pid,
        "state": _STATES[core.state[0]],
        "healthy": all(worker.state is WorkerState.READY for worker in core.workers),
        "uptime": (now - started) / 1e9,
        "requests": {
            "admitted": core.admitted,
            "queued": core.batcher.jobs,
            "queued_rows": core.batcher.rows,
            "done": core.answers.ended["done"],
            "partial": core.answers.ended["partial"],
            "failed": core.answers.ended["failed"],
            "cancelled": core.answers.ended["cancelled"],
            "refused": dict(core.answers.refused),
        },
        "batches": {
            "count": sum(core.batch_sizes.values()),
            "rows": core.rows_done,
            "sizes": {str(size): count for size, count in sorted(core.batch_sizes.items())},
        },
        "deaths": core.health.deaths,
        "restarts": core.health.restarts,
        "models": [
            {"name": card.name, "max_batch": card.max_batch, "batched": card.batched}
            for card in core.cards.values()
        ],
        "workers": [
            {
                "index": worker.index,
                "pid": worker.pid,
                "state": worker.state.value,
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
