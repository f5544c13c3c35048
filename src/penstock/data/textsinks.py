"""JSON lines and CSV: a line a row, numbers written so that they read back the same.

A `float32` is written with the few digits that tell it from its neighbours, not with those of the
double that it would become. Bytes are taken for UTF-8; what is none is written as `\\xNN`.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Sequence
from typing import IO, Any

import numpy as np

from penstock.data.chunk import Array
from penstock.data.files import open_binary
from penstock.data.lineindex import csv_record, line_starts
from penstock.data.sinks import Sink
from penstock.errors import ConfigError, InputError


class JsonSink(Sink):
    """An object a line; arrays are lists. NaN and infinities are written as Python does."""

    suffix = ".jsonl"

    def _write(self, file: IO[bytes], columns: dict[str, Array]) -> None:
        values = [plain(array).tolist() for array in columns.values()]
        for row in zip(*values, strict=True):
            line = json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False)
            file.write(line.encode(errors="backslashreplace") + b"\n")

    def join(self, parts: Iterable[str], file: IO[bytes]) -> None:
        """One after the other."""
        for part in parts:
            with open_binary(part) as source:
                shutil.copyfileobj(source, file, 1 << 20)

    def starts(self, path: str) -> Array:
        """Of the lines."""
        return line_starts(path)


class CsvSink(Sink):
    """A header and a line a row; an array becomes a column for each of its elements."""

    suffix = ".csv"

    def __init__(self, key: str = "key", delimiter: str = ",") -> None:
        super().__init__(key)
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise ConfigError(f"delimiter: expected one character, got {delimiter!r}")
        self._delimiter = delimiter

    def _write(self, file: IO[bytes], columns: dict[str, Array]) -> None:
        names: list[str] = []
        fields: list[list[Any]] = []
        for name, array in columns.items():
            flat = plain(array).reshape(len(array), math.prod(array.shape[1:]))
            for at, place in enumerate(np.ndindex(array.shape[1:])):
                names.append("_".join([name, *map(str, place)]))
                fields.append(flat[:, at].tolist())
        file.write(self._line(names))
        for row in zip(*fields, strict=True):
            file.write(self._line(row))

    def join(self, parts: Iterable[str], file: IO[bytes]) -> None:
        """One after the other, with one header."""
        header = None
        for part in parts:
            with open_binary(part) as source:
                found = self._header(source, part)
                if header is None:
                    file.write(found)
                elif found != header:
                    raise InputError(f"{part}: expected the header {header!r}, got {found!r}")
                header = found
                shutil.copyfileobj(source, file, 1 << 20)

    def starts(self, path: str) -> Array:
        """Of the records after the header."""
        return line_starts(path, csv_record(self._delimiter))[1:]

    def _header(self, source: IO[bytes], part: str) -> bytes:
        """The first line, to the first break that lies outside quotes."""
        found = source.readline()
        while found.count(b'"') % 2:
            more = source.readline()
            if not more:
                raise InputError(f"{part}: expected a header, got {found!r}")
            found += more
        return found

    def _line(self, row: Sequence[Any]) -> bytes:
        fields = [self._field(value) for value in row]
        line = self._delimiter.join(fields) or '""'
        return line.encode(errors="backslashreplace") + b"\n"

    def _field(self, value: Any) -> str:
        text = value if isinstance(value, str) else str(value)
        if any(mark in text for mark in (self._delimiter, '"', "\n", "\r")):
            return '"' + text.replace('"', '""') + '"'
        return text


def plain(array: Array) -> Array:
    """What JSON and CSV can hold: Python's numbers in their shortest form, and texts."""
    if array.dtype.kind in "OSUT":
        texts = np.empty(array.size, object)
        texts[:] = [_text(item) for item in array.ravel().tolist()]
        return texts.reshape(array.shape)
    if array.dtype.kind == "c":
        raise InputError("complex numbers have no place in JSON and CSV: write their parts")
    if array.dtype.kind == "f" and array.dtype != np.float64:
        return array.astype("U32").astype(np.float64)
    return array.astype(np.float32).astype(np.float64) if array.dtype.kind == "V" else array


def _text(item: Any) -> str:
    if isinstance(item, bytes):
        return item.decode(errors="backslashreplace")
    if not isinstance(item, str):
        raise InputError(f"JSON and CSV: expected numbers or texts, got a {type(item).__name__}")
    return item
