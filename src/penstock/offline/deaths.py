"""What is learnt from loaders that die: which part it was, and which row.

The parts that a loader had are done again *with care*, row by row, each told before it is read. A
row over which a loader dies twice, alone, is left out: it fails, and the others do not. A part over
which loaders die again and again without that anything is learnt ends the job.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import WorkerLost

MOST = 3  # over one part, without a row that is to blame
_NO_PART = -1

Care = dict[int, str]  # rows that are not to be read, and why


class Deaths:
    """Of the loaders of a job."""

    def __init__(self) -> None:
        self._care: dict[int, Care] = {}
        self._suspects: dict[int, int] = {}
        self._counts: dict[int, int] = {}

    def care(self, part: int) -> Care | None:
        """How to do a part: `None`, as any other."""
        return self._care.get(part)

    def done(self, part: int) -> None:
        """A part is recorded: whatever there was, it is over."""
        for known in (self._care, self._suspects, self._counts):
            known.pop(part, None)
        self._counts.pop(_NO_PART, None)

    def learn(self, parts: Sequence[int], reading: tuple[int, int] | None, how: str) -> None:
        """A loader died that had these parts, and was `reading` a row of one. Raises `WorkerLost`
        when it is of no use to go on."""
        for part in parts:
            self._care.setdefault(part, {})
        row: int | None = None
        part = parts[0] if parts else _NO_PART
        if reading is not None and reading[0] in parts:
            part, row = reading
        self._counts[part] = self._counts.get(part, 0) + 1
        if row is not None and self._suspects.get(part) == row:
            self._care[part][row] = f"a process ended twice as it read this row alone: {how}"
            self._counts[part] = 0
        if row is not None:
            self._suspects[part] = row
        if self._counts[part] >= MOST:
            where = "" if row is None else f", at row {row}"
            over = f"over part {part}{where}" if parts else "before they were given anything"
            raise WorkerLost(f"loaders die again and again ({how}), the last one {over}")
