"""Lines that are held back: from a traceback on, until it is known whose failure was the first.

Of several tasks that fail of the same, the last one to print would otherwise have the last word. A
task that goes on for a while after a traceback has handled it: its lines are shown then.
"""

from __future__ import annotations

from penstock.train.launcher.blame import TRACEBACK

_LONGEST = 2.0  # seconds


class Held:
    """By the names of tasks. It owns no clock."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self._since: dict[str, float] = {}

    def takes(self, name: str, line: str, now: float) -> bool:
        """Whether a task's line is held back; then it is kept."""
        if name not in self._lines:
            if line != TRACEBACK:
                return False
            self._lines[name], self._since[name] = [], now
        self._lines[name].append(line)
        return True

    def due(self, now: float) -> list[str]:
        """Those who have gone on for long."""
        return [name for name, since in self._since.items() if now - since >= _LONGEST]

    def given(self, name: str) -> list[str]:
        """What was held of a task, and is no more."""
        self._since.pop(name, None)
        return self._lines.pop(name, [])
