"""When a batch raises: halving it until only the rows that raise by themselves have failed.

Each row that raises gets its own error; all others get their answers, although the first try gave
none. A batch that may not be taken apart (rows that depend on each other) fails as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.spec import Signature
from penstock.transport.tensors import Array


class Answered(NamedTuple):
    """Rows from `start` on, with their outputs."""

    start: int
    rows: int
    signature: Signature
    arrays: list[Array]


class Raised(NamedTuple):
    """Rows from `start` on, on which the model raised."""

    start: int
    rows: int
    error: Exception


Outcome = Answered | Raised
Run = Callable[[int, int], tuple[Signature, list[Array]]]


def outcomes(run: Run, rows: int, divisible: bool) -> list[Outcome]:
    """What became of each row, in order. `run(start, stop)` runs a part of the batch."""
    found: list[Outcome] = []
    pending = [(0, rows)]
    while pending:
        start, stop = pending.pop()
        try:
            signature, arrays = run(start, stop)
        except Exception as error:
            if stop - start > 1 and divisible:
                middle = (start + stop) // 2
                pending += [(middle, stop), (start, middle)]
            else:
                found.append(Raised(start, stop - start, error))
        else:
            found.append(Answered(start, stop - start, signature, arrays))
    return found
