"""When a batch raises: halving it until only the rows that raise by themselves have failed.

Each row that raises gets its own error; all others get their answers, although the first try gave
none. A batch that may not be taken apart (rows that depend on each other) fails as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


def outcomes(run: Run, rows: int, divisible: bool) -> Iterator[Outcome]:
    """What became of each row, in order. `run(start, stop)` runs a part of the batch.

    An outcome's arrays must be used before the next one is asked for: a model may answer from a
    buffer that it uses again.
    """
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
                yield Raised(start, stop - start, error)
        else:
            yield Answered(start, stop - start, signature, arrays)
