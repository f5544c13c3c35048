"""The tasks' output on one page: each line under its task's name, in a colour of its own.

A task writes to one pipe, so its lines come in the order in which it wrote them. Of a line that was
written over (`\\r`, as progress bars do), the last state is shown; while it stands, its state every
few seconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import IO

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_SHOWN_EVERY = 5.0  # seconds
_LONGEST = 1 << 16  # bytes; what is longer is cut into several lines


class Lines:
    """Bytes in, whole lines out."""

    def __init__(self) -> None:
        self._rest = b""
        self._stands_since: float | None = None  # that a line was begun, or its state last shown

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that are whole now."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if whole:
            self._stands_since = None
        if len(self._rest) > _LONGEST:
            whole.append(self._rest)
            self._rest = b""
        yield from map(_text, whole)

    def standing(self, now: float) -> str:
        """The state of a line that is written over again and again, every few seconds."""
        over, _, state = self._rest.rstrip(b"\r").rpartition(b"\r")
        if not over.strip(b"\r\b") or not state:
            return ""
        if self._stands_since is None:
            self._stands_since = now
        if now - self._stands_since < _SHOWN_EVERY:
            return ""
        self._stands_since, self._rest = now, b"\r" + state  # nobody needs what was before
        return _text(state)

    def end(self) -> Iterator[str]:
        """What was left without an end."""
        if self._rest:
            yield _text(self._rest)
        self._rest = b""


def _text(line: bytes) -> str:
    shown = line.rstrip(b"\r").rpartition(b"\r")[2]
    return shown.decode(errors="replace")


class Page:
    """Where lines are shown."""

    def __init__(self, names: Sequence[str], file: IO[str], coloured: bool) -> None:
        self._file = file
        self._width = max(map(len, names), default=0)
        self._colours = {
            name: _COLOURS[number % len(_COLOURS)] if coloured else 0
            for number, name in enumerate(names)
        }
        self._coloured = coloured

    def show(self, name: str, line: str) -> None:
        """A line of a task's."""
        mark, colour = f"{name:<{self._width}} │", self._colours.get(name, 0)
        self._write(f"\x1b[{colour}m{mark}\x1b[0m {line}" if colour else f"{mark} {line}")

    def say(self, text: str, *, bad: bool = False) -> None:
        """A line of the launcher's own."""
        text = f"penstock: {text}"
        self._write(f"\x1b[{'1;31' if bad else '1'}m{text}\x1b[0m" if self._coloured else text)

    def quote(self, line: str) -> None:
        """A line that belongs to what was just said."""
        self._write(f"    {line}")

    def _write(self, text: str) -> None:
        self._file.write(text + "\n")
        self._file.flush()


def wants_colour(file: IO[str]) -> bool:
    """A terminal does, unless NO_COLOR; FORCE_COLOR is for all the rest."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or file.isatty()
