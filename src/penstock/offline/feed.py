"""From what a source has to what a model takes: which columns, what dtype, images of what size.

A `Feed` is plain values, so that it can be sent to a loader.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.data import open_source
from penstock.data.chunk import Array, Chunk
from penstock.data.factories import is_factory
from penstock.data.formats import suffixes_of, told_by_suffix
from penstock.data.listing import list_files
from penstock.data.source import Source
from penstock.errors import InputError, PenstockError
from penstock.offline.settings import JobSettings
from penstock.spec import STRING, ModelSpec, Signature, TensorSpec
from penstock.transport.tensors import numpy_dtype

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True)
class Feed:
    """The columns that a model gets, with the dtypes to give them ("": as they are).

    `bare`: the only one goes as an array, not in a dict.
    """

    columns: tuple[tuple[str, str], ...]
    bare: bool
    keep: tuple[str, ...] = ()

    @property
    def needs(self) -> set[str]:
        """The columns that must be read."""
        return {*(name for name, _ in self.columns), *self.keep}

    def inputs(self, chunk: Chunk) -> dict[str, Array]:
        """The columns of these rows, as the model wants them."""
        return {name: _as(chunk.columns[name], dtype) for name, dtype in self.columns}

    def arguments(self, inputs: dict[str, Array]) -> Any:
        """What `submit` takes."""
        return next(iter(inputs.values())) if self.bare else inputs

    def sample(self, signature: Signature) -> Any:
        """A row of zeros, to see whether such rows fit."""
        specs = {spec.name: spec for spec in signature}
        rows: dict[str, Array] = {}
        for name, dtype in self.columns:
            blank: Array = np.zeros((1, *specs[name].sizes), numpy_dtype(specs[name].dtype))
            if specs[name].dtype == STRING:
                blank[...] = b""
            rows[name] = _as(blank, dtype)
        return self.arguments(rows)


def feed_of(source: Source, spec: ModelSpec, settings: JobSettings, key: str | None = None) -> Feed:
    """How this source feeds that model. Raises `InputError` where it cannot."""
    columns = {tensor.name: tensor for tensor in source.signature}
    if not columns:
        raise InputError("the source has no rows, and nothing else tells what its rows would be")
    outputs = [tensor.name for tensor in spec.outputs or ()]
    for name in settings.outputs if outputs else ():
        if name not in outputs:
            raise InputError(f"there is no output {name!r}; there are {_named(outputs)}")
    for name in (*settings.inputs, *settings.keep):
        if name not in columns:
            raise InputError(f"there is no column {name!r}; there are {_named(columns)}")
    wanted = {tensor.name: tensor for tensor in spec.inputs or ()}
    free = [name for name in columns if name != key and name not in settings.keep]
    if settings.inputs:
        chosen = list(settings.inputs)
    elif wanted and wanted.keys() <= columns.keys():
        chosen = list(wanted)
    elif "" in free and len(wanted) <= 1:
        chosen = [""]  # labels and weights, which come beside a bare array, are for training
    elif len(wanted) > 1 or not free or (wanted and len(free) > 1):
        raise InputError(
            f"the model takes {_named(wanted) or 'rows'}; the source has {_named(columns)}: "
            "choose with inputs"
        )
    else:
        chosen = free
    bare = len(chosen) == 1 and len(wanted) <= 1
    only = next(iter(wanted.values())) if bare and wanted else None
    pairs = []
    for name in chosen:
        target = only or wanted.get(name)
        pairs.append((name, _cast(columns[name], target) if target else ""))
    return Feed(tuple(pairs), bare, tuple(settings.keep))


def open_for(
    what: Any,
    options: dict[str, Any],
    derived: dict[str, Any] | None = None,
    without: Sequence[str] = (),
) -> Source | None:
    """The source; `None` for images of which nobody has said how large they are to be.

    `derived`: what an earlier run has found for these. What is said in `options` goes before it.
    `without`: files that are no part of it.
    """
    if not _undecided(what, options, without):
        return opened(what, options, without)
    return opened(what, {**derived, **options}, without) if derived else None


def opened(what: Any, options: dict[str, Any], without: Sequence[str] = ()) -> Source:
    """The source. Raises `InputError` also for what code of the caller's raises in it."""
    try:
        return open_source(what, without=without, **options)
    except (PenstockError, OSError, MemoryError):
        raise
    except Exception as error:
        raise InputError(f"the source cannot be opened: {type(error).__name__}: {error}") from error


def left_out(what: Any, without: Sequence[str]) -> Sequence[str]:
    """Which of these files would be part of the source, were they not left out."""
    if not _is_files(what):
        return ()
    return list_files(what, lambda name: True, without=without).left


def derived_options(spec: ModelSpec) -> dict[str, Any]:
    """How images are to be read for this model. Raises `InputError` where that cannot be told."""
    for tensor in spec.inputs or ():
        if tensor.dtype == STRING and not tensor.shape:
            return {"decode": False}
        if len(tensor.shape) == 3 and None not in tensor.shape and tensor.shape[2] in _MODES:
            height, width, channels = tensor.sizes
            return {"size": [height, width], "mode": _MODES[channels]}
    raise InputError(
        "images: the model does not say how large they must be: pass size, or decode=False"
    )


def _undecided(what: Any, options: dict[str, Any], without: Sequence[str]) -> bool:
    if "size" in options or "decode" in options:
        return False
    if "images" in options:
        return True
    if not _is_files(what):
        return False
    suffixes = suffixes_of(options.get("format"))
    wanted = lambda name: name.lower().endswith(suffixes)  # noqa: E731
    names = list_files(what, wanted, without=without).names
    return bool(names) and (options.get("format") or told_by_suffix(names)) == "images"


def _is_files(what: Any) -> bool:
    if isinstance(what, (list, tuple)):
        return bool(what) and isinstance(what[0], (str, os.PathLike))
    if isinstance(what, str):
        return not is_factory(what, os.getcwd())
    return isinstance(what, os.PathLike)


def _cast(given: TensorSpec, wanted: TensorSpec) -> str:
    """The dtype to convert to: numbers may become wider, or the same kind of narrower ones."""
    if given.dtype == wanted.dtype or STRING in (given.dtype, wanted.dtype):
        return ""
    possible = np.can_cast(numpy_dtype(given.dtype), numpy_dtype(wanted.dtype), "same_kind")
    return wanted.dtype if possible else ""


def _as(array: Array, dtype: str) -> Array:
    return array.astype(numpy_dtype(dtype)) if dtype else array


def _named(columns: Any) -> str:
    return ", ".join(repr(name) if name else "a bare array" for name in columns)
