"""`tf.data.Dataset`s as sources. The only file here that imports TensorFlow, when one is used.

Elements are rows, or batches of rows (`batched=True`). Where their shapes are known, TensorFlow
makes blocks of rows and skips what was not asked for, and Python only cuts; otherwise rows are
taken one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from penstock.data.chunk import Array, Chunk
from penstock.data.features import blank
from penstock.data.joined import ROW_KEY, check_key, key_array
from penstock.data.rows import Stream, columns_of
from penstock.data.source import Source, bounds, chunk_of, digest
from penstock.errors import InputError
from penstock.spec import Signature, TensorSpec

_BLOCK_ROWS = 256


def is_dataset(value: Any) -> bool:
    """Whether it is a Dataset, found out without importing TensorFlow."""
    return any(
        kind.__name__ == "DatasetV2" and kind.__module__.startswith("tensorflow.")
        for kind in type(value).__mro__
    )


def dataset_source(
    dataset: Any, name: str, key: str | None = None, batched: bool = False
) -> Source:
    """The rows of a Dataset."""
    import tensorflow as tf

    specs = columns_of(dataset.element_spec)
    for column, spec in specs.items():
        if not isinstance(spec, tf.TensorSpec):
            raise InputError(f"{name}: expected dense tensors, got {spec} for {column!r}")
    shapes = [spec.shape[1:] if batched else spec.shape for spec in specs.values()]
    name = f"{name} {dataset.element_spec}"
    if all(shape.is_fully_defined() for shape in shapes):
        return DatasetBlocks(dataset, name, key, batched)
    rows = dataset.unbatch() if batched else dataset
    return Stream(rows.as_numpy_iterator, name, key)


class DatasetBlocks(Source):
    """A Dataset of rows of known shapes, read from front to back."""

    seekable = False

    def __init__(self, dataset: Any, name: str, key: str | None, batched: bool) -> None:
        self._dataset, self._name, self._batched = dataset, name, batched
        self._signature = tuple(
            TensorSpec(spec.dtype.name, spec.shape[1 if batched else 0 :].as_list(), column)
            for column, spec in columns_of(dataset.element_spec).items()
        )
        self._key = None if key == ROW_KEY else key
        if self._key is not None:
            check_key(self._key, self._signature)
        self._at = 0
        self._blocks: Iterator[dict[str, Array]] | None = None
        self._held: dict[str, Array] = {}

    @property
    def rows(self) -> int | None:
        """What TensorFlow knows of it."""
        count = -1 if self._batched else int(self._dataset.cardinality())
        return count if count >= 0 else None

    @property
    def signature(self) -> Signature:
        """What the Dataset declares."""
        return self._signature

    def read(self, start: int, stop: int, out: Mapping[str, Array] | None = None) -> Chunk:
        """Go on from where it stands, or begin anew behind what comes before."""
        start, stop = bounds(start, stop)
        if self._blocks is None or start < self._at or (start > self._at and not self._batched):
            self._begin(start)
        while self._at < start and self._take(start - self._at):
            pass
        parts = []
        while self._at < stop and (part := self._take(stop - self._at)):
            parts.append(part)
        columns = {
            spec.name: np.concatenate([part[spec.name] for part in parts])
            if parts
            else blank(spec, 0)
            for spec in self._signature
        }
        rows = len(next(iter(columns.values())))
        keys = key_array(columns[self._key]) if self._key else np.arange(start, start + rows)
        return chunk_of(start, columns, keys, {}, out)

    def fingerprint(self) -> str:
        """Its name, what its elements are, and what its keys are."""
        return digest("dataset", self._name, self._batched, self.rows, self._key)

    def close(self) -> None:
        """Let go of the pipeline."""
        self._blocks, self._held, self._at = None, {}, 0

    def _begin(self, row: int) -> None:
        dataset, self._at = self._dataset, 0
        if not self._batched:
            dataset, self._at = dataset.skip(row).batch(_BLOCK_ROWS), row
        self._held = {}
        self._blocks = map(columns_of, dataset.prefetch(1).as_numpy_iterator())

    def _take(self, most: int) -> dict[str, Array]:
        """At most so many rows; nothing at the end."""
        assert self._blocks is not None
        while not self._held or not len(next(iter(self._held.values()))):
            block = next(self._blocks, None)
            if block is None:
                return {}
            counts = {name: len(array) for name, array in block.items()}
            if len(set(counts.values())) > 1:
                raise InputError(f"{self._name}: expected as many rows in a batch, got {counts}")
            self._held = block
        taken = {name: array[:most] for name, array in self._held.items()}
        self._held = {name: array[most:] for name, array in self._held.items()}
        self._at += len(next(iter(taken.values())))
        return taken
