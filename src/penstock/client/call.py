"""One call's rows: split into pieces, each with a slot of its own, and joined again.

A `Piece` is one request to the engine. The session's reading thread reports what became of it;
when every row is settled, or the deadline has passed, the call's answer is resolved: with the
outputs, with the error if there is only one, or with `RowsFailed`, which carries both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.client.answer import Answer
from penstock.client.kinds import Kind
from penstock.client.padding import Trim, trim_output
from penstock.errors import ModelError, PenstockError, RowsFailed
from penstock.spec import Signature
from penstock.transport.arena import Slot
from penstock.transport.segment import Mapping
from penstock.transport.tensors import Array, structure


class Piece:
    """Rows `start` to `start + rows` of a call, in a slot, on their way."""

    __slots__ = (
        "call",
        "failures",
        "input_bytes",
        "length",
        "number",
        "offset",
        "parts",
        "rows",
        "slot",
        "start",
    )

    def __init__(
        self, call: Call, start: int, rows: int, slot: Slot[Mapping], input_bytes: int
    ) -> None:
        self.call = call
        self.start = start
        self.rows = rows
        self.slot = slot
        self.offset = slot.offset
        self.length = slot.size
        self.input_bytes = input_bytes
        self.number = 0
        self.parts: list[tuple[int, Signature, list[Array]]] = []
        self.failures: list[tuple[int, int, PenstockError]] = []


class Call:
    """One `submit`: its answer, its deadline, and the rows that are not settled yet."""

    __slots__ = (
        "answer",
        "answered",
        "caller",
        "deadline",
        "errors",
        "kind",
        "open_pieces",
        "outputs",
        "over",
        "priority",
        "rows",
        "signature",
        "trims",
        "unsettled",
    )

    def __init__(
        self, kind: Kind, rows: int, deadline: int, priority: int, caller: int = 0
    ) -> None:
        self.kind = kind
        self.rows = rows
        self.deadline = deadline
        self.priority = priority
        self.caller = caller
        self.answer: Answer | None = None
        self.unsettled = rows
        self.open_pieces: dict[int, Piece] = {}
        self.errors: dict[int, PenstockError] = {}
        self.signature: Signature = ()
        self.outputs: list[Array] = []
        self.answered: list[tuple[int, int]] = []
        self.trims: tuple[Trim, ...] = ()
        self.over = False

    def put(self, start: int, signature: Signature, arrays: list[Array]) -> None:
        """The outputs of some rows. `arrays` are copies, the call's to keep.

        Meanwhile the caller may give up, in a thread of its own: then they go nowhere.
        """
        count = len(arrays[0])
        outputs = self.outputs
        if count == self.rows:
            self.signature, self.outputs = signature, arrays
        elif not outputs:
            try:
                outputs = self.outputs = [_filled(self.rows, array) for array in arrays]
            except MemoryError as error:
                self.fail(start, count, unreadable(error))
                return
            self.signature = signature
        if self.signature != signature:
            self.fail(start, count, _cannot_join(self.signature, signature))
            return
        if count != self.rows:
            for target, array in zip(outputs, arrays, strict=True):
                target[start : start + count] = array
        self.answered.append((start, count))
        self._settled(count)

    def put_whole(self, value: Any) -> None:
        """All rows were answered at once, and this is what the caller gets."""
        self.unsettled = 0
        if not self.over:
            self.over = True
            answer, self.answer = self.answer, None
            if answer is not None:
                answer.resolve(value, None)

    def fail(self, start: int, count: int, error: PenstockError) -> None:
        """Some rows ended with an error."""
        if count == 0 and self.rows == 0:
            self.errors[0] = error
        for row in range(start, start + count):
            self.errors[row] = error
        self._settled(count)

    def give_up(self, error: PenstockError) -> None:
        """Every row that is not settled ends with this error, now."""
        if self.over:
            return
        self.over = True
        if not self.answered and not self.errors:
            self._finish(None, error)
            return
        settled = {row for start, count in self.answered for row in range(start, start + count)}
        for row in range(self.rows):
            if row not in settled:
                self.errors.setdefault(row, error)
        self._resolve()

    def _settled(self, count: int) -> None:
        self.unsettled -= count
        if self.unsettled <= 0 and not self.over:
            self.over = True
            self._resolve()

    def _resolve(self) -> None:
        if not self.errors:
            self._finish(self._results(), None)
            return
        first = self.errors[min(self.errors)]
        if len(self.errors) >= self.rows and len({type(e) for e in self.errors.values()}) == 1:
            if len(self.errors) > 1:
                first.add_note(f"({len(self.errors)} rows failed like this)")
            self._finish(None, first)
            return
        results = self._results() if self.outputs else None
        error = RowsFailed(self.rows, self.errors, results)
        error.__cause__ = first
        self._finish(None, error)

    def _results(self) -> Any:
        outputs = self.outputs
        if self.trims:
            outputs = [
                trim_output(tensor.name, array, self.trims)
                for tensor, array in zip(self.signature, outputs, strict=True)
            ]
        return structure(self.signature, outputs)

    def drop(self) -> None:
        """Nobody waits for the answer any more."""
        self.over = True
        self.answer = None

    def _finish(self, value: Any, error: PenstockError | None) -> None:
        """Tell the caller, and let go: a cycle would keep the outputs until a collection."""
        answer, self.answer = self.answer, None
        self.outputs = []
        if answer is not None:
            answer.resolve(value, error)


def unreadable(error: Exception) -> PenstockError:
    """The answer is there, and this process cannot take it: no memory, or nonsense."""
    return PenstockError(f"the answer cannot be read: {error}")


def _filled(rows: int, like: Array) -> Array:
    shape = (rows, *like.shape[1:])
    filled: Array = np.zeros(shape, like.dtype)
    if like.dtype == object:
        filled[...] = b""
    return filled


def _cannot_join(first: Signature, other: Signature) -> ModelError:
    return ModelError(
        "the model's outputs differ in shape or dtype between rows and cannot be joined: "
        f"{_text(first)} and {_text(other)}; ask for these rows in calls of their own"
    )


def _text(signature: Signature) -> str:
    return ", ".join(f"{tensor.name or 'output'}: {tensor}" for tensor in signature)
