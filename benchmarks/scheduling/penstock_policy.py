"""Penstock's own scheduler as a policy: the real `Batcher`, driven as `engine/core.py` drives it.

What the engine does around the batcher is repeated here in small: a batch that leaves goes through
`Worker.given` with the worker's estimate (`Core._dispatch`), one that comes back through
`Worker.finished` and into the estimates (`Core._ran`). The estimates begin with what warm-up would
have measured.
"""

from __future__ import annotations

from benchmarks.scheduling.devices import Device
from benchmarks.scheduling.simulator import NEVER, Launch, Request
from penstock.engine.workers import Batch, Worker
from penstock.model.pace import HANDS
from penstock.scheduling.batcher import Batcher
from penstock.scheduling.deadlines import in_time
from penstock.scheduling.lanes import Lane
from penstock.scheduling.queue import Job
from penstock.spec import TensorSpec

_SIGNATURE = (TensorSpec("uint8", (1,), "x"),)


class Penstock:
    """The real batcher with real lanes, jobs and workers; only the processes are missing."""

    def __init__(self, device: Device) -> None:
        self._sizes = device.sizes
        self._batcher = Batcher()
        times = [(size, device.run[size]) for size in device.ladder]
        self._lane = Lane(0, _SIGNATURE, device.max_batch, ladder=device.ladder, times=times)
        if device.gathers_beside:
            for index in range(device.workers):
                ability = self._lane.on(index)
                ability.gather = float(device.gather[1])
                ability.estimates.overlap = True
        self._workers = [Worker(index) for index in range(device.workers)]
        for worker in self._workers:
            worker.started(1, 0)
            worker.loaded(0, HANDS if device.gathers_beside else 1)
        self._launched = 0
        self._lost: list[Request] = []  # refused, or missed; handed over by the next `expire`

    def arrived(self, request: Request, now: int) -> None:
        """`Core.admit`: one that cannot be in time is refused."""
        job = Job(request, self._lane, 1, 0, request.client, 0, request.deadline)
        if job.deadline and not in_time(job, self._workers, now):
            self._lost.append(request)
        else:
            self._batcher.add(job, now)

    def expire(self, now: int) -> list[Request]:
        """The first part of `Core.step`."""
        lost, self._lost = self._lost, []
        if self._batcher.jobs:
            lost += [job.owner for job in self._batcher.expire(self._workers, now)]
        return lost

    def next_batch(self, now: int) -> Launch | None:
        """The last part of `Core.step`, and `Core._dispatch`."""
        batcher = self._batcher
        if not batcher.jobs:
            return None
        decision = batcher.next_batch(self._workers, now)
        if decision is None:
            return None
        worker = decision.runner
        assert isinstance(worker, Worker)
        self._launched += 1
        batch = Batch(self._launched, decision, now)
        worker.given(batch, batch.lane.on(worker.index).cost(batch.rows), now)
        return Launch(worker.index, [job.owner for job in batch.jobs])

    def ran(self, worker: int, requests: list[Request], now: int) -> None:
        """`Core._ran`: the batch's time is learnt, its requests are answered."""
        runner = self._workers[worker]
        began = runner.running_since
        batch = runner.finished(next(iter(runner.batches)), now)
        assert batch is not None
        lane = batch.lane
        lane.observe(worker, self._sizes[batch.rows], now - began, now)
        for job in batch.jobs:
            self._batcher.answered(lane, job.fairness, job.rows, now)

    def wakeup(self, now: int) -> int:
        """The end of `Core.step`, and `Core.wakeup`."""
        self._lost += [job.owner for job in self._batcher.missed()]
        if self._lost:
            return now + 1
        wakeup = self._batcher.wakeup(self._workers, now) if self._batcher.jobs else None
        return NEVER if wakeup is None else wakeup
