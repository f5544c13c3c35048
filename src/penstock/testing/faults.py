"""What can go wrong in a `LocalEngine`, on purpose. Reached as `engine.faults`."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.errors import Overloaded, PenstockError
from penstock.spec import Signature
from penstock.transport.tensors import Array, structure


class Faults:
    """The faults that are set. All of them last until `clear`, except those that are counted."""

    def __init__(self) -> None:
        self._errors: deque[PenstockError] = deque()
        self._deadly: Callable[[Any], bool] = _harmless
        self._deadly_to: str | None = None
        self._lock = threading.Lock()
        self.seconds_a_batch = 0.0

    def fail_next(self, error: PenstockError | type[PenstockError], times: int = 1) -> None:
        """The next `times` calls end with this error; the model does not see them."""
        if isinstance(error, type):
            error = error("injected by a test")
        with self._lock:
            self._errors.extend(error for _ in range(times))

    def overload(self, times: int = 1) -> None:
        """The next `times` calls are refused as `Overloaded`, as by a full queue."""
        self.fail_next(Overloaded("the engine's queue is full (injected by a test)"), times)

    def lose_worker_on(self, predicate: Callable[[Any], bool], *, model: str | None = None) -> None:
        """Rows for which `predicate(row)` is true kill the worker, as a real one would be killed.

        The row is an array without the rows axis, or a dict of them; `model` limits it to one. As
        in a real engine, the rows of that batch run again one by one: the guilty ones end with
        `WorkerLost`, the others well.
        """
        self._deadly = predicate
        self._deadly_to = model

    def delay(self, seconds: float) -> None:
        """Every batch takes so long by the engine's clock. A `ManualClock` is moved by it."""
        self.seconds_a_batch = seconds

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        with self._lock:
            self._errors.clear()
        self._deadly = _harmless
        self.seconds_a_batch = 0.0

    # ── what the engine asks ───────────────────────────────────────────────────────────────────

    def next_error(self) -> PenstockError | None:
        """The error that the call that comes now ends with."""
        with self._lock:
            if not self._errors:
                return None
            given = self._errors.popleft()
        error = copy.copy(given)  # each call raises one of its own
        error.__cause__ = given.__cause__
        return error

    def kills_worker(
        self, model: str, signature: Signature, arrays: list[Array], rows: int
    ) -> bool:
        """Whether a batch with these rows would end its worker."""
        if self._deadly is _harmless or self._deadly_to not in (None, model):
            return False
        return any(
            self._deadly(structure(signature, [array[row] for array in arrays]))
            for row in range(rows)
        )


def _harmless(row: Any) -> bool:
    return False
