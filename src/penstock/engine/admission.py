"""Who is let into the queue, and who has to leave it because there is no time left.

A request is queued if the engine is ready, if a batch can hold it, if there is room, if workers are
left, and if one of them will be done with it before its deadline, as far as is known. Else it is
refused at once, with the first reason. Where others have filled the queue, there is still room for
a client that has less than its share of it. Of those that wait, `step` finds who will be too late
all the same: they leave with a reason, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.clients import ClientState
from penstock.engine.requests import Request
from penstock.errors import Kind
from penstock.scheduling.deadlines import in_time
from penstock.scheduling.lanes import Lane
from penstock.scheduling.queue import Job
from penstock.transport import messages as m

if TYPE_CHECKING:
    from penstock.engine.core import Core


class Admission:
    """Lets requests into the queue of a core."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.admitted = 0

    def takes_series(self, client: ClientState, lane: Lane, count: int) -> bool:
        """Whether so many requests can be queued as one: there is room for all of them."""
        most = self._core.config.queue_rows
        return lane.batched and count <= most and self._has_room(client, count)

    def _has_room(self, client: ClientState, rows: int) -> bool:
        """Whether so many more rows of a client may wait: in an empty queue any number."""
        core = self._core
        waits, most = core.batcher.rows, core.config.queue_rows
        if not waits or waits + rows <= most:
            return True
        return client.rows_open + rows <= most // len(core.clients)

    def admit(self, request: Request, job: Job, now: int) -> None:
        """Queue a request, or refuse it at once."""
        core = self._core
        client, lane = request.client, job.lane
        refusal: tuple[Kind, str] | None = None
        if core.state[0] != m.STATE_READY:
            refusal = (Kind.ENGINE_CLOSED, core.state[2] or "the engine is not ready yet")
        elif (
            lane.batched and not request.series and request.rows > core.cards[lane.model].max_batch
        ):
            most = core.cards[lane.model].max_batch
            refusal = (Kind.INPUT, f"{request.rows} rows at once; at most {most}")
        elif not self._has_room(client, request.rows):
            waiting = f"{core.batcher.rows} of {core.config.queue_rows} rows wait already"
            refusal = (Kind.OVERLOADED, f"the engine's queue is full: {waiting}")
        elif job.deadline and job.deadline <= now:
            refusal = (Kind.DEADLINE, "the deadline had passed when the request arrived")
        elif core.health.hopeless:
            refusal = (Kind.NO_WORKERS, core.health.hopeless)
        elif job.deadline and not in_time(job, core.health.ready(), now):
            refusal = (Kind.DEADLINE, self._cannot_be_met(job, now))
        if refusal:
            for number in request.numbers:
                core.answers.refuse(client, number, *refusal)
            return
        self.admitted += job.requests
        request.segment.requests += 1
        client.rows_open += request.rows
        if request.series:
            client.requests.update(dict.fromkeys(request.numbers, request))
        else:
            client.requests[request.number] = request
        request.jobs.append(job)
        core.batcher.add(job, now)

    def too_late(self, job: Job, now: int) -> None:
        """A job that has waited leaves the queue: its deadline has passed, or will."""
        if job.deadline <= now:
            text = "the deadline passed while the request was queued"
        elif in_time(job, self._core.health.ready(), now, begun=True):
            text = "the deadline cannot be met: what is before it takes too long"
        else:
            text = self._cannot_be_met(job, now, begun=True)
        self._core.settling.fail(job, Kind.DEADLINE, text)

    def _cannot_be_met(self, job: Job, now: int, *, begun: bool = False) -> str:
        """By the worker that would be done first."""
        left, takes = min(
            (
                (job.deadline - max(now, 0 if begun else worker.free_at), takes)
                for worker in self._core.health.ready()
                if (takes := job.lane.on(worker.index).cost(job.rows))
            ),
            key=lambda times: times[1] - times[0],
            default=(job.deadline - now, job.lane.shortest(job.rows)),
        )
        return (
            f"the deadline cannot be met: {max(left, 0) / 1e6:.1f} ms are left when this can "
            f"begin, and it takes about {takes / 1e6:.1f} ms"
        )
