"""What is counted of a model: batches, why they were closed, padding, and how long things took.

Times are kept in histograms of the last few seconds, so that percentiles tell how it is now and not
how it was since the start. Buckets grow by an eighth, so a percentile is right to about 6 %.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from penstock.engine.workers import Batch
from penstock.scheduling.decisions import Closed
from penstock.transport.messages import Ran

STAGES = ("gather", "model", "scatter")  # of a batch, in its worker
_BUCKETS = 48 * 8
_WINDOW = 5_000_000_000  # nanoseconds; what is told covers one to two of them


class Recent:
    """A histogram of the times of the last seconds."""

    __slots__ = ("_before", "_counts", "_since")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._before = [0] * _BUCKETS
        self._since = 0

    def add(self, nanoseconds: int, times: int = 1) -> None:
        """Something took that long, so many times."""
        if nanoseconds < 8:
            self._counts[max(nanoseconds, 0)] += times
            return
        size = nanoseconds.bit_length()
        at = (size - 3 << 3) + (nanoseconds >> size - 4 & 7)
        self._counts[at if at < _BUCKETS else _BUCKETS - 1] += times

    def turn(self, now: int) -> None:
        """Let what is older than the window go."""
        if now - self._since > _WINDOW:
            late = now - self._since > 2 * _WINDOW
            self._before = [0] * _BUCKETS if late else self._counts
            self._counts = [0] * _BUCKETS
            self._since = now if late else self._since + _WINDOW

    def percentiles(self, *shares: float) -> list[float]:
        """Seconds within which these shares of all were done; zeros when there was nothing."""
        counts = [a + b for a, b in zip(self._counts, self._before, strict=True)]
        total = sum(counts)
        found: list[float] = []
        for share in shares:
            rank, seen = share * total, 0
            for at, count in enumerate(counts):
                seen += count
                if seen >= rank and count:
                    found.append(_middle(at) / 1e9)
                    break
            else:
                found.append(0.0)
        return found


def _middle(at: int) -> float:
    if at < 8:
        return float(at)
    size, step = (at >> 3) + 3, at & 7
    low = (8 + step) << (size - 4)
    return low + (1 << (size - 4)) / 2


class ModelCounters:
    """One model's counts since the start, and its times of late."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.padding = 0
        self.sizes: Counter[int] = Counter()
        self.closed: Counter[Closed] = Counter()
        self.busy_ns = 0
        self._queue = Recent()
        self._run = Recent()
        self._total = Recent()
        self._stages = {name: Recent() for name in STAGES}
        self._turn_at = 0  # when to look whether something is too old

    def sent(self, rows: int, closed: Closed) -> None:
        """A batch was sent to a worker."""
        self.batches += 1
        self.sizes[rows] += 1
        self.closed[closed] += 1

    def ran(self, batch: Batch, record: Ran, now: int) -> None:
        """A batch came back."""
        self.rows += batch.rows
        self.padding += max(record.size - batch.rows, 0)
        self.busy_ns += record.gather_ns + record.run_ns + record.scatter_ns
        self._turn(now)
        sent = batch.sent
        self._run.add(now - sent)
        gather, model, scatter = self._stages.values()
        gather.add(record.gather_ns)
        model.add(record.run_ns)
        scatter.add(record.scatter_ns)
        admitted, together = batch.jobs[0].owner.admitted, 0
        for job in batch.jobs:  # those that came in one message waited as long as each other
            if job.owner.admitted != admitted:
                self._waited(admitted, together, sent, now)
                admitted, together = job.owner.admitted, 0
            together += job.requests
        self._waited(admitted, together, sent, now)

    def _waited(self, admitted: int, requests: int, sent: int, now: int) -> None:
        self._queue.add(sent - admitted, requests)
        self._total.add(now - admitted, requests)

    def _turn(self, now: int) -> None:
        if now >= self._turn_at:
            self._turn_at = now + _WINDOW // 8
            for recent in self._times().values():
                recent.turn(now)

    def _times(self) -> dict[str, Recent]:
        return {"queue": self._queue, "run": self._run, "total": self._total, **self._stages}

    def report(self, now: int) -> dict[str, Any]:
        """As `penstock.statistics.ModelStatistics` names it."""
        times = {}
        for name, recent in self._times().items():
            recent.turn(now)
            times[name] = recent.percentiles(0.5, 0.9, 0.99)
        return {
            "batches": self.batches,
            "rows": self.rows,
            "padding": self.padding,
            "sizes": {str(size): count for size, count in sorted(self.sizes.items())},
            "closed": {reason.value: count for reason, count in self.closed.items()},
            "busy": self.busy_ns / 1e9,
            "times": times,
        }
