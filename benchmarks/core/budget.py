"""Time limits of a run and of each of its parts: what takes too long is broken off, the rest runs.

    budget = Budget(arguments.limit, arguments.part_limit)
    for name in parts:
        if not budget.is_over:
            with budget.part():    # raises OutOfTime in the block
                ...

An alarm of this process does it (SIGALRM, in the main thread), so that a wait for a child is broken
off too. The block cleans up as it would after any other exception.
"""

import argparse
import contextlib
import math
import signal
import time
import traceback
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from benchmarks.core.processes import ChildFailed

_LEAST = 1.0  # seconds
_KEPT = 500  # characters of a failure


class OutOfTime(Exception):
    """A part took longer than it may, or its run did."""


class Budget:
    """Seconds for the whole run, from now on, and for each part; 0: any number."""

    def __init__(self, whole: float = 0.0, part: float = 0.0) -> None:
        self._until = time.monotonic() + whole if whole else math.inf
        self._part = part or math.inf

    @property
    def is_over(self) -> bool:
        """Whether nothing should be begun any more."""
        return self._until - time.monotonic() < _LEAST

    @contextlib.contextmanager
    def part(self) -> Iterator[None]:
        """A block that is left with `OutOfTime` when its time is up."""
        seconds = min(self._part, max(self._until - time.monotonic(), _LEAST))
        if seconds == math.inf:
            yield
            return

        def ring(*_: Any) -> None:
            raise OutOfTime(f"cut off after {seconds:.0f} s")

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def told_failure(part: str, error: Exception, to: Console) -> str:
    """Tell that a part has failed, and give what is kept of it: a fault of its own in full."""
    if isinstance(error, (OutOfTime, ChildFailed)):
        to.print(f"{part} failed: {error}", style="red")
        return str(error).splitlines()[0][:_KEPT]
    lines = "".join(traceback.format_exception(error))
    to.print(f"{part} failed:\n{lines}", style="red")
    return f"{type(error).__name__}: {error}"[:_KEPT]


def add_limits(parser: argparse.ArgumentParser) -> None:
    """The flags of a budget."""
    parser.add_argument(
        "--limit",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="for all of it; what is not done then is broken off or not begun (default: none)",
    )
    parser.add_argument(
        "--part-limit",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="for each part; the next one has its turn then (default: none)",
    )
