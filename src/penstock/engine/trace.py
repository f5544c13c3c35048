"""What happened to every request, written down while somebody wants to know (`penstock trace`).

Only in memory, only while whoever asked for it is there, and only so many requests: those that do
not fit are counted and left out. One record a batch, with its requests; `take` hands them over as
plain data, a piece at a time, since only so much may wait for a client.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.engine.core import Core
    from penstock.engine.workers import Batch
    from penstock.scheduling.queue import Job
    from penstock.transport.messages import Ran

_MOST_REQUESTS = 200_000
_AT_ONCE = 5_000  # requests in a piece of the answer


class Trace:
    """The batches that ended while the trace was on."""

    def __init__(self) -> None:
        self.on = False
        self._clear(0, 0)

    def start(self, client: int, now: int) -> None:
        """Begin anew, for this client."""
        self._clear(client, now)
        self.on = True

    def gone(self, client: int) -> None:
        """A client has gone: if it was this one's, nobody will take the trace."""
        if self._client == client:
            self.on = False
            self._clear(0, 0)

    def _clear(self, client: int, now: int) -> None:
        self._client = client
        self._since = self._until = now
        self._left_out = 0
        self._requests = 0
        self._batches: deque[dict[str, Any]] = deque()

    def ran(self, worker: int, batch: Batch, record: Ran, began: int, now: int) -> None:
        """A batch came back."""
        requests = [
            (job.owner.client.number, number, job.rows // job.requests, job.owner.admitted)
            for job in batch.jobs
            for number in _numbers(job)
        ]
        self._requests += len(requests)
        if self._requests > _MOST_REQUESTS:
            self._left_out += len(requests)
            return
        self._batches.append(
            {
                "batch": batch.number,
                "worker": worker,
                "model": batch.lane.model,
                "rows": batch.rows,
                "size": record.size,
                "closed": batch.closed.value,
                "sent": batch.sent,
                "began": began,
                "gather": record.gather_ns,
                "run": record.run_ns,
                "scatter": record.scatter_ns,
                "ended": now,
                "requests": requests,
            }
        )

    def take(self, core: Core, now: int) -> dict[str, Any]:
        """The next piece of what was written down; the trace is over. `more`: there is another."""
        if self.on:
            self.on = False
            self._until = now
        batches: list[dict[str, Any]] = []
        requests = 0
        while self._batches and requests < _AT_ONCE:
            batches.append(self._batches.popleft())
            requests += len(batches[-1]["requests"])
        data = {
            "since": self._since,
            "until": self._until,
            "left_out": self._left_out,
            "more": bool(self._batches),
            "models": [card.name for card in core.cards.values()],
            "clients": {
                str(client.number): {"pid": client.pid, "label": client.label}
                for client in core.clients.values()
            },
            "workers": [{"index": w.index, "pid": w.pid} for w in core.workers],
            "batches": batches,
        }
        if not self._batches:
            self._clear(0, 0)
        return data


def _numbers(job: Job) -> range:
    """Of the requests that a job's rows are."""
    numbers: range = job.owner.numbers
    return numbers[job.start : job.start + job.rows] if job.owner.series else numbers
