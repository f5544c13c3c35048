"""TFRecord: a `tf.train.Example` a row, its arrays flat, as the format has them."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable
from typing import IO

import numpy as np

from penstock.data.chunk import Array
from penstock.data.examples import build
from penstock.data.files import open_binary
from penstock.data.records import frame, record_starts
from penstock.data.sinks import Sink
from penstock.errors import InputError


class RecordSink(Sink):
    """Whole numbers as int64, fractions as float32 (there is no other), texts as bytes."""

    suffix = ".tfrecord"

    def _write(self, file: IO[bytes], columns: dict[str, Array]) -> None:
        ready = {name: _features(name, array) for name, array in columns.items()}
        for row in range(len(next(iter(columns.values())))):
            file.write(frame(build({name: values[row] for name, values in ready.items()})))

    def join(self, parts: Iterable[str], file: IO[bytes]) -> None:
        """One after the other."""
        for part in parts:
            with open_binary(part) as source:
                shutil.copyfileobj(source, file, 1 << 20)

    def starts(self, path: str) -> Array:
        """Of the records."""
        return record_starts(path)


def _features(name: str, array: Array) -> Array | list[list[bytes]]:
    flat = array.reshape(len(array), math.prod(array.shape[1:]))
    if array.dtype.kind in "OSUT":
        return [[_bytes(name, item) for item in row] for row in flat.astype(object)]
    if array.dtype.kind in "fV":
        return flat.astype(np.float32)
    if array.dtype.kind not in "biu":
        raise InputError(f"{name}: dtype {array.dtype} has no place in a tf.train.Example")
    if array.dtype == np.uint64 and np.any(flat > np.iinfo(np.int64).max):
        raise InputError(f"{name}: a tf.train.Example holds int64, and a number is larger")
    return flat


def _bytes(name: str, item: object) -> bytes:
    if isinstance(item, bytes):
        return item
    if isinstance(item, str):
        return item.encode(errors="backslashreplace")
    raise InputError(f"{name}: expected texts, got a {type(item).__name__}")
