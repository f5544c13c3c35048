"""In how many groups rows go round, where a worker has several hands.

Such a worker gathers and scatters beside its device, and clients are answered and ask again
meanwhile, if there is another batch to run. So all *N* rows that are about go round in *k* groups
of *n*, and a round takes, with *h* what passes outside of the device::

    max(k T(n), T(n) + h)      k = N / n      (and no more at a time than the worker has hands)

The size with the shortest round is the most that a batch gets: a few rows go round together, as
waiting is cheaper than running twice; many go in groups, which hide *h* from each other. Where the
way is long, rounds are about equally long with groups of many sizes; then what the device has to do
for them, *k T(n)*, decides: whoever comes besides finds it free.

*h* is not known well. Where a few times *h* would make rounds longer, the smallest among sizes that
are nearly as good is taken. Then it is kept for a while although it is a little worse: measurements
come in bunches, and whenever groups change, some batches are neither of the one size nor of the
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.scheduling.abilities import LEAD, Ability
from penstock.scheduling.lanes import Lane
from penstock.scheduling.runners import DEPTH, Runner

_CLEARLY = 0.92  # of a round together: what groups must save to be worth it
_HARDLY_MORE = 1.1  # times: among groups the smaller ones, which forgive more
_KEPT = 1.15  # times: so much more it may be once it was taken,
_DOUBTED = 64  # but not for more batches in a row: by then it is no accident
_FORGIVEN = 8  # times: so much longer the way outside of the device may be than was thought
_FINE = 100_000  # nanoseconds by which the way must differ to be reckoned anew
_SOON = 250_000_000  # nanoseconds after which measurements may be too old
_BESIDES = 0.1  # of the device's time: what a longer round may save of it


class _Round(NamedTuple):
    """Nanoseconds that a round takes, and of them the device; and if the way were far longer."""

    takes: float
    device: float
    at_worst: float

    @property
    def price(self) -> float:
        return self.takes + _BESIDES * self.device

    def hardly_more(self, than: _Round, times: float) -> bool:
        return self.takes <= times * than.takes and self.device <= times * than.device


class Group(NamedTuple):
    """The size of groups for what was `known`. `since`: as many measurements there were when it
    was as good as others the last time."""

    known: tuple[int, ...]
    size: int
    since: int


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
    known = (share, apart // _FINE, ability.estimates.changes, now // _SOON)
    if ability.group is None or ability.group.known != known:  # in a loop it stays for a batch
        ability.group = _group(ability, known, apart, runner.depth, now)
    return ability.group.size


def _group(ability: Ability, known: tuple[int, ...], apart: int, hands: int, now: int) -> Group:
    """The best size for `known[0]` rows, or the last one for as long as that is good enough."""
    last, changes = ability.group, ability.estimates.changes
    kept = last.size if last and changes - last.since < _DOUBTED else 0
    best, size = _sizes(ability, known[0], apart, hands, now, kept)
    return Group(known, size, changes if last is None or size == best else last.since)


def _sizes(
    ability: Ability, share: int, apart: int, hands: int, now: int, kept: int
) -> tuple[int, int]:
    """The size of groups with which so many rows go round best, or all that fit; and the one to
    take: `kept` may be a little worse."""
    rounds: dict[int, _Round] = {}
    for size in _sizes_below(ability, share):
        takes = ability.estimates.likely(ability.padded(size), now)
        if not takes:
            return ability.max_batch, ability.max_batch
        rounds[size] = _round(share, size, takes, ability.gather, apart, hands)
    together = rounds.pop(share, None)
    if not rounds:
        return ability.max_batch, ability.max_batch
    shortest = min(rounds, key=lambda size: rounds[size].price)
    found = rounds[shortest]
    if together and found.takes >= _CLEARLY * together.takes:
        return ability.max_batch, ability.max_batch
    if found.at_worst < found.takes:
        return shortest, shortest
    best = next(size for size in rounds if rounds[size].hardly_more(found, _HARDLY_MORE))
    if kept < best and kept in rounds and rounds[kept].hardly_more(found, _KEPT):
        return best, kept
    return best, best


def _round(rows: int, size: int, takes: int, gather: float, apart: int, hands: int) -> _Round:
    """A round of so many rows in groups of this size, of which each takes so long."""
    groups = rows / size if rows > 2 * size else -(-rows // size)  # of many the last is filled up
    beside = LEAD + gather * size
    device = groups * takes
    return _Round(
        max(device, groups * (takes + beside) / hands, takes + beside + apart),
        device,
        takes + _FORGIVEN * (beside + apart),
    )


def _sizes_below(ability: Ability, rows: int) -> list[int]:
    """Sizes that so many rows may be run at, in one batch or in several."""
    sizes = ability.ladder or [1 << power for power in range(1, rows.bit_length())]
    below = [size for size in sizes if size < rows and size <= ability.max_batch]
    return [*below, rows] if rows <= ability.max_batch else below
