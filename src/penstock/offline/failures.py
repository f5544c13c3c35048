"""Rows that failed: what is written of each into the side file, in the order of the input."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from penstock.data.chunk import Failure
from penstock.errors import InputError, ModelError, NoWorkers, PenstockError, WorkerLost

_KINDS: tuple[tuple[type[PenstockError], str], ...] = (
    (ModelError, "model"),
    (WorkerLost, "worker"),
    (InputError, "input"),
)
_LONGEST = 2000


def is_of_rows(error: BaseException) -> bool:
    """Whether these rows are at fault: others may do better. If not, no row can be predicted."""
    return isinstance(error, (ModelError, InputError, WorkerLost)) and not isinstance(
        error, NoWorkers
    )


def failure_of(row: int, key: Any, error: BaseException, kind: str = "") -> Failure:
    """A row that was read, and then failed."""
    kind = kind or next(word for type_, word in _KINDS if isinstance(error, type_))
    text = str(error) or type(error).__name__
    return Failure(row, key if isinstance(key, str) else int(key), kind, text[:_LONGEST])


def lines(failures: Iterable[Failure]) -> bytes:
    """A JSON object a line."""
    return b"".join(
        json.dumps(
            {"row": f.row, "key": f.key, "kind": f.kind, "message": f.message}, ensure_ascii=False
        ).encode(errors="backslashreplace")
        + b"\n"
        for f in failures
    )


def by_kind(failures: Iterable[Failure]) -> dict[str, int]:
    """How many of each kind."""
    return dict(Counter(failure.kind for failure in failures))
