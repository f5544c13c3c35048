"""What one worker can do of a lane: the most rows at a time, the sizes, and how long they take.

Workers are not equal. A card with less memory holds smaller batches, a slower one needs longer, one
that another process fills is cut when a batch did not fit, and equal ones differ with the company
that they have. So each is measured for itself, and a batch is formed for the worker that gets it.

As long as nothing is known of a worker it is taken to be `like` the one that was measured first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.scheduling.estimates import Estimates

if TYPE_CHECKING:
    from penstock.scheduling.groups import Group

LEAD = 100_000  # nanoseconds that a message takes to reach a worker, and a little


class Ability:
    """One worker, as far as one lane is concerned."""

    __slots__ = ("estimates", "gather", "group", "ladder", "like", "max_batch")

    def __init__(self, max_batch: int, ladder: Sequence[int] = ()) -> None:
        self.max_batch = max_batch
        self.ladder = tuple(ladder)
        self.estimates = Estimates()
        self.gather = 0.0  # nanoseconds a row, with scatter, where a device runs others meanwhile
        self.group: Group | None = None  # what `groups` found
        self.like: Ability | None = None

    def told(
        self, max_batch: int, ladder: Sequence[int], times: Iterable[tuple[int, int]] = ()
    ) -> None:
        """Its worker has said what fits, and how long sizes took when it warmed up."""
        self.max_batch = max_batch
        self.ladder = tuple(ladder)
        self.group = None
        for size, nanoseconds in times:
            self.estimates.seed(size, nanoseconds)

    def padded(self, rows: int) -> int:
        """The size at which so many rows are run."""
        for size in self.ladder:
            if size >= rows:
                return size
        return rows

    def cost(self, rows: int) -> int:
        """Nanoseconds that a batch of so many rows takes, padding included; 0: not known."""
        takes = self.estimates.predict(self.padded(rows) if self.ladder else rows)
        return takes if takes or self.like is None else self.like.cost(rows)

    def fresh(self, rows: int, now: int) -> bool:
        """Whether `cost` was measured a moment ago: only then may it refuse somebody."""
        return self.estimates.fresh(self.padded(rows), now)

    def in_time(self, rows: int, start: int, deadline: int) -> bool:
        """Whether so many rows that are begun then are done by then, as far as is known."""
        return not self.fresh(rows, start) or start + self.cost(rows) <= deadline

    def lead(self, waiting: int) -> int:
        """How long before the device is free its next batch must leave, if so many rows wait."""
        if not self.gather:
            return LEAD
        rows = min(waiting, self.max_batch)
        alone = self.cost(1)  # mostly what the host takes to hand a batch over to the device
        longer = max(self.cost(rows) - alone, 0)
        return LEAD + int(self.gather * rows) + min(alone // 2, longer // 8)
