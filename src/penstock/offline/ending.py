"""Parts to the output: joined in order, written under temporary names, published, recorded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.data.arraysink import NpySink
from penstock.data.atomic import publish, staged
from penstock.data.chunk import Array
from penstock.data.features import numpy_dtype
from penstock.data.files import facts as file_facts
from penstock.data.files import file_system, is_local
from penstock.errors import ConfigError
from penstock.offline.parts import concatenate
from penstock.offline.place import Place
from penstock.spec import ModelSpec


def write_output(
    place: Place,
    data: Sequence[str],
    keys: Sequence[str],
    empty: dict[str, Array],
    joined: bool = False,
) -> None:
    """The output of these parts, and its keys. `empty`: what to write when there are none.

    `joined`: the data are there already, under their temporary name.
    """
    sink = place.sink
    if not joined:
        with staged(place.out) as file:
            if data:
                sink.join(data, file)
            else:
                sink.write(file, empty, np.empty(0, np.int64) if sink.keeps_keys else None)
    if not sink.keeps_keys:
        with staged(place.keys) as file:
            if keys:
                NpySink().join(keys, file)
            else:
                NpySink().write(file, {"": np.empty(0, np.int64)})
        publish(place.keys)
    publish(place.out)


def write_errors(place: Place, errors: Sequence[str]) -> str:
    """The side file; none, where nothing failed. Returns its path, or ""."""
    if not errors:
        remove(place.errors)
        return ""
    with staged(place.errors) as file:
        concatenate(errors, file)
    publish(place.errors)
    return place.errors


def empty_columns(spec: ModelSpec, chosen: Sequence[str]) -> dict[str, Array]:
    """Columns without rows, of what the model says it answers."""
    columns: dict[str, Array] = {}
    for tensor in spec.outputs or ():
        if not chosen or tensor.name in chosen:
            shape = (0, *(size or 0 for size in tensor.shape))
            columns[tensor.name] = np.empty(shape, numpy_dtype(tensor.dtype))
    return columns or {name: np.empty(0, np.float32) for name in chosen or [""]}


def size_of(path: str) -> int:
    """Bytes of a file; -1 where there is none."""
    try:
        return file_facts(path).size
    except OSError:
        return -1


def check_output(place: Place, done: dict[str, Any]) -> None:
    """Raise `ConfigError` unless the output is there as it was written."""
    size = size_of(place.out)
    if size != done.get("size"):
        what = "is gone" if size < 0 else "is not as it was written"
        raise ConfigError(f"the job is done, but {place.out} {what}: begin anew with restart")


def check_free(place: Place) -> None:
    """Raise `ConfigError` rather than write over a file that no manifest tells of."""
    if size_of(place.out) >= 0:
        raise ConfigError(
            f"{place.out} is there already, and not by a job that is known: "
            "remove it, or write over it with restart"
        )


def remove(path: str) -> None:
    """Remove a file, if there is one."""
    if is_local(path):
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
    else:
        system, inner = file_system(path)
        if system.exists(inner):
            system.rm_file(inner)
