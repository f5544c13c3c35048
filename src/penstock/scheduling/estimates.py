"""How long a batch takes: a moving average for each power of two of its size, as measured."""

from __future__ import annotations

_WEIGHT = 0.25


class Estimates:
    """Nanoseconds that a batch of so many rows takes in one lane."""

    def __init__(self) -> None:
        self._averages: dict[int, float] = {}

    def observe(self, rows: int, nanoseconds: int) -> None:
        """A batch took that long."""
        size = rows.bit_length()
        nanoseconds = max(nanoseconds, 1)
        known = self._averages.get(size)
        self._averages[size] = (
            nanoseconds if known is None else known + _WEIGHT * (nanoseconds - known)
        )

    def predict(self, rows: int) -> int:
        """What a batch will probably take; 0 when nothing of that size was seen."""
        return int(self._averages.get(rows.bit_length(), 0))
