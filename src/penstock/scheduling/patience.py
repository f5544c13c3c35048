"""Whether a short wait makes a batch larger: who was just answered may ask again at once.

Waiting is worth while only while clients that were answered have not come back (`away`), and only
if it has paid off lately; else it is tried once in a while, to see whether that has changed.
"""

from __future__ import annotations

from collections import Counter

_LEAST, _MOST = 100_000, 1_000_000  # nanoseconds
_FRACTION = 0.5
_WEIGHT = 0.1
_ENOUGH = 0.3
_TRY_EVERY = 32


class Patience:
    """Knows who is likely to ask again, and how waiting for them has paid off."""

    def __init__(self) -> None:
        self.away = 0
        self._away: Counter[int] = Counter()
        self._payoff = 1.0
        self._skipped = 0

    def answered(self, client: int) -> None:
        """A client got an answer: it may ask again."""
        self._away[client] += 1
        self.away += 1

    def asked(self, client: int) -> None:
        """A client has asked."""
        if self._away[client]:
            self._away[client] -= 1
            self.away -= 1

    def left(self, client: int) -> None:
        """A client is gone, or will not ask."""
        self.away -= self._away.pop(client, 0)

    def limit(self, expected: int) -> int:
        """How long to wait at most, for a batch that will take `expected` nanoseconds."""
        return int(min(max(_FRACTION * expected, _LEAST), _MOST))

    def worth_while(self) -> bool:
        """Whether to begin to wait now."""
        if self.away == 0:
            return False
        if self._payoff >= _ENOUGH:
            return True
        self._skipped = (self._skipped + 1) % _TRY_EVERY
        return self._skipped == 0

    def waited(self, joined: int) -> None:
        """A wait is over: so many joined."""
        self._payoff += _WEIGHT * (min(joined, 4) - self._payoff)
        if joined == 0:
            self._away.clear()
            self.away = 0
