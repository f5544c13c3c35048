"""In how many groups rows go round, where a worker has several hands.

Such a worker gathers and scatters beside its device, and clients are answered and ask again
meanwhile, if there is another batch to run. So all *N* rows that are about go round in *k* groups
of *n*, and a round takes, with *h* what passes outside of the device::

    max(k T(n), T(n) + h)      k = N / n      (and no more at a time than the worker has hands)

The size with the shortest round is the most that a batch gets: a few rows go round together, as
waiting is cheaper than running twice; many go in groups, which hide *h* from each other. Among
sizes that are nearly as good the smallest is taken: *h* is not known well.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.scheduling.abilities import LEAD, Ability
from penstock.scheduling.lanes import Lane
from penstock.scheduling.runners import DEPTH, Runner

_NEVER = 1 << 62
_CLEARLY = 0.92  # of a round together: what groups must save to be worth it
_HARDLY_MORE = 1.1  # times: among groups the smaller ones, which forgive more


def most(lane: Lane, ability: Ability, runner: Runner, runners: Sequence[Runner], now: int) -> int:
    """The most rows that a batch gets now: those with which all that are about go round best.

    Where a worker does one thing after the other, as many as it can hold.
    """
    if runner.depth <= DEPTH or not lane.batched:
        return ability.max_batch
    about = lane.rows + sum(each.rows_of(lane) for each in runners)
    apart = 0
    if lane.returns.steady:
        about += lane.returns.away
        apart += lane.returns.usual
    share = -(-about // len(runners))
    if share < 2:
        return ability.max_batch
    rounds: dict[int, int] = {}
    for size in _sizes_below(ability, share):
        takes = ability.estimates.likely(ability.padded(size), now)
        if not takes:
            return ability.max_batch
        groups = -(-share // size)
        beside = LEAD + int(ability.gather * size)
        rounds[size] = max(
            groups * takes,
            groups * (takes + beside) // runner.depth,  # so many hands has the worker
            takes + beside + apart,
        )
    together = rounds.pop(share, _NEVER)
    shortest = min(rounds.values(), default=_NEVER)
    if shortest >= _CLEARLY * together:
        return ability.max_batch
    return next(size for size in rounds if rounds[size] <= _HARDLY_MORE * shortest)


def _sizes_below(ability: Ability, rows: int) -> list[int]:
    """Sizes that so many rows may be run at, in one batch or in several."""
    sizes = ability.ladder or [1 << power for power in range(1, rows.bit_length())]
    below = [size for size in sizes if size < rows and size <= ability.max_batch]
    return [*below, rows] if rows <= ability.max_batch else below
