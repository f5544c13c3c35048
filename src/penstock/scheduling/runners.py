"""Workers as the batcher sees them: who is free, who may hang, who has enough to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.scheduling.lanes import Lane

DEPTH = 2


class Runner(Protocol):
    """What the batcher sees of a worker that is ready.

    `index` tells it from others. `free_at` is when it will probably have finished what it has,
    `late_at` when it is overdue, and `depth` how many batches it may have: `DEPTH`, or more if it
    works on several at a time.
    """

    index: int
    depth: int
    free_at: int
    late_at: int
    alone: bool

    @property
    def inflight(self) -> int:
        """Batches that it has and has not finished."""

    def rows_of(self, lane: Lane) -> int:
        """Rows of this lane that it has and has not finished."""


def overdue(runner: Runner, now: int) -> bool:
    """Whether it may hang, or nobody knows how long it takes."""
    return runner.inflight > 0 and now >= runner.late_at


def has_more(runner: Runner) -> bool:
    """Whether its device has another batch to run after the present one: no part of one is urgent.

    How long they take is an estimate, and a batch that leaves half full is run as if it were full.
    """
    return runner.depth > DEPTH and runner.inflight >= DEPTH


def freest(runners: Sequence[Runner], kept: Sequence[Runner], now: int) -> Runner | None:
    best: Runner | None = None
    for runner in runners:
        if (
            runner not in kept
            and not runner.alone
            and runner.inflight < runner.depth
            and not overdue(runner, now)
            and (
                best is None
                or runner.inflight < best.inflight
                or (runner.inflight == best.inflight and runner.free_at < best.free_at)
            )
        ):
            best = runner
    return best
