"""Ways out: a sink writes *parts*, some rows each, and joins parts into what one write would be.

The same rows give the same bytes: no times, no names, fixed settings. What `join` makes does not
depend on how rows were cut into parts. Sinks write to files that are open; making a file appear
whole or not at all is `atomic`'s.
"""

from __future__ import annotations

import abc
import inspect
import os
from collections.abc import Iterable, Mapping
from typing import IO, Any

import numpy as np

from penstock.data.chunk import Array
from penstock.errors import ConfigError, InputError

ONLY = "output"  # what a bare array is called where columns have names
SUFFIXES = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".npy": "npy",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tfrecord": "tfrecord",
    ".csv": "csv",
}


class Sink(abc.ABC):
    """Rows to a file of one format. Holds settings, and nothing open."""

    suffix = ""
    keeps_keys = True

    def __init__(self, key: str = "key") -> None:
        self.key = key

    def write(
        self, file: IO[bytes], columns: Mapping[str, Array], keys: Array | None = None
    ) -> None:
        """Write a part. All columns have as many rows as there are keys."""
        self._write(file, self._named(columns, keys))

    @abc.abstractmethod
    def _write(self, file: IO[bytes], columns: dict[str, Array]) -> None:
        """Write these columns."""

    @abc.abstractmethod
    def join(self, parts: Iterable[str], file: IO[bytes]) -> None:
        """Write what these parts hold, in this order; some may come later than others."""

    def count(self, file: IO[bytes]) -> int | None:
        """How many rows a file has; `None` where only reading all of it would tell."""
        return None

    def starts(self, path: str) -> Array | None:
        """Where each row of a file begins, and the last one ends; `None` where rows are no pieces
        of a file that could be put in another order as they are."""
        return None

    def _named(self, columns: Mapping[str, Array], keys: Array | None) -> dict[str, Array]:
        named: dict[str, Array] = {}
        if keys is not None:
            if not self.keeps_keys:
                raise InputError(
                    f"{self.suffix} files have no place for keys: write them beside it"
                )
            named[self.key] = np.asarray(keys)
        for name, array in columns.items():
            label = name or ONLY
            if label in named:
                raise InputError(f"two columns are called {label!r}; rename one, or the key")
            named[label] = np.asarray(array)
        counts = {name: array.shape[0] if array.ndim else None for name, array in named.items()}
        if not named or len(set(counts.values())) > 1 or None in counts.values():
            raise InputError(f"expected columns with as many rows each, got {counts}")
        return named


def open_sink(path: str | os.PathLike[str], *, format: str | None = None, **options: Any) -> Sink:
    """The sink for a file, by its suffix or `format`. `key` names the column of keys."""
    from penstock.data.arraysink import NpySink
    from penstock.data.recordsink import RecordSink
    from penstock.data.tablesinks import ArrowSink, ParquetSink
    from penstock.data.textsinks import CsvSink, JsonSink

    sinks: dict[str, type[Sink]] = {
        "parquet": ParquetSink,
        "arrow": ArrowSink,
        "npy": NpySink,
        "jsonl": JsonSink,
        "tfrecord": RecordSink,
        "csv": CsvSink,
    }
    kind = format or SUFFIXES.get(os.path.splitext(os.fspath(path))[1].lower(), "")
    if kind not in sinks:
        expected = ", ".join(sinks) if format else ", ".join(SUFFIXES)
        raise ConfigError(f"{format or os.fspath(path)!r}: expected one of {expected}")
    possible = list(inspect.signature(sinks[kind]).parameters)
    unknown = [name for name in options if name not in possible]
    if unknown:
        raise ConfigError(
            f"{kind}: unknown option {', '.join(unknown)}; expected {', '.join(possible)}"
        )
    return sinks[kind](**options)
