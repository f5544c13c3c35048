"""A client process: asks in every way there is, and checks every answer.

    python -m benchmarks.soak.client ADDRESS LEDGER FIRST_NUMBER PATIENCE [DIGITS]

Without a file of digits, it asks for checksums. Goes on until its input ends, then waits for what
is open and exits. Usually it is killed before. In `predict` and `map` it waits for as long as they
take: whoever runs it sees in the ledger when that is too long.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.soak.digits import Digits
from benchmarks.soak.ledger import Ledger
from benchmarks.soak.work import Array, Checksum, Work
from penstock import Client, connect
from penstock.errors import PenstockError, RowsFailed

_KNOWN = ("DeadlineExceeded", "Overloaded", "WorkerLost", "EngineClosed")


class Asker:
    """Makes requests, remembers what they carry, enters how they end."""

    def __init__(
        self, client: Client, work: Work, ledger: Ledger, first: int, patience: float
    ) -> None:
        self._client = client
        self._work = work
        self._ledger = ledger
        self._next = first
        self._patience = patience  # seconds after which an answer is missing
        self._chance = np.random.default_rng(first)

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Ask until told otherwise."""
        ways = (self._predict, self._submit, self._map)
        while goes_on():
            ways[int(self._chance.integers(len(ways)))]()

    def _draw(self, most: int) -> tuple[list[int], Array]:
        """Rows for one call, and their numbers."""
        rows = self._work.draw(self._chance, most)
        numbers = list(range(self._next, self._next + len(rows)))
        self._next += len(rows)
        return numbers, rows

    def _predict(self) -> None:
        """Many rows in one call, some of which may fail."""
        numbers, rows = self._draw(100)
        self._ledger.enter("asked", *numbers)
        try:
            outputs = self._client.predict(self._work.inputs(numbers, rows))
            failed: dict[int, PenstockError] = {}
        except RowsFailed as error:
            outputs, failed = error.results, error.errors
        except PenstockError as error:
            self._enter_error(error, numbers)
            return
        for at, number in enumerate(numbers):
            if at in failed:
                self._enter_error(failed[at], [number])
            else:
                self._check(number, rows[at], self._work.row_of(outputs, at))

    def _submit(self) -> None:
        """Single rows, all at once; some with a deadline, some cancelled."""
        numbers, rows = self._draw(64)
        open_calls: list[tuple[int, Any, Any, bool]] = []
        for number, row in zip(numbers, rows, strict=True):
            deadline = 0.005 if self._chance.random() < 0.05 else None
            inputs = self._work.inputs([number], row[None])
            self._ledger.enter("asked", number)
            try:
                answer = self._client.submit(inputs, deadline=deadline)
            except PenstockError as error:
                self._enter_error(error, [number], deadline is not None)
                continue
            if self._chance.random() < 0.05:
                answer.cancel()
            open_calls.append((number, row, answer, deadline is not None))
        for number, row, answer, hurried in open_calls:
            try:
                outputs = answer.result(self._patience)
            except CancelledError:
                self._ledger.enter("Cancelled", number)
            except PenstockError as error:
                self._enter_error(error, [number], hurried)
            except TimeoutError:
                self._ledger.enter("MISSING", number)
            else:
                self._check(number, row, self._work.row_of(outputs, 0))

    def _map(self) -> None:
        """A stream of rows, in order or as they come."""
        numbers, rows = self._draw(200)
        ordered = bool(self._chance.random() < 0.5)
        window = int(self._chance.integers(1, 64))
        inputs = self._work.inputs(numbers, rows)

        def stream() -> Iterator[Any]:
            for at, number in enumerate(numbers):
                self._ledger.enter("asked", number)
                yield self._work.row_of(inputs, at)

        answers = self._client.map(stream(), ordered=ordered, window=window, return_errors=True)
        if ordered:
            for number, row, answer in zip(numbers, rows, answers, strict=True):
                self._settle(number, row, answer)
        else:
            self._match(dict(zip(numbers, rows, strict=True)), answers)

    def _settle(self, number: int, row: Any, answer: Any) -> None:
        if isinstance(answer, PenstockError):
            self._enter_error(answer, [number])
        else:
            self._check(number, row, answer)

    def _match(self, asked: dict[int, Any], answers: Iterator[Any]) -> None:
        """Answers as they come show which request they belong to; errors do not."""
        errors: list[PenstockError] = []
        nobodys = 0
        first = min(asked)
        for answer in answers:
            if isinstance(answer, PenstockError):
                errors.append(answer)
                continue
            number = self._work.owner(asked, answer)
            if number is None:
                nobodys += 1  # wrong, twice, or somebody else's
            else:
                self._check(number, asked.pop(number), answer)
        for number in [*asked, *[first] * (nobodys - len(asked))]:
            if nobodys:
                nobodys -= 1
                self._ledger.enter("WRONG", number)
            elif errors:
                self._enter_error(errors.pop(), [number])
            else:
                self._ledger.enter("MISSING", number)

    def _check(self, number: int, row: Any, answer: Any) -> None:
        right = self._work.is_right(number, row, answer)
        self._ledger.enter("right" if right else "WRONG", number)

    def _enter_error(self, error: PenstockError, numbers: list[int], hurried: bool = False) -> None:
        kind = type(error).__name__
        expected = error.retryable or (hurried and kind == "DeadlineExceeded")
        if kind not in _KNOWN or not expected:
            print(f"unexpected: {kind}: {error}", file=sys.stderr, flush=True)
            kind = "OTHER ERROR"
        self._ledger.enter(kind, *numbers)


def main(arguments: list[str]) -> None:
    """Be a client."""
    address, ledger, first, patience, *digits = arguments
    work = Digits(Path(digits[0])) if digits else Checksum()
    ends = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ends.set()), daemon=True).start()
    with connect(address, wait=30) as client:
        asker = Asker(client, work, Ledger(Path(ledger)), int(first), float(patience))
        asker.run(lambda: not ends.is_set())


if __name__ == "__main__":
    main(sys.argv[1:])
