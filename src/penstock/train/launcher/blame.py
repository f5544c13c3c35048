"""Which failure was the first real one.

When a worker dies, the others fail of it: their connection is reset, an all-reduce is aborted, a
heartbeat is missing; and they may well be faster to exit. So a failure that reads like a
consequence is believed only where there is no other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock import launch

TAIL = 400  # lines that are kept of each task
_SHOWN = 40

TRACEBACK = "Traceback (most recent call last):"
_CONSEQUENCES = re.compile(
    r"\b(Unavailable|Aborted|Cancelled|DeadlineExceeded)Error\b"
    r"|Collective ops is aborted|[Cc]oordination ?[Ss]ervice|missing heartbeats"
    r"|\bConnection(Reset|Refused|Aborted)Error\b|\bBrokenPipeError\b"
    r"|[Ss]ocket closed|[Cc]onnection (reset|refused)|failed to connect"
    r"|\bWorkerLost\b|parameter servers lost"
)
_OF_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_CERTAIN = ("ConfigError", *_OF_SYNTAX)


@dataclass(frozen=True)
class Ending:
    """A task that failed: how, when, and what it said last. `reason`: what was seen from outside.

    `code` is `None` for one that still runs.
    """

    name: str
    code: int | None
    at: float
    tail: tuple[str, ...]
    reason: str = ""

    @property
    def headline(self) -> str:
        """In one line."""
        return self.reason or _raised(self.tail) or _exit_text(self.code)

    @property
    def is_consequence(self) -> bool:
        """Whether it reads as if another task had failed before."""
        if self.reason:
            return False
        end = _last_traceback(self.tail)
        if end:
            return bool(_CONSEQUENCES.search("\n".join(_after_frames(end))))
        aborted = self.code == -6  # how TensorFlow ends when it has lost the others
        return aborted and bool(_CONSEQUENCES.search("\n".join(self.tail[-20:])))

    @property
    def is_certain(self) -> bool:
        """Whether it would fail again, of the same: what was asked for cannot be."""
        raised = _raised(self.tail).partition(":")[0]
        return not self.reason and raised.rpartition(".")[2] in _CERTAIN

    @property
    def excerpt(self) -> list[str]:
        """What to show of its last lines: the whole traceback, if it is there."""
        start = next((at for at, line in enumerate(self.tail) if line == TRACEBACK), None)
        if start is None:
            return list(self.tail[-_SHOWN // 2 :])
        chain = list(self.tail[start:])
        if len(chain) <= _SHOWN:
            return chain
        return [*chain[: _SHOWN // 4], "…", *chain[-3 * _SHOWN // 4 :]]


def first_real(endings: Sequence[Ending]) -> Ending:
    """Of those that failed, the one that is to blame."""
    causes = [ending for ending in endings if not ending.is_consequence]
    return min(causes or endings, key=lambda ending: (ending.code is None, ending.at))


def shows_failure(tail: Sequence[str]) -> bool:
    """Whether a task that still runs has printed a traceback."""
    return TRACEBACK in tail


def _raised(tail: Sequence[str]) -> str:
    named = _after_frames(_last_traceback(tail)) or _of_a_script_that_cannot_be_read(tail)
    return named[0] if named else ""


def _of_a_script_that_cannot_be_read(tail: Sequence[str]) -> list[str]:
    """What is wrong with the script's own text, Python tells without a traceback."""
    last = tail[-1:]
    told = any(line.startswith('  File "') for line in tail[-5:])
    return list(last) if told and last[0].partition(":")[0] in _OF_SYNTAX else []


def _last_traceback(tail: Sequence[str]) -> list[str]:
    for at in range(len(tail) - 1, -1, -1):
        if tail[at] == TRACEBACK:
            return list(tail[at:])
    return []


def _after_frames(traceback: Sequence[str]) -> list[str]:
    """The exception and what follows: all from the first line that is not indented."""
    for at, line in enumerate(traceback[1:], 1):
        if line and not line[0].isspace():
            return list(traceback[at:])
    return []


def _exit_text(code: int | None) -> str:
    if code is None:
        return "it failed"
    hint = " (did the machine run out of memory?)" if code == -9 else ""
    return launch.exit_text(code) + hint
