"""Rows to batches and parts: the same in every run, whoever takes part.

A batch is what the model gets at a time; all but the last have the same size. A part is a whole
number of batches. At most two parts of each labour are not recorded, so a crash costs the work
of a *chunk*, two parts, for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PARTS_AHEAD = 2
_PART_ROWS = 16_384
_PART_BYTES = 64 << 20
_PART_BATCHES = 8  # at least: a part costs a few writes to the disk
_PART_SECONDS = 0.3  # and these take a while, in which a fast device must have enough to do
_PARTS_EACH = 8  # at least, for each of those that decode: one that ends first takes another
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class Cut:
    """Rows a batch, rows a part, and rows that are read at a time (whole batches)."""

    batch: int
    part: int
    block: int

    def parts(self, rows: int) -> int:
        """How many parts so many rows have."""
        return -(-rows // self.part)

    def blocks(self, part: int, rows: int) -> Iterator[tuple[int, int]]:
        """The positions of a part, a block at a time."""
        stop = min((part + 1) * self.part, rows)
        for at in range(part * self.part, stop, self.block):
            yield at, min(at + self.block, stop)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"batch": self.batch, "part": self.part, "block": self.block}


def cut(
    batch: int,
    row_bytes: int,
    chunk: int = 0,
    singly: bool = False,
    rate: float = 0.0,
    each: int = 0,
) -> Cut:
    """For rows of so many bytes, in and out. `chunk` says how much a crash may cost.

    `singly`: rows are decoded one by one, which takes long beside all else: a block of a single
    batch costs no more, nor does a part, and loaders share few rows more evenly: `each` is how many
    there are for each loader, if that is known. `rate`: rows a second that the devices can do, as
    far as that is known.
    """
    fitting = _PART_BYTES // max(row_bytes, 1)
    least = batch if singly else max(batch * _PART_BATCHES, int(rate * _PART_SECONDS))
    wanted = chunk // PARTS_AHEAD if chunk else min(_PART_ROWS, max(fitting, least))
    if singly and each and not chunk:
        wanted = min(wanted, each // _PARTS_EACH)
    part = max(wanted // batch, 1) * batch
    block = max(min(_BLOCK_BYTES // max(row_bytes, 1), part) // batch, 1) * batch
    return Cut(batch, part, batch if singly else block)
