"""A client process: asks in every way there is, and checks every answer.

    python -m benchmarks.soak.client ADDRESS LEDGER FIRST_NUMBER

Goes on until its input ends, then waits for what is open and exits. Usually it is killed before.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.soak.ledger import Ledger
from benchmarks.soak.work import Array, draw_size, is_right
from penstock import Client, connect
from penstock.errors import PenstockError, RowsFailed

_PATIENCE = 60.0  # seconds after which an answer counts as missing
_WHOLE = 3 << 20  # bytes that one call carries at most
_KNOWN = ("DeadlineExceeded", "Overloaded", "WorkerLost", "EngineClosed")


class Asker:
    """Makes requests, remembers what they carry, enters how they end."""

    def __init__(self, client: Client, ledger: Ledger, first: int) -> None:
        self._client = client
        self._ledger = ledger
        self._next = first
        self._chance = np.random.default_rng(first)

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Ask until told otherwise."""
        ways = (self._predict, self._submit, self._map)
        while goes_on():
            ways[int(self._chance.integers(len(ways)))]()

    def _draw(self, most: int) -> tuple[list[int], Array]:
        """Fresh rows of one size, and their numbers, entered as asked."""
        size = draw_size(self._chance)
        count = int(self._chance.integers(1, max(2, min(most, _WHOLE // (size + 1)))))
        numbers = list(range(self._next, self._next + count))
        self._next += count
        self._ledger.enter("asked", *numbers)
        return numbers, self._chance.integers(0, 256, (count, size), np.uint8)

    def _predict(self) -> None:
        """Many rows in one call, some of which may fail."""
        numbers, data = self._draw(100)
        try:
            outputs = self._client.predict(_inputs(numbers, data))
            failed: dict[int, PenstockError] = {}
        except RowsFailed as error:
            outputs, failed = error.results, error.errors
        except PenstockError as error:
            self._enter_error(error, numbers)
            return
        for row, number in enumerate(numbers):
            if row in failed:
                self._enter_error(failed[row], [number])
            else:
                self._check(
                    number, data[row], {name: array[row] for name, array in outputs.items()}
                )

    def _submit(self) -> None:
        """Single rows, all at once; some with a deadline, some cancelled."""
        numbers, data = self._draw(64)
        open_calls: list[tuple[int, Array, Any, bool]] = []
        for number, row in zip(numbers, data, strict=True):
            deadline = 0.005 if self._chance.random() < 0.05 else None
            try:
                answer = self._client.submit(_inputs([number], row[None]), deadline=deadline)
            except PenstockError as error:
                self._enter_error(error, [number], deadline is not None)
                continue
            if self._chance.random() < 0.05:
                answer.cancel()
            open_calls.append((number, row, answer, deadline is not None))
        for number, row, answer, hurried in open_calls:
            try:
                outputs = answer.result(_PATIENCE)
            except CancelledError:
                self._ledger.enter("Cancelled", number)
            except PenstockError as error:
                self._enter_error(error, [number], hurried)
            except TimeoutError:
                self._ledger.enter("MISSING", number)
            else:
                self._check(number, row, {name: array[0] for name, array in outputs.items()})

    def _map(self) -> None:
        """A stream of rows, in order or as they come."""
        numbers, data = self._draw(200)
        ordered = bool(self._chance.random() < 0.5)
        window = int(self._chance.integers(1, 64))
        stream = (
            {"number": np.uint64(number), "data": row}
            for number, row in zip(numbers, data, strict=True)
        )
        answers = self._client.map(stream, ordered=ordered, window=window, return_errors=True)
        if ordered:
            for number, row, answer in zip(numbers, data, answers, strict=True):
                self._settle(number, row, answer)
        else:
            self._match(dict(zip(numbers, data, strict=True)), answers)

    def _settle(self, number: int, row: Array, answer: Any) -> None:
        if isinstance(answer, PenstockError):
            self._enter_error(answer, [number])
        else:
            self._check(number, row, answer)

    def _match(self, asked: dict[int, Array], answers: Iterator[Any]) -> None:
        """Answers as they come say themselves which request they belong to; errors do not."""
        errors: list[PenstockError] = []
        for answer in answers:
            if isinstance(answer, PenstockError):
                errors.append(answer)
                continue
            number = int(answer["number"])
            if number in asked:
                self._check(number, asked.pop(number), answer)
            else:
                self._ledger.enter("WRONG", number)  # twice, or somebody else's
        for number in list(asked):
            if errors:
                self._enter_error(errors.pop(), [number])
            else:
                self._ledger.enter("MISSING", number)

    def _check(self, number: int, data: Array, answer: dict[str, Array]) -> None:
        self._ledger.enter("right" if is_right(number, data, answer) else "WRONG", number)

    def _enter_error(self, error: PenstockError, numbers: list[int], hurried: bool = False) -> None:
        kind = type(error).__name__
        expected = error.retryable or (hurried and kind == "DeadlineExceeded")
        if kind not in _KNOWN or not expected:
            print(f"unexpected: {kind}: {error}", file=sys.stderr, flush=True)
            kind = "OTHER ERROR"
        self._ledger.enter(kind, *numbers)


def _inputs(numbers: list[int], data: Array) -> dict[str, Array]:
    return {"number": np.array(numbers, np.uint64), "data": data}


def main(arguments: list[str]) -> None:
    """Be a client."""
    address, ledger, first = arguments
    ends = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ends.set()), daemon=True).start()
    with connect(address, wait=30) as client:
        Asker(client, Ledger(Path(ledger)), int(first)).run(lambda: not ends.is_set())


if __name__ == "__main__":
    main(sys.argv[1:])
