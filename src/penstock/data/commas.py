"""CSV files: rows found by an index of offsets, fields typed by what the first rows hold.

A field that is empty or is not of its column's type makes its row fail, as does a row with too
many or too few fields; `features` says what a column is, `fill` what an empty field means.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.data.chunk import Array, Fault
from penstock.data.features import Features, blank, chosen, lost, numpy_dtype
from penstock.data.files import read_range
from penstock.data.joined import Block
from penstock.data.lineindex import csv_record, line_starts, sampled
from penstock.errors import ConfigError, InputError
from penstock.spec import STRING, Signature, TensorSpec

SAMPLED_ROWS = 1000
_INT64 = -(1 << 63)
_TRUTH = {"true": True, "false": False}


class CommaFile:
    """One CSV file, as a `Reader`. `header` names the columns where the file does not."""

    def __init__(
        self,
        path: str,
        columns: Sequence[str] | None,
        features: Features,
        delimiter: str = ",",
        header: Sequence[str] | None = None,
        fill: Mapping[str, Any] | None = None,
    ) -> None:
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise ConfigError(f"delimiter: expected one character, got {delimiter!r}")
        self._path, self._delimiter = path, delimiter
        d = re.escape(delimiter)
        self._field = re.compile(f'"((?:[^"]++|"")*+)"([^{d}]*+)|((?:[^{d}"][^{d}]*+)?+)')
        self._starts = line_starts(path, csv_record(delimiter))
        self._fill = dict(fill or {})
        self._names = list(header or ())
        self._names = self._names or self._header()
        self.rows = len(self._starts) - 1
        names = chosen(self._names, columns, path)
        self._places = {name: at for at, name in enumerate(self._names)}
        sample = [row for row in self._fields(0, sampled(self._starts, SAMPLED_ROWS))[0] if row]
        self.signature: Signature = tuple(
            self._checked(features[name], name)
            if name in features
            else _guess([row[at] for row in sample], name)
            for name, at in ((name, self._places[name]) for name in names)
        )

    def read(self, start: int, stop: int, names: Sequence[str]) -> Block:
        """Parse these rows."""
        rows, faults = self._fields(start, stop)
        specs = {spec.name: spec for spec in self.signature}
        arrays = {}
        for name in names:
            at = self._places[name]
            texts = [row[at] if row else "" for row in rows]
            arrays[name] = _typed(texts, specs[name], faults, self._fill.get(name))
        return arrays, faults

    def sizes(self, start: int, stop: int, names: Sequence[str]) -> Array:
        """Of the lines."""
        return np.diff(self._starts[start : stop + 1])

    def _header(self) -> list[str]:
        if len(self._starts) < 2:
            raise InputError(f"{self._path}: expected a line that names the columns, got no lines")
        rows, faults = self._fields(0, 1)
        if faults:
            raise InputError(f"{self._path}: the line that names the columns: {faults[0].message}")
        self._starts = self._starts[1:]
        return [name or f"column{at}" for at, name in enumerate(rows[0])]  # as pandas' index

    def _fields(self, start: int, stop: int) -> tuple[list[list[str]], dict[int, Fault]]:
        """The fields of each row; none where a row is not as wide as the header."""
        low = int(self._starts[start])
        data = read_range(self._path, low, int(self._starts[stop]))
        offsets = (self._starts[start : stop + 1] - low).tolist()
        rows: list[list[str]] = []
        faults: dict[int, Fault] = {}
        for row in range(stop - start):
            try:
                fields = self._split(data[offsets[row] : offsets[row + 1]].decode().rstrip("\r\n"))
            except ValueError as error:
                faults[row] = Fault("text", str(error))
                fields = []
            else:
                if len(fields) != len(self._names or fields):
                    message = f"expected {len(self._names)} fields, got {len(fields)}"
                    faults[row] = Fault("fields", message)
                    fields = []
            rows.append(fields)
        return rows, faults

    def _split(self, text: str) -> list[str]:
        if '"' not in text:
            return text.split(self._delimiter)
        fields, at = [], 0
        while True:
            match = self._field.match(text, at)
            assert match is not None
            quoted, tail, bare = match.groups()
            fields.append(bare if quoted is None else quoted.replace('""', '"') + tail)
            at = match.end()
            if at == len(text):
                return fields
            if text[at] != self._delimiter:
                raise ValueError("a quote is not closed")
            at += 1

    def _checked(self, spec: TensorSpec, name: str) -> TensorSpec:
        if spec.shape:
            raise InputError(
                f"{self._path}: column {name!r}: a field of CSV has no axes; got {spec}"
            )
        return spec


def _guess(texts: Sequence[str], name: str) -> TensorSpec:
    filled = [text for text in texts if text != ""]
    for dtype, parse in (("int64", _whole), ("float64", _fraction), ("bool", _truth)):
        if filled and _all(parse, filled):
            longer = dtype == "int64" and any(
                not _INT64 <= _whole(text) < -_INT64 for text in filled
            )
            return TensorSpec(STRING if longer else dtype, (), name)
    return TensorSpec(STRING, (), name)


def _all(parse: Callable[[str], Any], texts: Sequence[str]) -> bool:
    for text in texts:
        try:
            parse(text)
        except OverflowError:  # a number, of which its row will be told that it is too large
            continue
        except (ValueError, KeyError):
            return False
    return True


def _truth(text: str) -> bool:
    return _TRUTH[text.strip().lower()]


def _whole(text: str) -> int:
    if "_" in text:  # Python's, not CSV's
        raise ValueError(text)
    return int(text)


def _fraction(text: str) -> float:
    if "_" in text:
        raise ValueError(text)
    value = float(text)
    if math.isinf(value) and "inf" not in text.lower():
        raise OverflowError(text)
    return value


def _typed(texts: list[str], spec: TensorSpec, faults: dict[int, Fault], fill: Any) -> Array:
    if spec.dtype == STRING:
        array = blank(spec, len(texts))
        array[:] = [str(fill) if fill is not None and text == "" else text for text in texts]
        return array
    dtype = numpy_dtype(spec.dtype)
    kind = dtype.kind if dtype.kind in "biu" else "f"
    parse: Callable[[str], Any] = {"b": _truth, "i": _whole, "u": _whole, "f": _fraction}[kind]
    array = np.zeros(len(texts), np.float64 if kind == "f" else dtype)
    for row, text in enumerate(texts):
        if row in faults:
            continue
        try:
            array[row] = fill if fill is not None and text == "" else parse(text)
        except (ValueError, KeyError, OverflowError):
            faults[row] = _misfit(text, spec)
    for row in np.flatnonzero(lost(array, dtype)).tolist():
        faults[row] = _misfit(texts[row], spec)
        array[row] = 0
    return array.astype(dtype, copy=False)


def _misfit(text: str, spec: TensorSpec) -> Fault:
    kind, got = ("type", repr(text)) if text else ("null", "nothing")
    return Fault(kind, f"{spec.name!r}: expected {spec.dtype}, got {got}")
