"""Rows that failed: what is written of each into the side file, in the order of the input."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from penstock.data.chunk import Failure
from penstock.data.files import Shorter, open_binary
from penstock.errors import InputError, ModelError, NoWorkers, PenstockError, WorkerLost

_KINDS: tuple[tuple[type[PenstockError], str], ...] = (
    (ModelError, "model"),
    (WorkerLost, "worker"),
    (InputError, "input"),
)
_LONGEST = 2000
_SHOWN = 200


def is_of_rows(error: BaseException) -> bool:
    """Whether these rows are at fault: others may do better. If not, no row can be predicted."""
    return isinstance(error, (ModelError, InputError, WorkerLost)) and not isinstance(
        error, (NoWorkers, Shorter)
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


def first_of(paths: Iterable[str]) -> str:
    """The first row in these side files, in few words; "" where there is none."""
    for path in paths:
        with open_binary(path) as file:
            found = json.loads(file.readline())
        text = readable(" ".join(f"{found['key']}: {found['message']}".split()))
        return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return ""


def readable(text: str) -> str:
    """For people: names of files may hold bytes that are no text, and nobody can print those."""
    return text.encode(errors="backslashreplace").decode()


def by_kind(failures: Iterable[Failure]) -> dict[str, int]:
    """How many of each kind."""
    return dict(Counter(failure.kind for failure in failures))
