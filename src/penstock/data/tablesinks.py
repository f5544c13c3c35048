"""Parquet and Arrow, written so that the same rows give the same bytes.

Joined files have row groups (record batches) of a size that follows from the columns, and from the
texts in them, about 8 MB, whatever the parts were. A group is held as a whole, more than once,
until it is written: so large is what joining takes, however many rows there are.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np

from penstock.data.arrow import from_array, text_sizes
from penstock.data.chunk import Array
from penstock.data.extras import need
from penstock.data.files import is_local, open_binary
from penstock.data.sinks import Sink
from penstock.errors import ConfigError, InputError

GROUP_BYTES = 8 << 20
_TEXT_BYTES = 64  # what a text is taken to be; longer ones are counted


class _TableSink(Sink):
    def _write(self, file: IO[bytes], columns: dict[str, Array]) -> None:
        arrow = need("pyarrow", self.suffix)
        table = arrow.table({name: from_array(array, name) for name, array in columns.items()})
        self._write_tables(file, iter([table]), table.schema)

    def join(self, parts: Iterable[str], file: IO[bytes]) -> None:
        """Cut anew into groups of one size."""
        arrivals = iter(parts)
        first, schema = self._first_of(arrivals)
        tables = self._tables(itertools.chain(first, arrivals), schema)
        self._write_tables(file, tables, schema)

    def count(self, file: IO[bytes]) -> int:
        """As the file itself says."""
        return self._facts(file)[1]

    def _write_tables(self, file: IO[bytes], tables: Iterator[Any], schema: Any) -> None:
        with self._writer(file, schema) as writer:
            for table in _regrouped(tables, group_rows(schema)):
                self._write_group(writer, table)

    def _first_of(self, parts: Iterator[str]) -> tuple[list[str], Any]:
        """The parts up to the first with rows, and its schema: an empty one does not know what its
        texts are."""
        seen: list[str] = []
        first = None
        for part in parts:
            seen.append(part)
            with open_binary(part) as file:
                schema, rows = self._facts(file)
            if rows:
                return seen, schema
            first = first or schema
        if not seen:
            raise InputError("expected at least one part to join")
        return seen, first

    def _tables(self, parts: Iterable[str], schema: Any) -> Iterator[Any]:
        for part in parts:
            with open_binary(part) as file:
                found, rows = self._facts(file)
                if rows and found != schema:
                    raise InputError(f"{part}: expected the columns\n{schema}\ngot\n{found}")
                if rows:
                    yield from self._read(file)

    @abc.abstractmethod
    def _facts(self, file: IO[bytes]) -> tuple[Any, int]:
        """A part's schema and number of rows."""

    @abc.abstractmethod
    def _read(self, file: IO[bytes]) -> Iterator[Any]:
        """A part's rows, a group at a time."""

    @abc.abstractmethod
    def _writer(self, file: IO[bytes], schema: Any) -> Any:
        """A writer, closed at the end of a `with`."""

    @abc.abstractmethod
    def _write_group(self, writer: Any, table: Any) -> None:
        """One row group or record batch."""


class ParquetSink(_TableSink):
    """Parquet: compressed, columns of any shape, keys beside them."""

    suffix = ".parquet"

    def __init__(self, key: str = "key", compression: str = "zstd") -> None:
        super().__init__(key)
        if compression not in ("zstd", "snappy", "gzip", "lz4", "brotli", "none"):
            raise ConfigError(f"compression: expected zstd, snappy, gzip, …; got {compression!r}")
        self._compression = compression

    def _facts(self, file: IO[bytes]) -> tuple[Any, int]:
        found = need("pyarrow.parquet", "Parquet").ParquetFile(file)
        return found.schema_arrow, found.metadata.num_rows

    def _read(self, file: IO[bytes]) -> Iterator[Any]:
        found = need("pyarrow.parquet", "Parquet").ParquetFile(file)
        for group in range(found.metadata.num_row_groups):
            yield found.read_row_group(group, use_threads=False)

    def _writer(self, file: IO[bytes], schema: Any) -> Any:
        return need("pyarrow.parquet", "Parquet").ParquetWriter(
            file,
            schema,
            version="2.6",
            compression=self._compression,
            use_dictionary=[field.name for field in schema if _is_text(field.type)],
            data_page_version="1.0",
            write_statistics=True,
        )

    def _write_group(self, writer: Any, table: Any) -> None:
        writer.write_table(table.combine_chunks(), row_group_size=max(len(table), 1))
        need("pyarrow", "Parquet").default_memory_pool().release_unused()


class ArrowSink(_TableSink):
    """Arrow's file format, not compressed: others can map it."""

    suffix = ".arrow"

    def _facts(self, file: IO[bytes]) -> tuple[Any, int]:
        found = need("pyarrow.ipc", "Arrow").open_file(_mapped(file))
        batches = range(found.num_record_batches)
        return found.schema, sum(found.get_batch(at).num_rows for at in batches)

    def _read(self, file: IO[bytes]) -> Iterator[Any]:
        arrow = need("pyarrow", "Arrow")
        found = need("pyarrow.ipc", "Arrow").open_file(_mapped(file))
        for at in range(found.num_record_batches):
            yield arrow.Table.from_batches([found.get_batch(at)])

    def _writer(self, file: IO[bytes], schema: Any) -> Any:
        ipc = need("pyarrow.ipc", "Arrow")
        return ipc.new_file(file, schema, options=ipc.IpcWriteOptions(compression=None))

    def _write_group(self, writer: Any, table: Any) -> None:
        arrow = need("pyarrow", "Arrow")
        # Copied, also where there is one chunk: a slice brings its parent's offsets along.
        fresh = [
            arrow.concat_arrays([*column.chunks, arrow.array([], column.type)])
            for column in table.columns
        ]
        writer.write_batch(arrow.record_batch(fresh, schema=table.schema))


def group_rows(schema: Any) -> int:
    """Rows of a group, at most: about 8 MB, by the columns' types alone."""
    width = sum(_width(field.type) for field in schema)
    return int(min(max(GROUP_BYTES // max(width, 1), 1), 1 << 20))


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "binary")


def _is_fixed_list(kind: Any) -> bool:
    return bool(need("pyarrow", "Arrow").types.is_fixed_size_list(kind))


def _width(kind: Any) -> int:
    if _is_fixed_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    try:
        return max(int(kind.bit_width) // 8, 1)
    except ValueError:
        return _TEXT_BYTES


def _regrouped(tables: Iterator[Any], size: int) -> Iterator[Any]:
    """Groups of `size` rows; of fewer, where their texts alone are as large as a group is to be."""
    arrow = need("pyarrow", "Arrow")
    held: list[Any] = []
    count = text = 0
    for table in tables:
        ends = np.cumsum(text_sizes(table))
        at = before = 0
        while at < len(table):
            full = int(np.searchsorted(ends, before + GROUP_BYTES - text)) + 1
            stop = min(at + size - count, full, len(table))
            held.append(table.slice(at, stop - at))
            count, text = count + stop - at, text + int(ends[stop - 1]) - before
            at, before = stop, int(ends[stop - 1])
            if count == size or text >= GROUP_BYTES:
                yield arrow.concat_tables(held)
                held, count, text = [], 0, 0
    if count:
        yield arrow.concat_tables(held)


def _mapped(file: IO[bytes]) -> Any:
    name = getattr(file, "name", None)
    arrow = need("pyarrow", "Arrow")
    return arrow.memory_map(name) if isinstance(name, str) and is_local(name) else file
