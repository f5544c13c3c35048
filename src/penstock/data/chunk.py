"""What a source gives: some rows in order, with their keys, and those that could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Fault(NamedTuple):
    """Why a row could not be read: one word for machines, a sentence for people."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that could not be read. `row` counts from the source's beginning."""

    row: int
    key: str | int
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows `start` to `stop` of a source.

    Every row has its place in every column and in `keys`, so a chunk's size is what was asked for.
    Where a row failed, its place holds zeros (empty texts), and `failures` says why. Arrays may
    be read-only views of a mapped file.
    """

    start: int
    columns: Mapping[str, Array]
    keys: Array
    failures: tuple[Failure, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def stop(self) -> int:
        """The row after the last one."""
        return self.start + len(self)

    @property
    def good(self) -> Array:
        """True for the rows that were read."""
        mask = np.ones(len(self), bool)
        mask[[failure.row - self.start for failure in self.failures]] = False
        return mask

    def inputs(self) -> Any:
        """What `predict` takes: the array where there is only one, otherwise a dict of them."""
        return self.columns[""] if set(self.columns) == {""} else dict(self.columns)
