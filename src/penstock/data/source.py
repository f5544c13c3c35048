"""What every source can do, whatever lies behind it.

A source is opened by `open_source`. One that was opened by a path, a pattern or a name can be
described in JSON and opened again by another process (`describe`, `reopen`); one that holds
arrays cannot, but may be pickled.
"""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Collection, Container, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from penstock.data.chunk import Array, Chunk, Failure, Fault
from penstock.errors import InputError
from penstock.spec import Signature

if TYPE_CHECKING:
    from penstock.data.listing import Listing

CHUNK_ROWS = 1024


class Source(abc.ABC):
    """Rows in a fixed order.

    A seekable source reads rows n to m without what comes before them, from any thread. Another
    one is read from front to back by one reader; going back starts it anew, where that is possible.
    """

    seekable = True
    decodes = False  # reading it keeps a core busy: worth processes of its own
    together = 1  # rows that one read brings along: worth to be read by the same process
    description: dict[str, Any] | None = None
    listed: Listing | None = None  # its files, as they were found

    @property
    @abc.abstractmethod
    def rows(self) -> int | None:
        """How many there are; `None` where only reading to the end would tell."""

    @property
    @abc.abstractmethod
    def signature(self) -> Signature:
        """The columns: names, dtypes and row shapes. "" names the only one, a bare array."""

    @abc.abstractmethod
    def read(self, start: int, stop: int, out: Mapping[str, Array] | None = None) -> Chunk:
        """Rows `start` to `stop`, or up to the end if that comes first.

        With `out`, columns named there are written into these arrays (of at least as many rows)
        and the chunk holds views of them.
        """

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Changes when the rows may have: sizes, times or etags of files, schema, options."""

    def unchanged(self) -> bool:
        """Whether what lies behind it is as when it was opened, as far as a look tells: a file that
        is written over is read anew, from its middle."""
        return True

    def keys(self, start: int, stop: int) -> Array:
        """Keys of rows that cannot be read; their numbers, where only reading tells."""
        return np.arange(start, stop)

    def only(self, names: Collection[str]) -> Source:
        """The same rows with these columns alone, where others need not be read; else itself.

        What is wrong with a column that nobody wants then makes no row fail.
        """
        return self

    def costs(self) -> Array | None:
        """What rows cost relative to each other (sizes of files); `None`: all the same."""
        return None

    def sizes(self, start: int, stop: int) -> Array | None:
        """Bytes that these rows are read from; `None`: they are about as many for all rows, or only
        reading tells."""
        return None

    def chunks(
        self, size: int = CHUNK_ROWS, start: int = 0, stop: int | None = None
    ) -> Iterator[Chunk]:
        """All rows from `start` on, `size` at a time."""
        if size < 1:
            raise InputError(f"a chunk has at least one row; got size={size}")
        while stop is None or start < stop:
            end = start + size if stop is None else min(start + size, stop)
            chunk = self.read(start, end)
            if len(chunk):
                yield chunk
            if len(chunk) < end - start:
                return
            start = end

    def column(self, name: str) -> Array:
        """One whole column, in memory: labels or costs, for `shards`. Failed rows hold zeros."""
        names = [spec.name for spec in self.signature]
        if name not in names:
            raise InputError(f"there is no column {name!r}; there are {names}")
        parts = [chunk.columns[name] for chunk in self.chunks(65_536)]
        return np.concatenate(parts) if parts else np.empty(0)

    def describe(self) -> dict[str, Any]:
        """What `reopen` needs, in any process on this machine; can be written as JSON."""
        if self.description is None:
            raise InputError(
                f"a {type(self).__name__} over objects in memory cannot be described: save it to a "
                "file, or name a factory 'module:function' that makes it"
            )
        return self.description

    def hand_over(self, path: Path) -> dict[str, Any]:
        """As `describe`, for as long as there is this file, to which the names of the files are
        written, if it has some: whoever reopens it need not look for them, and finds the same."""
        if self.listed is None:
            return self.describe()
        return {**self.describe(), "what": [], "listing": self.listed.save(path)}

    def close(self) -> None:
        """Give back what is open. Reading again opens it again."""
        return None

    def _narrowed(self, names: Collection[str], **changed: Any) -> Self:
        """A copy in which these attributes are others, and which `reopen` opens as such."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **changed)
        if self.description is not None:
            other.description = {**self.description, "only": sorted(names)}
        return other

    def __len__(self) -> int:
        if self.rows is None:
            raise TypeError(f"{type(self).__name__}: the number of rows is not known")
        return self.rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        if self.description is not None:
            return reopen, (self.description,)
        return super().__reduce__()


def reopen(description: dict[str, Any]) -> Source:
    """The source that `describe` described."""
    from penstock.data.opening import open_described

    return open_described(description)


def bounds(start: int, stop: int, rows: int | None = None) -> tuple[int, int]:
    """A range of rows that lies within the source."""
    if start < 0 or stop < start:
        raise InputError(f"rows are read from 0 on, upwards; got {start} to {stop}")
    return (start, stop) if rows is None else (min(start, rows), min(stop, rows))


def runs_of(sizes: Array, most: int, step: int = 1) -> Iterator[tuple[int, int]]:
    """Rows of these sizes, cut into runs of at most so many bytes: whole multiples of `step` rows,
    once at least. None is one empty run."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    at = 0
    while at < len(sizes) or not at:
        fit = int(np.searchsorted(ends, ends[at] + most, "right")) - 1 - at
        stop = min(at + max(fit // step, 1) * step, len(sizes))
        yield at, stop
        if stop == len(sizes):
            return
        at = stop


def chunk_of(
    start: int,
    columns: Mapping[str, Array],
    keys: Array,
    faults: Mapping[int, Fault],
    out: Mapping[str, Array] | None = None,
    nameless: Container[int] = (),
) -> Chunk:
    """A chunk; `faults` count from its first row, as do rows whose key could not be read."""
    failures = tuple(
        Failure(
            start + row, f"#{start + row}" if row in nameless else _key(keys[row]), *faults[row]
        )
        for row in sorted(faults)
    )
    placed = dict(columns)
    for name in placed.keys() & (out or {}).keys():
        assert out is not None
        target = out[name][: len(keys)]
        if target is not placed[name] and not _same(target, placed[name]):
            target[...] = placed[name]
        placed[name] = target
    return Chunk(start, placed, keys, failures)


def digest(*parts: object) -> str:
    """A hash of texts, numbers and bytes."""
    whole = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, (bytes, memoryview)) else repr(part).encode()
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)
    return whole.hexdigest()


def _same(one: Array, other: Array) -> bool:
    return bool(one.ctypes.data == other.ctypes.data and one.strides == other.strides)


def _key(key: Any) -> str | int:
    return int(key) if isinstance(key, (int, np.integer)) else str(key)
