"""Lanes: what may share a batch, one model and one signature.

A lane has its jobs (`queue`), and knows who will ask again (`returns`) and what each worker can do
of it (`abilities`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.scheduling.abilities import Ability
from penstock.scheduling.returns import Returns
from penstock.spec import Signature

if TYPE_CHECKING:
    from penstock.scheduling.queue import Level

TURNS_A_BATCH = 4
_TOGETHER = 16  # rows for which it pays to wake a process: no more is gained with more
_LONGER = 1_000_000  # nanoseconds that a turn may go on for that
CLEARLY = 0.9  # of the time: what is measured of equal workers differs a little
_OFTEN = 16  # batches after which it is looked again whether workers are equal


class Share:
    """What a model has used of the devices, divided by its weight."""

    __slots__ = ("used", "weight")

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight
        self.used = 0.0


class Lane:
    """Work that may share a batch: its model and signature, what waits, and what workers can do.

    `abilities` has the workers by index. `max_batch` is the most that any of them can hold. A
    caller's turn has `quantum` rows, and may take `overdraft` more that the next ones pay back:
    none as long as nobody knows how long they take.
    """

    __slots__ = (
        "__weakref__",
        "_observed",
        "_usual",
        "abilities",
        "batched",
        "jobs",
        "levels",
        "max_batch",
        "model",
        "overdraft",
        "quantum",
        "returns",
        "rows",
        "share",
        "signature",
        "turn",
        "uneven",
        "waiting_since",
    )

    def __init__(
        self,
        model: int,
        signature: Signature,
        max_batch: int,
        batched: bool = True,
        *,
        ladder: Sequence[int] = (),
        times: Sequence[tuple[int, int]] = (),
        share: Share | None = None,
    ) -> None:
        """`max_batch`, `ladder` and `times` are those of workers that tell no others (`tell`)."""
        self.model = model
        self.signature = signature
        self.max_batch = max_batch
        self.batched = batched
        self.abilities: dict[int, Ability] = {}
        self.uneven = False  # whether some workers are faster than others
        self._observed = 0
        self._usual = (max_batch, tuple(ladder), tuple(times))
        self.share = share or Share()
        self.quantum = max(1, max_batch // TURNS_A_BATCH)
        self.overdraft = 0
        self.rows = 0
        self.jobs = 0
        self.turn = 0
        self.waiting_since = 0
        self.levels: dict[int, Level] = {}
        self.returns = Returns()

    def on(self, index: int) -> Ability:
        """What the worker with this index can do."""
        ability = self.abilities.get(index)
        if ability is None:
            self.tell(index, *self._usual)
            ability = self.abilities[index]
        return ability

    def tell(
        self, index: int, max_batch: int, ladder: Sequence[int], times: Iterable[tuple[int, int]]
    ) -> None:
        """A worker has told what fits there, and how long sizes took when it warmed up."""
        ability = self.abilities.get(index)
        if ability is None:
            ability = Ability(max_batch)
            ability.like = next((each for each in self.abilities.values() if each.estimates), None)
            self.abilities[index] = ability
        ability.told(max_batch, ladder, times)
        self.max_batch = max(each.max_batch for each in self.abilities.values())
        self.uneven = self._is_uneven()

    def observe(self, index: int, size: int, nanoseconds: int, now: int) -> None:
        """A batch that this worker ran at that size took so long."""
        more = min(_TOGETHER, self.max_batch) - self.quantum
        self.overdraft = max(min(more, _LONGER * size // max(nanoseconds, 1)), 0)
        ability = self.on(index)
        if len(self.abilities) == 1:
            ability.estimates.observe(size, nanoseconds, now)
            return
        unknown = not ability.estimates
        ability.estimates.observe(size, nanoseconds, now)
        if unknown:
            for other in self.abilities.values():
                if not other.estimates and other.like is None:
                    other.like = ability
        self._observed += 1
        if self._observed < _OFTEN or self._observed % _OFTEN == 0:
            self.uneven = self._is_uneven()

    def _is_uneven(self) -> bool:
        """Whether one worker is clearly faster than another, with one row or with many."""
        every = self.abilities.values()
        for rows in (1, min(ability.max_batch for ability in every)):
            costs = [ability.cost(rows) for ability in every]
            if min(costs) < CLEARLY * max(costs):
                return True
        return False

    def shortest(self, rows: int) -> int:
        """Nanoseconds that so many rows take where they are done first; 0: not known."""
        if len(self.abilities) == 1:
            (ability,) = self.abilities.values()
            return ability.cost(rows)
        return min((ability.cost(rows) for ability in self.abilities.values()), default=0)

    def fresh(self, rows: int, now: int) -> bool:
        """Whether a worker did about so many rows a moment ago."""
        return any(ability.fresh(rows, now) for ability in self.abilities.values())

    def first_deadline(self) -> int | None:
        """The first deadline of those that wait."""
        lines = (line for level in self.levels.values() for line in level.lines.values())
        deadlines = (job.deadline for line in lines for job in line.jobs if job.deadline)
        return min(deadlines, default=None)
