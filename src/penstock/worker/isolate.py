"""When a batch raises: halving it until only the rows that raise by themselves have failed.

Each row that raises gets its own error; all others get their answers, although the first try gave
none. Where one row after the other has raised, the next ones are tried one by one until one does
not: if all of them raise, that takes half the calls; in no case does it take more than two a row.
A batch that may not be taken apart (rows that depend on each other) fails as a whole.
A cancelled asyncio task is an error of its rows like any other, although it is no `Exception`; what
asks for the process's end (`sys.exit`, Ctrl-C) is let through.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.spec import Signature
from penstock.transport.tensors import Array

_IN_A_ROW = 8  # rows that have raised: by then the next one is likelier to raise than not


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
    error: BaseException


Outcome = Answered | Raised
Run = Callable[[int, int], tuple[Signature, list[Array]]]


def outcomes(run: Run, rows: int, divisible: bool) -> Iterator[Outcome]:
    """What became of each row, in order. `run(start, stop)` runs a part of the batch.

    An outcome's arrays must be used before the next one is asked for: a model may answer from a
    buffer that it uses again.
    """
    pending = [(0, rows)]
    raised = 0  # in a row
    while pending:
        start, stop = pending.pop()
        if raised >= _IN_A_ROW and stop - start > 1:
            pending.append((start + 1, stop))
            stop = start + 1
        try:
            signature, arrays = run(start, stop)
        except BaseException as error:
            if not _of_its_rows(error):
                raise
            if stop - start > 1 and divisible:
                middle = (start + stop) // 2
                pending += [(middle, stop), (start, middle)]
            else:
                raised += 1
                yield Raised(start, stop - start, error)
        else:
            raised = 0
            yield Answered(start, stop - start, signature, arrays)


def _of_its_rows(error: BaseException) -> bool:
    if isinstance(error, (Exception, GeneratorExit)):
        return True
    loaded = sys.modules.get("asyncio")  # whoever raises its errors has loaded it
    return loaded is not None and isinstance(error, loaded.CancelledError)
