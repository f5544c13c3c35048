"""Python objects as sources: what has `[…]` and a length, and what can only be gone through.

An element is a row: an array, a number or a text, or a dict of these. A tuple is what training
takes: the inputs, a label, perhaps a weight. The first row says what all rows look like.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from penstock.data.chunk import Array, Chunk, Fault
from penstock.data.features import infer, stack
from penstock.data.joined import ROW_KEY, check_key, key_array
from penstock.data.source import Source, bounds, chunk_of, digest
from penstock.errors import InputError
from penstock.spec import Signature

_ROLES = ("", "label", "weight")


def columns_of(element: Any) -> dict[str, Any]:
    """An element's columns."""
    if isinstance(element, Mapping):
        return {str(name): value for name, value in element.items()}
    if isinstance(element, tuple) and 1 <= len(element) <= len(_ROLES):
        first = columns_of(element[0])
        return first | dict(zip(_ROLES[1:], element[1:], strict=False))
    return {"": element}


class _Rows(Source):
    """What both kinds share: elements to columns and keys."""

    def __init__(self, name: str, first: Any, key: str | None) -> None:
        self._name = name
        columns = {} if first is None else columns_of(first)
        self._signature = tuple(infer([value], column) for column, value in columns.items())
        self._key = None if key == ROW_KEY else key
        if self._key is not None and first is not None:
            check_key(self._key, self._signature)

    @property
    def signature(self) -> Signature:
        """What the first row is; nothing, where there is none."""
        return self._signature

    def _chunk(self, start: int, elements: list[Any], faults: dict[int, Fault], out: Any) -> Chunk:
        rows = [{} if row in faults else columns_of(value) for row, value in enumerate(elements)]
        columns: dict[str, Array] = {}
        nameless = set(faults)
        for spec in self._signature:
            found: dict[int, Fault] = {}
            values = [row.get(spec.name) for row in rows]
            columns[spec.name] = stack(values, spec, found, (out or {}).get(spec.name))
            for row, fault in found.items():
                faults.setdefault(row, fault)
            if spec.name == self._key:
                nameless |= found.keys()
        keys = np.arange(start, start + len(rows))
        if self._key is not None:
            keys = key_array(columns[self._key]) if rows else np.empty(0, object)
        return chunk_of(start, columns, keys, faults, out, nameless if self._key else ())


class Indexed(_Rows):
    """Something with a length and `[…]`. What raises for a row fails that row alone."""

    def __init__(self, items: Any, name: str, key: str | None = None) -> None:
        self._items = items
        super().__init__(name, _first(items, name), key)

    @property
    def rows(self) -> int:
        """Its length."""
        return len(self._items)

    def read(self, start: int, stop: int, out: Mapping[str, Array] | None = None) -> Chunk:
        """Ask for these items."""
        start, stop = bounds(start, stop, self.rows)
        elements: list[Any] = []
        faults: dict[int, Fault] = {}
        for row in range(start, stop):
            try:
                elements.append(self._items[row])
            except Exception as error:
                elements.append(None)
                faults[row - start] = Fault("python", f"{type(error).__name__}: {error}")
        return self._chunk(start, elements, faults, out)

    def fingerprint(self) -> str:
        """Its name, length, key and a few rows: what lies between may change unnoticed."""
        count = self.rows
        some = [
            self.read(at, at + 1) for at in sorted({0, count // 2, count - 1}) if 0 <= at < count
        ]
        return digest("indexed", self._name, self._key, count, *(_content(chunk) for chunk in some))


class Stream(_Rows):
    """Something that is gone through once, or made anew by `make`."""

    seekable = False

    def __init__(
        self,
        make: Callable[[], Iterable[Any]],
        name: str,
        key: str | None = None,
        once: bool = False,
    ) -> None:
        self._make, self._once = make, once
        self._at = 0
        self._rest: Iterator[Any] = iter(make())
        first = list(itertools.islice(self._rest, 1))
        self._rest = itertools.chain(first, self._rest)
        super().__init__(name, first[0] if first else None, key)

    @property
    def rows(self) -> None:
        """Nobody knows."""
        return None

    def read(self, start: int, stop: int, out: Mapping[str, Array] | None = None) -> Chunk:
        """Go on from where it stands; what lies between is skipped."""
        start, stop = bounds(start, stop)
        if start != self._at:
            self._go_to(start)
        elements = list(itertools.islice(self._rest, stop - start)) if self._at == start else []
        self._at += len(elements)
        return self._chunk(start, elements, {}, out)

    def _go_to(self, row: int) -> None:
        """Stand before this row, or at the end if there is none."""
        if row < self._at:
            if self._once:
                raise InputError(
                    f"{self._name} can be gone through once: row {row} was asked for after row "
                    f"{self._at - 1}; pass a function that makes it, to begin anew"
                )
            self._rest, self._at = iter(self._make()), 0
        self._at += sum(1 for _ in itertools.islice(self._rest, row - self._at))

    def fingerprint(self) -> str:
        """Only what it is called and looks like, and what its keys are."""
        return digest("stream", self._name, self._signature, self._key)


def _first(items: Any, name: str) -> Any:
    """The first row that can be had."""
    errors = []
    for row in range(min(len(items), 100)):
        try:
            return items[row]
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    if errors:
        raise InputError(f"{name}: none of the first {len(errors)} rows can be had: {errors[0]}")
    return None


def _content(chunk: Chunk) -> str:
    return repr([(name, array.tolist()) for name, array in chunk.columns.items()])
