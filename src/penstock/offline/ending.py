"""Parts to the output: joined in order, written under temporary names, published, recorded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from penstock.data.arraysink import NpySink
from penstock.data.atomic import discard, publish, staged, temporary
from penstock.data.chunk import Array
from penstock.data.features import blank, numpy_dtype
from penstock.data.files import facts as file_facts
from penstock.data.files import file_system, is_local, open_binary
from penstock.data.sinks import Sink
from penstock.errors import ConfigError, InputError, PenstockError
from penstock.model.source import resolve
from penstock.offline.parts import concatenate
from penstock.offline.place import Place
from penstock.offline.settings import JobSettings
from penstock.offline.window import mapped
from penstock.spec import ModelSpec, Signature


def write_output(
    place: Place,
    data: Sequence[str],
    keys: Sequence[str],
    empty: dict[str, Array],
    rows: int,
    joined: bool = False,
) -> None:
    """The output of these parts, and its keys. `empty`: what to write when there are none.

    `joined`: the data are there already, under their temporary name. They get their own name only
    when they have so many rows.
    """
    sink = place.sink
    if not joined:
        with staged(place.out) as file:
            if data:
                _join(sink, data, file)
            else:
                sink.write(file, empty, np.empty(0, np.int64) if sink.keeps_keys else None)
    _check_count(place.sink, place.out, rows)
    if not sink.keeps_keys:
        with staged(place.keys) as file:
            if keys:
                _join(NpySink(), keys, file)
            else:
                NpySink().write(file, {"": np.empty(0, np.int64)})
        _check_count(NpySink(), place.keys, rows)
        publish(place.keys)
    publish(place.out)


def _join(sink: Sink, parts: Sequence[str], file: IO[bytes]) -> None:
    """Raises `InputError` also for a part that is damaged."""
    try:
        sink.join(parts, file)
    except (PenstockError, OSError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"parts cannot be joined, one may be damaged ({type(error).__name__}: {error}): "
            "begin anew with --restart (restart=True)"
        ) from error


def _check_count(sink: Sink, path: str, rows: int) -> None:
    """Raise `PenstockError` unless so many rows are in what is about to be published; looked at
    where that costs nothing, on this machine."""
    if not is_local(path):
        return
    with open_binary(temporary(path)) as file:
        found = sink.count(file)
    if found is not None and found != rows:
        discard(path)
        raise PenstockError(
            f"{path}: expected {rows:,} rows of all parts together, but {found:,} were joined: "
            "it is not published, and the parts are still there"
        )


def write_errors(place: Place, errors: Sequence[str]) -> str:
    """The side file; none, where nothing failed. Returns its path, or ""."""
    if not errors:
        remove(place.errors)
        return ""
    with staged(place.errors) as file:
        concatenate(errors, file)
    publish(place.errors)
    return place.errors


def empty_columns(spec: ModelSpec, settings: JobSettings, signature: Signature) -> dict[str, Array]:
    """Columns without rows: what the model says it answers, mapped, and what is kept beside it.

    An axis whose size only answers would tell has one element: tables have no place for none.
    """
    chosen = settings.outputs
    columns: dict[str, Array] = {}
    for tensor in spec.outputs or ():
        if not chosen or tensor.name in chosen:
            shape = (0, *(size or 1 for size in tensor.shape))
            columns[tensor.name] = np.empty(shape, numpy_dtype(tensor.dtype))
    columns = columns or {name: np.empty(0, np.float32) for name in chosen or [""]}
    if settings.map:
        with contextlib.suppress(Exception):  # a function need not understand no rows
            columns = mapped(resolve(str(settings.map)), columns)
    kept = [tensor for tensor in signature if tensor.name in settings.keep]
    return columns | {tensor.name: blank(tensor, 0) for tensor in kept}


def size_of(path: str) -> int:
    """Bytes of a file; -1 where there is none."""
    try:
        return file_facts(path).size
    except OSError:
        return -1


def sizes(place: Place, failed: int) -> dict[str, int]:
    """Bytes of the output and of what belongs to it; -1 for what is not there."""
    beside = [] if place.sink.keeps_keys else [place.keys]
    side = [place.errors] if failed else []
    return {path: size_of(path) for path in (place.out, *beside, *side)}


def check_output(place: Place, done: dict[str, Any]) -> None:
    """Raise `ConfigError` unless the output, and what belongs to it, is as it was written."""
    found = sizes(place, done["failed"])
    for (path, size), written in zip(found.items(), done["sizes"], strict=True):
        if size != written:
            what = "is gone" if size < 0 else "is not as it was written"
            raise ConfigError(
                f"the job is done, but {path} {what}: begin anew with --restart (restart=True)"
            )


def check_free(place: Place) -> None:
    """Raise `ConfigError` rather than write over files that no manifest tells of."""
    beside = [] if place.sink.keeps_keys else [place.keys]
    for path in (place.out, *beside, place.errors):
        if size_of(path) >= 0:
            raise ConfigError(
                f"{path} exists already, and no known job wrote it: "
                "remove it, or overwrite it with --restart (restart=True)"
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
