"""JSON lines: an object a line, found by an index of offsets; lists become arrays.

A line that is no JSON object, lacks a field, or holds something of another type or shape makes its
row fail. What a field is comes from `features`, or from the first rows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.data.chunk import Array, Fault
from penstock.data.features import Features, chosen, infer, stack
from penstock.data.files import read_range
from penstock.data.joined import Block
from penstock.data.lineindex import line_starts, sampled
from penstock.errors import InputError
from penstock.spec import Signature

SAMPLED_ROWS = 100
_HUGE = re.compile(rb"[eE]\+?\d{3}")


class JsonFile:
    """One file of JSON lines, as a `Reader`."""

    def __init__(
        self,
        path: str,
        columns: Sequence[str] | None,
        features: Features,
        fill: Mapping[str, Any] | None = None,
    ) -> None:
        self._path = path
        self._starts = line_starts(path)
        self._fill = dict(fill or {})
        self.rows = len(self._starts) - 1
        looked_at, faults = self._objects(0, sampled(self._starts, SAMPLED_ROWS))
        sample = [row for row in looked_at if row]
        if faults and not sample and not features:
            raise InputError(
                f"{path}: expected a JSON object a line, got none in the first lines "
                f"({faults[min(faults)].message})"
            )
        found = list(dict.fromkeys(name for row in sample for name in row))
        names = chosen(sorted({*found, *features}, key=[*found, *features].index), columns, path)
        self.signature: Signature = tuple(
            features.get(name) or self._infer(sample, name) for name in names
        )

    def read(self, start: int, stop: int, names: Sequence[str]) -> Block:
        """Parse these lines."""
        objects, faults = self._objects(start, stop)
        specs = {spec.name: spec for spec in self.signature}
        arrays = {}
        for name in names:
            values = [_get(row, name, self._fill.get(name)) for row in objects]
            found: dict[int, Fault] = {}
            arrays[name] = stack(values, specs[name], found)
            for row, fault in found.items():
                faults.setdefault(row, fault)
        return arrays, faults

    def sizes(self, start: int, stop: int, names: Sequence[str]) -> Array:
        """Of the lines."""
        return np.diff(self._starts[start : stop + 1])

    def _objects(self, start: int, stop: int) -> tuple[list[dict[str, Any]], dict[int, Fault]]:
        low = int(self._starts[start])
        data = read_range(self._path, low, int(self._starts[stop]))
        offsets = (self._starts[start : stop + 1] - low).tolist()
        rows: list[dict[str, Any]] = []
        faults: dict[int, Fault] = {}
        number = _fraction if _HUGE.search(data) else None
        for row in range(stop - start):
            try:
                value = json.loads(data[offsets[row] : offsets[row + 1]], parse_float=number)
            except (ValueError, RecursionError) as error:
                faults[row], value = Fault("text", f"no JSON: {error}"), {}
            if not isinstance(value, dict):
                got = type(value).__name__
                faults[row], value = Fault("type", f"expected an object, got a {got}"), {}
            rows.append(value)
        return rows, faults

    def _infer(self, sample: Sequence[Mapping[str, Any]], name: str) -> Any:
        try:
            return infer((row.get(name) for row in sample), name)
        except (ValueError, InputError) as error:
            raise InputError(
                f"{self._path}: field {name!r} does not fit into an array ({error}); "
                "say what it is with features=…, or leave it out with columns=…"
            ) from None


def _fraction(text: str) -> float | str:
    """A number; one that is larger than any fraction stays a text, which fits nowhere."""
    value = float(text)
    return value if math.isfinite(value) else text


def _get(row: Mapping[str, Any], name: str, fill: Any) -> Any:
    value = row.get(name)
    return fill if value is None else value
