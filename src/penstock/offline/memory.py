"""Results that stay in memory, for `predict` without an output."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.data.chunk import Array, Failure
from penstock.errors import ModelError, PenstockError, RowsFailed, WorkerLost
from penstock.offline.failures import by_kind
from penstock.offline.forms import concatenated
from penstock.offline.parts import Content, Facts

_ERRORS: dict[str, type[PenstockError]] = {"model": ModelError, "worker": WorkerLost}


class MemoryStore:
    """Has a `PartStore`'s face as far as a labour sees it."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], Content] = {}

    def write(self, part: int, content: Content, piece: int = 0) -> Facts:
        """Keep it."""
        self._parts[part, piece] = content
        failed = len(content.failures)
        kinds = by_kind(content.failures)
        return {"written": len(content.keys), "failed": failed, "kinds": kinds, "files": []}

    def publish(self, part: int, facts: Facts) -> None:
        """It is there already."""
        return None

    def outputs(self, empty: dict[str, Array]) -> Any:
        """All rows, as the model answers them. Raises `RowsFailed` as `Client.predict` does."""
        parts = [self._parts[part] for part in sorted(self._parts)]
        failures = [failure for part in parts for failure in part.failures]
        full = [part for part in parts if len(part.keys)]
        columns = empty
        if full:
            names = full[0].columns
            columns = {name: concatenated([part.columns[name] for part in full]) for name in names}
        if failures:
            rows = np.concatenate([part.rows for part in full]) if full else np.empty(0, np.int64)
            raise _rows_failed(columns if full else {}, rows, failures)
        return _bare(columns)


def _rows_failed(columns: dict[str, Array], rows: Array, failures: list[Failure]) -> RowsFailed:
    count = len(rows) + len(failures)
    results: dict[str, Array] = {}
    for name, column in columns.items():
        results[name] = np.zeros((count, *column.shape[1:]), column.dtype)
        if column.dtype == object:
            results[name][...] = b""
        results[name][rows] = column
    errors = {f.row: _ERRORS.get(f.kind, PenstockError)(f.message) for f in failures}
    return RowsFailed(count, errors, _bare(results) if results else None)


def _bare(columns: dict[str, Array]) -> Any:
    return columns[""] if set(columns) == {""} else columns
