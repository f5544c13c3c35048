"""Whether a worker that is free, or nearly, had better wait a little.

For clients that were just answered and will ask again at once (`returns`). They go round in a loop,
so what counts is how long a round takes. With *q* rows waiting, *a* expected within *d*, and *T(n)*
what a batch takes::

    together:  d + T(q + a)                      in two batches:  T(q) + T(a)

Where a larger batch takes hardly longer (a GPU) waiting often pays; where time grows with the rows
(a large batch on a CPU) it never does.

For a busy worker that will be done with what waits sooner than the one that is free; if it takes
longer than expected, no longer than the free one would have taken. And for the right distance:
several workers had better not run in step, since whoever comes just after all of them have begun
waits for a whole batch. Where more rows take hardly longer, the last one that is free therefore
keeps its distance from the next.

Nobody waits beyond what deadlines allow, nor for more than about a batch's time.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.scheduling.abilities import LEAD, Ability
from penstock.scheduling.decisions import Closed
from penstock.scheduling.lanes import CLEARLY, Lane
from penstock.scheduling.queue import Queue
from penstock.scheduling.runners import DEPTH, Runner

_NEVER = 1 << 62
_HARDLY_LONGER = 1.1  # times


class Patience:
    """Answers whether to wait, and keeps when whoever waits may have waited enough (`look`)."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.look: int | None = None

    def waits(
        self, lane: Lane, ability: Ability, runner: Runner, now: int, workers: int
    ) -> Closed | None:
        """An idle worker: `None` to wait for those who were just answered, or why not."""
        all_back = not lane.returns.away
        expected, until = lane.returns.expected(now)
        if not expected:
            if not lane.waiting_since:
                return Closed.IDLE
            return Closed.COMPLETE if all_back else Closed.WAITED
        rows = lane.rows
        back = min(round(expected * lane.returns.chance), ability.max_batch - rows)
        since = lane.waiting_since or now
        together = ability.cost(rows + back)
        patience = together if runner.depth > DEPTH else together // 2
        if (
            back <= 0
            or until <= now
            or now - since > patience
            or not pays(ability, rows, back, until - now, workers)
        ):
            return Closed.WAITED if lane.waiting_since else Closed.IDLE
        latest = self._latest(lane, together)
        if latest <= now:
            return Closed.DEADLINE
        lane.waiting_since = since
        self._look_at(min(until, since + patience + 1, latest))
        return None

    def holds_back(
        self, lane: Lane, ability: Ability, runner: Runner, most: int, workers: int
    ) -> bool:
        """A worker about to be free: whether to wait for those whom it answers then."""
        running = round(runner.rows_of(lane) * lane.returns.chance)
        back = min(running, ability.max_batch - lane.rows)
        if back <= 0 or not lane.returns.steady:
            return False
        wait = lane.returns.turnaround
        together = ability.cost(lane.rows + back)
        if self._latest(lane, together) < runner.free_at + wait:
            return False
        if runner.depth > DEPTH:
            return lane.rows + running <= most
        return wait <= together // 2 and pays(ability, lane.rows, back, wait, workers)

    def sooner_elsewhere(
        self,
        lane: Lane,
        runner: Runner,
        runners: Sequence[Runner],
        kept: Sequence[Runner],
        now: int,
    ) -> bool:
        """Whether what waits is done clearly sooner by another worker, although that is busy."""
        rows = lane.rows
        here = lane.on(runner.index).cost(rows)
        limit = max(now, runner.free_at) + int(CLEARLY * here)
        for other in runners:
            if other.free_at >= limit or other is runner or other in kept or other.alone:
                continue
            takes = lane.on(other.index).cost(rows)
            if not takes or max(now, other.free_at) + takes >= limit:
                continue
            if other.inflight:
                enough = min(other.late_at, other.free_at + here)  # it takes longer than it should
                if now >= enough:
                    continue
                self._look_at(enough)
            return True
        return False

    def in_step(
        self,
        lane: Lane,
        ability: Ability,
        runner: Runner,
        runners: Sequence[Runner],
        now: int,
    ) -> bool:
        """The last worker that is free: whether to wait until it runs in turn with the next one.

        That one has more rows than wait here, of clients who come just as quickly: they would find
        all workers busy, until it is free. Here they join, if the batch takes hardly longer then.
        """
        others = [other for other in runners if other is not runner]
        if not others or not all(other.inflight for other in others):
            return False
        after = min(others, key=lambda other: other.free_at)
        rows, theirs = lane.rows, after.rows_of(lane)
        takes = ability.cost(rows)
        distance = takes // len(runners)
        gap = after.free_at - max(now, runner.free_at)
        if (
            rows >= theirs
            or not distance < gap <= takes + ability.lead(rows)
            or ability.cost(rows + theirs) > _HARDLY_LONGER * takes
        ):
            return False
        look = min(after.free_at - distance, self._latest(lane, takes))
        if look <= now:
            return False
        self._look_at(look)
        return True

    def _look_at(self, time: int) -> None:
        """Ask again then, if not before."""
        if self.look is None or time < self.look:
            self.look = time

    def _latest(self, lane: Lane, cost: int) -> int:
        """When a batch that takes so long must leave, for all who wait to be in time."""
        first = None if self._queue.next_due() is None else lane.first_deadline()
        return _NEVER if first is None else first - cost - LEAD


def pays(ability: Ability, rows: int, back: int, wait: int, workers: int) -> bool:
    """Whether rows that wait had better run together with those that come back."""
    second = ability.cost(back)
    if workers > 1:  # another may take them: only the waiting of these few counts
        second = second * back // (rows + back)
    return wait + ability.cost(rows + back) < ability.cost(rows) + second
