"""What is left of a card: what NVML calls free, less what was promised and is not in use yet.

What a holder uses is known from NVML, with the use of the processes that it has started; where NVML
cannot tell (in containers), it is what the holder says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.devices.cards import Card, amount


@dataclass(frozen=True)
class Promise:
    """So many bytes of a card, to a process (and those it starts), and what for.

    `used` is how much of it the holder says that it has taken; `None`: it does not say.
    """

    card: str
    size: int
    pid: int
    purpose: str
    used: int | None = None


@dataclass(frozen=True)
class Room:
    """A card, what of it was promised to whom, and what is left."""

    card: Card
    promises: tuple[Promise, ...]
    left: int

    def __str__(self) -> str:
        promised = "; ".join(
            f"{amount(promise.size)} promised to process {promise.pid} ({promise.purpose})"
            for promise in self.promises
        )
        return (
            f"{self.card}: {amount(self.left)} left of {amount(self.card.total)}, "
            f"{amount(self.card.free)} unused, {promised or 'nothing promised'}"
        )


def refusal(size: int | None, candidates: Sequence[Room]) -> str:
    """Why so much cannot be promised, card by card."""
    asked = f"{amount(size)} were asked for" if size is not None else "nothing is left"
    told = "; ".join(map(str, candidates))
    return f"too little memory on the GPU: {asked}; {told or 'there is no such card'}"


def reckon(cards: Sequence[Card], given: Sequence[Promise]) -> list[Room]:
    """What is left of each card, from what NVML tells and what was promised."""
    return [
        _room(card, [promise for promise in given if promise.card == card.uuid]) for card in cards
    ]


def _room(card: Card, given: list[Promise]) -> Room:
    holders = {promise.pid for promise in given}
    used: dict[int, int] = {}
    for pid, size in card.processes:
        holder = _holder(pid, holders)
        if holder is not None and size is not None:
            used[holder] = used.get(holder, 0) + size
    open_promises = 0
    for holder in holders:
        theirs = [promise for promise in given if promise.pid == holder]
        taken = used.get(holder, sum(promise.used or 0 for promise in theirs))
        open_promises += max(0, sum(promise.size for promise in theirs) - taken)
    return Room(card, tuple(given), max(0, card.free - open_promises))


def _holder(pid: int, holders: set[int]) -> int | None:
    """Which holder a process's use counts for: itself, or the nearest of its parents."""
    seen: set[int] = set()
    while pid > 0 and pid not in seen:
        if pid in holders:
            return pid
        seen.add(pid)
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
            pid = int(text.rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
    return None
