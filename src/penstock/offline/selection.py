"""Which rows a job is about: all of them, or those of its shard; and reading some of them.

A position counts within the job, a row within the source.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock.data.chunk import Array, Chunk, Failure, Fault
from penstock.data.features import blank
from penstock.data.shards import shards
from penstock.data.source import Source, chunk_of, runs_of
from penstock.errors import ConfigError
from penstock.offline.parts import Content
from penstock.offline.settings import JobSettings

_ENDLESS = 1 << 62
_SPREAD = 16  # up to so far apart, the rows between are read, too, where that costs little
_BETWEEN_BYTES = 512 << 10  # between two rows that are decoded anyway: to read anew takes as long
_SPAN_BYTES = 64 << 20  # of rows that are wanted and rows between them, at a time
_RUN_BYTES = 16 << 20  # of rows that are wanted


class Selection:
    """Rows in rising order; `rows` is a range, or an array."""

    def __init__(self, rows: range | Array) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def endless(self) -> bool:
        """Whether only reading tells how many there are."""
        return isinstance(self.rows, range) and self.rows.stop == _ENDLESS

    @property
    def contiguous(self) -> bool:
        """Whether they are one run."""
        return isinstance(self.rows, range) and self.rows.step == 1

    def runs(self, source: Source, start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
        """These positions, whole multiples of `step` at a time: as many as are read together, of
        rows that may be much larger than the first ones told."""
        wanted = self.rows[start:stop]
        first = int(wanted[0]) if len(wanted) else 0
        sizes = source.sizes(first, int(wanted[-1]) + 1) if len(wanted) else None
        if sizes is None:
            yield start, stop
            return
        for low, high in runs_of(sizes[np.asarray(wanted) - first], _RUN_BYTES, step):
            yield start + low, start + high

    def read(self, source: Source, start: int, stop: int) -> tuple[Chunk, Array]:
        """The rows at these positions, fewer at the end; and their numbers."""
        wanted = self.rows[start:stop]
        if isinstance(wanted, range) and wanted.step == 1:
            chunk = source.read(wanted.start, wanted.stop)
            return chunk, np.arange(chunk.start, chunk.stop)
        return _picked(source, np.asarray(wanted, np.int64))

    def save(self, folder: Path) -> dict[str, Any]:
        """How another process finds it: as JSON, and a file if need be."""
        if isinstance(self.rows, range):
            return {"range": [self.rows.start, self.rows.stop, self.rows.step]}
        path = folder / "rows.npy"
        np.save(path, self.rows)
        return {"file": str(path)}


def load(saved: dict[str, Any]) -> Selection:
    """The inverse of `save`."""
    if "range" in saved:
        return Selection(range(*saved["range"]))
    return Selection(np.load(saved["file"], mmap_mode="r"))


def select(source: Source, settings: JobSettings, batch: int) -> Selection:
    """A job's rows. Contiguous shards begin with a whole batch, so that batches are as in one run.

    Raises `ConfigError` where a source cannot be cut.
    """
    place = settings.place
    if place is None:
        return Selection(range(_ENDLESS if source.rows is None else source.rows))
    index, count = place
    if source.rows is None or not source.seekable:
        raise ConfigError("shard: the source can only be read from front to back, not in shards")
    if settings.shards == "contiguous":
        batches = -(-source.rows // batch)
        bounds = [batches * at // count * batch for at in (index, index + 1)]
        return Selection(range(*(min(bound, source.rows) for bound in bounds)))
    cut = shards(
        source,
        count,
        settings.shards,
        cost=settings.cost or None,
        label=settings.label or None,
        seed=settings.seed,
    )
    return Selection(cut[index].rows)


def _picked(source: Source, rows: Array) -> tuple[Chunk, Array]:
    if not len(rows):
        return source.read(0, 0), rows
    chunks: list[Chunk] = []
    for group in _read_together(source, rows):
        first = int(group[0])
        chunks.append(_taken(source.read(first, int(group[-1]) + 1), group - first))
    return put_together(chunks), rows


def _read_together(source: Source, rows: Array) -> list[Array]:
    """Rows that are one read each time.

    What a source decodes together it has with the first row of it. To take along the rows between
    costs less than another read then, unless they are large, which one row tells.
    """
    spread, span = 1 if source.decodes else _SPREAD, _ENDLESS
    if source.together > 1 and len(rows) > 1 and not source.decodes:
        first = int(rows[0])
        columns = dict(source.read(first, first + 1).columns)
        size = max(Content(columns, rows[:1], rows[:1]).size, 1)
        spread = max(min(_BETWEEN_BYTES // size, source.together), 1)
        span = max(_SPAN_BYTES // size, 1)
    apart = (np.diff(rows) > spread) | (np.diff(rows // span) > 0)
    first = int(rows[0])
    sizes = source.sizes(first, int(rows[-1]) + 1)
    if sizes is not None:
        ends = np.cumsum(sizes)[rows - first]
        between = np.diff(ends) - sizes[rows[1:] - first]
        apart |= (between > _BETWEEN_BYTES) | (np.diff(ends // _SPAN_BYTES) > 0)
    return np.split(rows, np.flatnonzero(apart) + 1)


def put_together(chunks: list[Chunk]) -> Chunk:
    """Rows that were read apart from each other, as one chunk."""
    names = list(chunks[0].columns)
    return Chunk(
        chunks[0].start,
        {name: np.concatenate([chunk.columns[name] for chunk in chunks]) for name in names},
        np.concatenate([chunk.keys for chunk in chunks]),
        tuple(failure for chunk in chunks for failure in chunk.failures),
    )


def left_out(source: Source, row: int, why: str) -> Chunk:
    """A row that is not read, and has failed."""
    columns = {spec.name: blank(spec, 1) for spec in source.signature}
    return chunk_of(row, columns, source.keys(row, row + 1), {0: Fault("decode", why)})


def _taken(chunk: Chunk, places: Array) -> Chunk:
    wanted = set((places + chunk.start).tolist())
    failures: list[Failure] = [failure for failure in chunk.failures if failure.row in wanted]
    columns = {name: column[places] for name, column in chunk.columns.items()}
    return Chunk(chunk.start, columns, chunk.keys[places], tuple(failures))
