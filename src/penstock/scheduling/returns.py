"""Who was just answered and will probably ask again at once.

Clients in a loop (an actor, a worker of a web server) ask, wait for the answer and ask again. When
several of them were answered together, their next requests come together too, a moment later. Here
it is remembered how many rows were answered and have not come back, and learnt how long that
usually takes (`turnaround`), how often it happens at all, and which clients do not do it.

A client's rows are *away* from their answer until they come back or until the turnaround has
passed; then they are *late*: not expected any more, but still noticed when they come.
"""

from __future__ import annotations

_WEIGHT = 0.1
_LONGEST = 50_000_000  # nanoseconds: whoever takes longer is not in a loop
_FIRST_PATIENCE = 1_000_000
_MOST = 4096  # clients that are remembered in each way


class Returns:
    """The rows of one lane that were answered and are expected back."""

    def __init__(self) -> None:
        self.away = 0
        self._away: dict[int, tuple[int, int]] = {}  # client -> rows, when answered; oldest first
        self._late: dict[int, int] = {}  # client -> when answered
        self._slow: set[int] = set()  # clients that did not come back in time, the last time
        self._chance = 1.0
        self._mean = 0.0
        self._deviation = 0.0

    @property
    def chance(self) -> float:
        """How many of those that are expected come back in time, as a share."""
        return self._chance

    @property
    def steady(self) -> bool:
        """Whether clients have been seen to come back at all."""
        return self._mean > 0 and self._chance > 0.5

    @property
    def turnaround(self) -> int:
        """Nanoseconds within which nearly all that come back have come back."""
        if not self._mean:
            return _FIRST_PATIENCE
        return int(self._mean + 3 * self._deviation)

    @property
    def usual(self) -> int:
        """Nanoseconds within which most of those that come back have come back."""
        return int(self._mean + self._deviation)

    def answered(self, client: int, rows: int, now: int) -> None:
        """Rows of this client were answered."""
        before = self._away.pop(client, None)
        self._late.pop(client, None)
        if client not in self._slow:
            self.away += rows
        self._away[client] = (rows + (before[0] if before else 0), now)
        if len(self._away) > _MOST:  # perhaps nobody ever asks whom to expect
            self._lose_oldest()

    def came(self, client: int, rows: int, now: int) -> None:
        """Rows of this client have come."""
        entry = self._away.get(client)
        if entry is None:
            answered = self._late.pop(client, 0)
            if answered:
                self._learn(now - answered)
                if now - answered <= self.turnaround:
                    self._slow.discard(client)
            return
        left, answered = entry
        back = min(left, rows)
        if back == left:
            del self._away[client]
        else:
            self._away[client] = (left - back, answered)
        self._learn(now - answered)
        if client in self._slow:
            if back == left:
                self._slow.discard(client)
            return
        self.away -= back
        self._chance += _WEIGHT * (1.0 - self._chance)

    def expected(self, now: int) -> tuple[int, int]:
        """How many rows are expected back, and until when to expect the last of them."""
        if not self._away:
            return 0, now
        patience = self.turnaround
        while self._away and now - next(iter(self._away.values()))[1] > patience:
            self._lose_oldest()
        if not self.away:
            return 0, now
        last = next(at for who, (_, at) in reversed(self._away.items()) if who not in self._slow)
        return self.away, last + patience

    def _lose_oldest(self) -> None:
        client, (rows, answered) = next(iter(self._away.items()))
        del self._away[client]
        if client not in self._slow:
            self.away -= rows
            self._chance -= _WEIGHT * self._chance
            self._slow.add(client)
        if len(self._late) >= _MOST:
            del self._late[next(iter(self._late))]
        if len(self._slow) > 2 * _MOST:  # most of them are gone for good
            self._forget_slow()
        self._late[client] = answered

    def _learn(self, taken: int) -> None:
        taken = min(max(taken, 1), _LONGEST)
        if not self._mean:
            self._mean, self._deviation = float(taken), taken / 2
            return
        error = taken - self._mean
        self._mean += _WEIGHT * error
        self._deviation += _WEIGHT * (abs(error) - self._deviation)

    def _forget_slow(self) -> None:
        self._slow.clear()
        self.away = sum(rows for rows, _ in self._away.values())
