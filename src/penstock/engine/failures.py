"""Why rows failed: kept in full as long as that is sane.

A model that raises may say a lot, with its whole traceback, and the same again for every row. A
text that repeats is kept once; of those that differ the first ones are kept whole, and later ones
are cut. So what errors cost depends on the number of rows, not on how much a model says of each.
"""

from __future__ import annotations

from typing import NamedTuple

_WHOLE = 512 << 10  # characters that are kept before texts are cut
_SHORT = 200  # what is left of each then


class Failure(NamedTuple):
    """Rows that ended with an error."""

    start: int
    rows: int
    kind: int
    text: str


class Texts:
    """The errors of one batch, one request, or one client that does not read."""

    __slots__ = ("_kept", "_last", "_room")

    def __init__(self) -> None:
        self._last = self._kept = ""
        self._room = _WHOLE

    def keep(self, text: str) -> str:
        """The text, or as much of it as can be kept; the same object while it repeats."""
        if text is not self._kept and text != self._last:
            most = max(self._room, _SHORT)
            self._last = text
            self._kept = text if len(text) <= most else text[:most] + "…"
            self._room -= len(self._kept)
        return self._kept


class Failures:
    """Those of one request, in the order in which they were told; neighbours alike are one."""

    __slots__ = ("_texts", "rows")

    def __init__(self) -> None:
        self.rows: list[Failure] = []
        self._texts = Texts()

    def add(self, start: int, rows: int, kind: int, text: str) -> None:
        """Some more rows have failed."""
        text = self._texts.keep(text)
        if self.rows:
            last = self.rows[-1]
            if last.start + last.rows == start and last.kind == kind and last.text == text:
                self.rows[-1] = last._replace(rows=last.rows + rows)
                return
        self.rows.append(Failure(start, rows, kind, text))
