"""Batches on their way through the engine: sent in order, gathered in the same order.

A batch is one request that fills one of the engine's batches, so that its rows have the same
company in every run. Rows that could not be read are replaced by copies of one that could; the
last batch is filled up in the same way where the model is compiled for sizes. A batch that fails as
a whole is taken apart, so that every row is told of by its own error, and none by a neighbour's.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.client.client import Client
from penstock.data.arrays import brought
from penstock.data.chunk import Array, Failure
from penstock.errors import InputError, NoWorkers, Overloaded, PenstockError, RowsFailed
from penstock.model.source import resolve
from penstock.offline.failures import failure_of, is_of_rows
from penstock.offline.feed import Feed, there
from penstock.offline.forms import concatenated
from penstock.offline.parts import Content
from penstock.offline.stages import ANSWERS, MAPPING, SENDING, Stages
from penstock.spec import refuse_mask

_PAUSE = 0.05  # seconds until a batch is sent again to an engine that is full
_PATIENCE = 300.0


@dataclass
class Batch:
    """Rows to predict. `good`: those that were read; `kept` goes to the output as it is.

    `last`: the part ends with it.
    """

    part: int
    last: bool
    inputs: dict[str, Array]
    keys: Array
    rows: Array
    good: Array
    failures: list[Failure]
    kept: dict[str, Array]


@dataclass
class Shaping:
    """What becomes of outputs before they are written: some of them, through a function."""

    outputs: tuple[str, ...] = ()
    map: str = ""


class Window:
    """At most `size` batches on their way, of `rows` rows where they are filled up (else 0)."""

    def __init__(
        self,
        client: Client,
        model: str | None,
        feed: Feed,
        shaping: Shaping,
        stages: Stages,
        *,
        size: int,
        rows: int = 0,
    ) -> None:
        self._client, self._model, self._feed = client, model, feed
        self._stages, self._size, self._rows = stages, size, rows
        self._outputs = shaping.outputs
        self._map: Callable[[Any], Any] | None = resolve(shaping.map) if shaping.map else None
        self._sent: deque[tuple[Batch, Any, Any]] = deque()

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def full(self) -> bool:
        """Whether one must be gathered before another is sent."""
        return len(self._sent) >= self._size

    def send(self, batch: Batch) -> None:
        """Put a batch on its way."""
        arguments = answer = None
        if batch.good.any():
            with self._stages.timed(SENDING):
                arguments = self._feed.arguments(_filled(batch, self._rows))
                answer = self._submit(arguments)
        self._sent.append((batch, arguments, answer))

    def gather(self) -> tuple[Batch, Content]:
        """The first batch that was sent, and what came of it. Waits for the answer."""
        batch, arguments, answer = self._sent.popleft()
        results: Any = None
        errors: dict[int, PenstockError] = {}
        if arguments is not None:
            with self._stages.timed(ANSWERS):
                results, errors = self._answer(answer, arguments, len(batch.keys))
        failures = list(batch.failures)
        failures += [
            failure_of(int(batch.rows[row]), batch.keys[row], errors[row])
            for row in np.flatnonzero(batch.good).tolist()
            if row in errors
        ]
        good = batch.good.copy()
        good[list(errors)] = False
        columns = self._shaped(results, good, batch, failures)
        failures.sort(key=lambda failure: failure.row)
        if twice := columns.keys() & batch.kept.keys():
            raise InputError(f"{min(twice)!r} is an output and a column to keep: choose one")
        kept = {name: column[good] for name, column in batch.kept.items()}
        return batch, Content({**columns, **kept}, batch.keys[good], batch.rows[good], failures)

    def _submit(self, arguments: Any) -> Any:
        try:
            return self._client.submit(arguments, model=self._model)
        except (InputError, Overloaded) as error:
            return error

    def _answer(self, answer: Any, arguments: Any, rows: int) -> tuple[Any, dict[int, Any]]:
        """The outputs and the errors by row, of the first `rows` rows. Raises what is no row's."""
        try:
            return self._patient(answer, arguments), {}
        except RowsFailed as failed:
            for error in failed.errors.values():
                if not is_of_rows(error):
                    raise _stopped(error) from error.__cause__
            errors = {row: error for row, error in failed.errors.items() if row < rows}
            return failed.results, errors
        except PenstockError as error:
            if not is_of_rows(error):
                raise _stopped(error) from error.__cause__
            if rows == 1:
                return None, {0: error}
            return self._apart(arguments, rows, 2 if isinstance(error, InputError) else rows)

    def _patient(self, answer: Any, arguments: Any) -> Any:
        """What the engine answers; sent again while it is full."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                if isinstance(answer, PenstockError):
                    raise answer
                return answer.result()
            except Overloaded:
                if time.monotonic() > until:
                    raise
                time.sleep(_PAUSE)
                answer = self._submit(arguments)

    def _apart(self, arguments: Any, rows: int, pieces: int) -> tuple[Any, dict[int, Any]]:
        """As `_answer`, of rows that failed together, asked for in so many pieces."""
        found: list[tuple[int, int, Any]] = []
        errors: dict[int, Any] = {}
        bounds = [rows * piece // pieces for piece in range(pieces + 1)]
        parts = [(a, b, _rows_of(arguments, a, b)) for a, b in itertools.pairwise(bounds)]
        answers = [self._submit(some) for _, _, some in parts]
        for (start, stop, some), answer in zip(parts, answers, strict=True):
            results, failed = self._answer(answer, some, stop - start)
            errors |= {start + row: error for row, error in failed.items()}
            if results is not None:
                found.append((start, stop, results))
        return _put_together(found, rows) if found else None, errors

    def _shaped(
        self, results: Any, good: Array, batch: Batch, failures: list[Failure]
    ) -> dict[str, Array]:
        """The columns of the rows that succeeded. Takes those from `good` that cannot be mapped."""
        if results is None or not good.any():
            good[:] = False
            return {}
        columns = results if isinstance(results, dict) else {"": results}
        for name in self._outputs:
            if name not in columns:
                raise InputError(f"there is no output {name!r}; {there(columns)}")
        columns = {name: columns[name] for name in self._outputs or columns}
        size = len(good)
        wanted = slice(None) if good.all() else good  # a view, where nothing is left out
        chosen = {name: column[:size][wanted] for name, column in columns.items()}
        if self._map is None:
            return chosen
        with self._stages.timed(MAPPING):
            return self._mapped(chosen, good, batch, failures)

    def _mapped(
        self, columns: dict[str, Array], good: Array, batch: Batch, failures: list[Failure]
    ) -> dict[str, Array]:
        assert self._map is not None
        try:
            return mapped(self._map, columns)
        except Exception:
            pieces: list[dict[str, Array]] = []
            for at, row in enumerate(np.flatnonzero(good).tolist()):
                try:
                    some = {name: column[at : at + 1] for name, column in columns.items()}
                    pieces.append(mapped(self._map, some))
                except Exception as error:
                    good[row] = False
                    text = ValueError(f"{type(error).__name__}: {error}")
                    failures.append(failure_of(int(batch.rows[row]), batch.keys[row], text, "map"))
            first = pieces[0] if pieces else {}
            for piece in pieces:
                if piece.keys() != first.keys():
                    raise InputError(
                        f"map: outputs differ between rows: {list(first)} and then {list(piece)}"
                    ) from None
            return {name: concatenated([piece[name] for piece in pieces]) for name in first}


def mapped(function: Callable[[Any], Any], columns: dict[str, Array]) -> dict[str, Array]:
    """What a function makes of outputs. Raises `InputError` unless it gives as many rows.

    It gets copies, which it may change: if it raises then, it is called again, on the same values.
    """
    rows = len(next(iter(columns.values())))
    copies = {name: column.copy() for name, column in columns.items()}
    made = function(copies[""] if set(copies) == {""} else copies)
    found = made if isinstance(made, dict) else {"": made}
    for name, column in found.items():
        refuse_mask(column, f"map: {name or 'output'!r}")
    named = {str(name): np.asarray(column) for name, column in found.items()}
    for name, column in named.items():
        if not column.ndim or len(column) != rows:
            raise InputError(f"map: expected {rows} rows of {name or 'output'!r}")
    return named


def _stopped(error: PenstockError) -> PenstockError:
    """What ends the job, of which no row is to blame."""
    if not isinstance(error, NoWorkers):
        return error
    return NoWorkers(
        f"{error}; once that is fixed, or with more restarts, the same call goes on from here"
    )


def _rows_of(arguments: Any, start: int, stop: int) -> Any:
    if isinstance(arguments, dict):
        return {name: array[start:stop] for name, array in arguments.items()}
    return arguments[start:stop]


def _put_together(found: list[tuple[int, int, Any]], rows: int) -> Any:
    """Results of some of the rows in their places; the others hold whatever."""
    first = found[0][2]
    if isinstance(first, dict):
        return {
            name: _put_together([(start, stop, part[name]) for start, stop, part in found], rows)
            for name in first
        }
    whole: Array = np.empty((rows, *first.shape[1:]), first.dtype)
    for start, stop, part in found:
        if part.shape[1:] != whole.shape[1:] or part.dtype != whole.dtype:
            raise InputError(
                f"outputs differ between rows: {whole.dtype} {whole.shape[1:]} and then "
                f"{part.dtype} {part.shape[1:]}"
            )
        whole[start:stop] = part
    return whole


def _filled(batch: Batch, rows: int) -> dict[str, Array]:
    """The inputs, with copies of a good row where there is none."""
    count = len(batch.keys)
    missing = max(rows - count, 0)
    if not missing and batch.good.all():
        return batch.inputs
    first = int(np.argmax(batch.good))
    places = np.where(batch.good, np.arange(count), first)
    places = np.concatenate([places, np.full(missing, first)])
    return {name: brought(column)[places] for name, column in batch.inputs.items()}
