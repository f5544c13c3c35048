"""The policies that Penstock's scheduler is compared with: what other servers do.

- `Greedy`: a worker that is free takes whatever waits, at once
- `FixedDelay`: a batch leaves when it is full or when its oldest request has waited so long, and a
  worker is free (Triton's `max_queue_delay`, TensorFlow Serving's `batch_timeout_micros`)

Both run first come, first served and drop what has expired while it waited. A worker is free when
it has fewer than `depth` batches. With a depth of one, usual for an instance of a model, it
idles while messages travel and rows are gathered; with two it does not, but batches leave earlier.
"""

from __future__ import annotations

from collections import deque

from benchmarks.scheduling.devices import Device
from benchmarks.scheduling.simulator import NEVER, Launch, Request


class Greedy:
    """A worker with room takes whatever waits."""

    def __init__(self, device: Device, depth: int = 1) -> None:
        self._queue: deque[Request] = deque()
        self._inflight = [0] * device.workers
        self._depth = depth
        self._max_batch = device.max_batch

    def arrived(self, request: Request, now: int) -> None:
        """Joins the end of the line."""
        self._queue.append(request)

    def expire(self, now: int) -> list[Request]:
        """Those at the head of the line whose time is over."""
        queue = self._queue
        if not queue or not queue[0].deadline or queue[0].deadline > now:
            return []
        lost = []
        while queue and queue[0].deadline <= now:
            lost.append(queue.popleft())
        return lost

    def next_batch(self, now: int) -> Launch | None:
        """For the worker that has least to do."""
        queue = self._queue
        if not queue:
            return None
        inflight = self._inflight
        least = min(inflight)
        if least >= self._depth or not self._due(now):
            return None
        worker = inflight.index(least)
        inflight[worker] += 1
        size = min(len(queue), self._max_batch)
        return Launch(worker, [queue.popleft() for _ in range(size)])

    def ran(self, worker: int, requests: list[Request], now: int) -> None:
        """It has room again."""
        self._inflight[worker] -= 1

    def wakeup(self, now: int) -> int:
        """Deadlines are all that there is to wait for."""
        queue = self._queue
        return (queue[0].deadline or NEVER) if queue else NEVER

    def _due(self, now: int) -> bool:
        return True


class FixedDelay(Greedy):
    """The oldest waits so long for others, unless the batch is full before."""

    def __init__(self, device: Device, delay: int, depth: int = 1) -> None:
        super().__init__(device, depth)
        self._delay = delay

    def wakeup(self, now: int) -> int:
        """When the oldest has waited long enough or expires."""
        queue = self._queue
        if not queue:
            return NEVER
        due = queue[0].reached + self._delay
        if due <= now:
            due = NEVER  # it waits for a worker
        return min(due, queue[0].deadline or NEVER)

    def _due(self, now: int) -> bool:
        queue = self._queue
        return len(queue) >= self._max_batch or now >= queue[0].reached + self._delay
