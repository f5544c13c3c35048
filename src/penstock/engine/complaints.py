"""What the engine logs of its clients: as much as a person reads, whatever they do.

Anybody who may connect can provoke such lines, a thousand a second. Of each kind a few are written
at once; how many more there were, and the last of them, is told when the time is up.
"""

from __future__ import annotations

import logging

_AT_ONCE = 10
_EVERY = 5_000_000_000  # nanoseconds

_log = logging.getLogger("penstock.engine")


class Complaints:
    """The lines of one engine. A kind is a text with places for what differs."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}
        self._last: dict[str, str] = {}
        self._until = 0

    def tell(self, kind: str, *details: object) -> None:
        """Log this, unless there was a lot of it lately."""
        told = self._told[kind] = self._told.get(kind, 0) + 1
        if told <= _AT_ONCE:
            _log.warning(kind, *details)
        else:
            self._last[kind] = kind % details

    def sum_up(self, now: int) -> None:
        """Called now and then: tell what was left out, and begin anew."""
        if now >= self._until:
            self._until = now + _EVERY
            self.close()

    def close(self) -> None:
        """Tell what was left out."""
        for kind, last in self._last.items():
            _log.warning("%d more like this: %s", self._told[kind] - _AT_ONCE, last)
        self._told.clear()
        self._last.clear()
