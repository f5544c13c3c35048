"""A stream of rows in, a stream of their answers out: what `Client.map` does.

At most a window of rows is on its way. Whoever stops reading cancels what is outstanding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import numpy as np

from penstock.client.answer import Answer
from penstock.errors import Cancelled, PenstockError
from penstock.spec import refuse_mask


def answers(
    submit: Callable[[Any], Answer],
    rows: Iterable[Any],
    window: int,
    ordered: bool,
    return_errors: bool,
) -> Iterator[Any]:
    """The outputs of each row, in the order of the rows or as they come."""
    outstanding: dict[Answer, None] = {}
    arrived: SimpleQueue[Future[Any]] | None = None if ordered else SimpleQueue()
    try:
        for row in rows:
            if len(outstanding) >= window:
                yield _row_of(_next(outstanding, arrived), return_errors)
            answer = submit(_as_rows(row))
            outstanding[answer] = None
            if arrived is not None:
                answer.add_quick_callback(arrived.put)
        while outstanding:
            yield _row_of(_next(outstanding, arrived), return_errors)
    finally:
        for answer in outstanding:
            answer.cancel()


def _as_rows(row: Any) -> Any:
    """Plain Python stays what it is, so that it becomes what the model takes, as in `predict`."""
    if isinstance(row, Mapping):
        return {name: _as_rows(value) for name, value in row.items()}
    if isinstance(row, (str, bytes)) or not hasattr(row, "__array__"):
        return [row]
    refuse_mask(row, "a row")
    return np.asarray(row)[None]


def _next(outstanding: dict[Answer, None], arrived: SimpleQueue[Future[Any]] | None) -> Future[Any]:
    """The first that was sent, or that has arrived; it is outstanding no more."""
    answer: Future[Any] = next(iter(outstanding)) if arrived is None else arrived.get()
    while answer not in outstanding:
        assert arrived is not None
        answer = arrived.get()  # that one was told twice
    del outstanding[answer]
    return answer


def _row_of(answer: Future[Any], return_errors: bool) -> Any:
    try:
        outputs = answer.result()
    except Cancelled:
        raise
    except PenstockError as error:
        if return_errors:
            return error
        raise
    if isinstance(outputs, dict):
        return {name: array[0] for name, array in outputs.items()}
    return outputs[0]
