"""Parquet and Arrow files: chosen columns, and only the row groups (or batches) that are asked for.

A row group is the least that can be decoded, so the last one is kept: reading on in it costs
nothing. Reading at random costs a row group each time.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.data.arrow import spec_of_field, text_sizes, to_array
from penstock.data.chunk import Array, Fault
from penstock.data.extras import need
from penstock.data.features import Features, chosen
from penstock.data.files import is_local, open_binary
from penstock.data.joined import Block
from penstock.errors import InputError
from penstock.spec import STRING, Signature


class LastGroup:
    """The row group that was decoded last, of all files of a source."""

    found: tuple[tuple[str, int, tuple[str, ...]] | None, Any] = (None, None)


class TableFile:
    """One Parquet or Arrow file, as a `Reader`. `groups` is how the format is opened."""

    def __init__(
        self,
        path: str,
        columns: Sequence[str] | None,
        features: Features,
        groups: type[ParquetGroups | ArrowGroups],
        last: LastGroup,
        fill: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            self._groups = groups(path)
        except need("pyarrow", "Parquet and Arrow").ArrowInvalid as error:
            raise InputError(f"{path}: expected {groups.expected} ({error})") from None
        names = chosen(self._groups.schema.names, columns, path)
        self.signature: Signature = tuple(
            features.get(name)
            or spec_of_field(
                self._groups.schema.field(name), functools.partial(self._sample, name), path
            )
            for name in names
        )
        self._starts = np.cumsum([0, *self._groups.sizes])
        self.rows = int(self._starts[-1])
        self.together = max(self._groups.sizes, default=1)
        self._fill = dict(fill or {})
        self._path, self._last = path, last
        if features:  # of another file, or of whoever knows better: does it fit this one?
            self.read(0, 0, names)

    def read(self, start: int, stop: int, names: Sequence[str]) -> Block:
        """From each group what lies in it."""
        arrow = need("pyarrow", "Parquet and Arrow")
        wanted = tuple(names)
        schema = arrow.schema([self._groups.schema.field(name) for name in wanted])
        parts = [table.cast(schema) for table in self._slices(start, stop, wanted)]
        whole = arrow.concat_tables(parts or [schema.empty_table()])
        specs = {spec.name: spec for spec in self.signature}
        arrays: dict[str, Array] = {}
        faults: dict[int, Fault] = {}
        for name in wanted:
            try:
                arrays[name], found = to_array(
                    whole.column(name), specs[name], self._fill.get(name)
                )
            except InputError as error:
                raise InputError(f"{self._path}: {error}") from None
            faults = {**found, **faults}
        return arrays, faults

    def sizes(self, start: int, stop: int, names: Sequence[str]) -> Array | None:
        """Of Arrow, where texts tell their lengths without being read."""
        if not self._groups.mapped:
            return None
        wanted = [spec for spec in self.signature if spec.name in names and spec.dtype != STRING]
        parts = [text_sizes(table) for table in self._slices(start, stop, tuple(names))]
        sizes: Array = np.concatenate([np.empty(0, np.int64), *parts])
        return sizes + sum(spec.row_bytes for spec in wanted)

    def _slices(self, start: int, stop: int, names: tuple[str, ...]) -> Iterator[Any]:
        """Of each group the rows that are wanted."""
        group = max(int(np.searchsorted(self._starts, start, "right")) - 1, 0)
        while start < stop:
            first, last = int(self._starts[group]), int(self._starts[group + 1])
            high = min(stop, last)
            if high > start:
                yield self._group(group, names).slice(start - first, high - start)
            start, group = max(high, start), group + 1

    def _group(self, group: int, names: tuple[str, ...]) -> Any:
        self._groups.check()
        wanted = (self._path, group, names)
        found, table = self._last.found
        if found != wanted:
            try:
                table = self._groups.read(group, names)
            except (OSError, need("pyarrow", "Arrow").ArrowException) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                text = " ".join(str(error).split())
                raise InputError(f"{self._path}: rows cannot be decoded ({text})") from None
            self._last.found = (wanted, table)
        return table

    def _sample(self, name: str) -> Any:
        for group, size in enumerate(self._groups.sizes):
            if size:
                column = self._groups.read(group, (name,)).column(name)
                if len(column) > column.null_count:
                    return column.drop_null().slice(0, 1).combine_chunks()
        return need("pyarrow", "Arrow").array([], self._groups.schema.field(name).type)


class ParquetGroups:
    """A Parquet file's row groups."""

    expected = "a Parquet file"
    mapped = False

    def __init__(self, path: str) -> None:
        self._path = path
        self._metadata: Any = None
        with self._opened() as file:
            self._metadata = file.metadata
            self.schema = file.schema_arrow
        count = self._metadata.num_row_groups
        self.sizes = [self._metadata.row_group(group).num_rows for group in range(count)]

    def read(self, group: int, names: Sequence[str]) -> Any:
        """One row group's columns."""
        with self._opened() as file:
            return file.read_row_group(group, columns=list(names))

    def check(self) -> None:
        """Nothing of it is mapped: to read what is gone is an error in any case."""

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        arrow, parquet = need("pyarrow", "Parquet"), need("pyarrow.parquet", "Parquet")
        place = arrow.OSFile(self._path) if is_local(self._path) else open_binary(self._path)
        with place:
            yield parquet.ParquetFile(place, metadata=self._metadata, pre_buffer=False)


class ArrowGroups:
    """An Arrow IPC file's record batches; of a local file mapped, not read."""

    expected = "an Arrow IPC file"
    mapped = True

    def __init__(self, path: str) -> None:
        self._path = path
        with self._opened() as place:
            file = need("pyarrow.ipc", "Arrow").open_file(place)
            self.schema = file.schema
            self.sizes = [file.get_batch(at).num_rows for at in range(file.num_record_batches)]
            self._size = place.size() if is_local(path) else 0

    def read(self, group: int, names: Sequence[str]) -> Any:
        """One batch's columns."""
        arrow = need("pyarrow", "Arrow")
        with self._opened() as place:
            batch = need("pyarrow.ipc", "Arrow").open_file(place).get_batch(group)
            return arrow.Table.from_batches([batch]).select(list(names))

    def check(self) -> None:
        """Raise `InputError` where what is mapped has no file behind it any more: to read it would
        end the process."""
        if self._size and os.path.getsize(self._path) < self._size:
            raise InputError(f"{self._path} is shorter than it was; was it changed?")

    def _opened(self) -> Any:
        arrow = need("pyarrow", "Arrow")
        return arrow.memory_map(self._path) if is_local(self._path) else open_binary(self._path)
