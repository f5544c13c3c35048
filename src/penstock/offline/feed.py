"""From what a source has to what a model takes: which columns, what dtype, images of what size.

An `Input` is what a job reads, a `Feed` what the model gets of it: plain values, so that it can be
sent to a loader.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.data import open_source
from penstock.data.chunk import Array, Chunk
from penstock.data.features import lost
from penstock.data.formats import told_by_suffix
from penstock.data.listing import Listing
from penstock.data.opening import described, list_described, open_described
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

    def only_sends(self, name: str) -> bool:
        """Whether the rows of a column go to the model as they are, and nowhere else."""
        return (name, "") in self.columns and name not in self.keep

    def inputs(self, chunk: Chunk) -> dict[str, Array]:
        """The columns of these rows, as the model wants them."""
        return {name: _as(chunk.columns[name], dtype) for name, dtype in self.columns}

    def misfits(self, chunk: Chunk) -> dict[int, str]:
        """The rows with numbers that the model's dtype has no place for, and why."""
        found: dict[int, str] = {}
        for name, dtype in self.columns:
            if not dtype:
                continue
            column = chunk.columns[name]
            bad = lost(column, numpy_dtype(dtype))
            for row in np.flatnonzero(bad.reshape(len(bad), -1).any(1)).tolist():
                label = f"{name!r}: " if name else ""
                got = column[row][bad[row]].ravel()[0]
                found.setdefault(row, f"{label}the model takes {dtype}, got {got}")
        return found

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
            raise InputError(f"there is no output {name!r}; {there(outputs)}")
    for name in (*settings.inputs, *settings.keep):
        if name not in columns:
            raise InputError(f"there is no column {name!r}; {there(columns)}")
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
            f"the model takes {named(wanted) or 'rows'}; the source has {named(columns)}: "
            "choose with --inputs (inputs=)"
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


class Input:
    """What a job reads. Its files are looked for once, however often they are asked for.

    `without`: files that are no part of it.
    """

    def __init__(self, what: Any, options: dict[str, Any], without: Sequence[str] = ()) -> None:
        self._what, self._options, self._without = what, options, without

    def open(self, derived: dict[str, Any] | None = None) -> Source | None:
        """The source; `None` for images of which nobody has said how large they are to be.

        `derived`: what was found for these. What is said in options goes before it. Raises
        `InputError` also for what code of the caller's raises in it.
        """
        if not self._undecided:
            return self._opened(self._options)
        return self._opened({**derived, **self._options}) if derived else None

    @property
    def left_out(self) -> Sequence[str]:
        """Which files would be part of the source, were they not left out."""
        return () if self._listing is None else self._listing.left

    def _opened(self, options: dict[str, Any]) -> Source:
        with _telling():
            description = described(self._what, without=self._without, **options)
            if description is None:
                return open_source(self._what, **options)
            return open_described(description, self._listing)

    @functools.cached_property
    def _undecided(self) -> bool:
        options = self._options
        if "size" in options or "decode" in options:
            return False
        if "images" in options:
            return True
        if self._listing is None or not len(self._listing):
            return False
        return (options.get("format") or told_by_suffix(self._listing.names)) == "images"

    @functools.cached_property
    def _listing(self) -> Listing | None:
        with _telling():
            description = described(self._what, without=self._without, **self._options)
            return None if description is None else list_described(description)


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """What code of others raises is an error of the input."""
    try:
        yield
    except (PenstockError, OSError, MemoryError):
        raise
    except Exception as error:
        raise InputError(f"the source cannot be opened: {type(error).__name__}: {error}") from error


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


def _cast(given: TensorSpec, wanted: TensorSpec) -> str:
    """The dtype to convert to: numbers may become wider, or the same kind of narrower ones."""
    if given.dtype == wanted.dtype or STRING in (given.dtype, wanted.dtype):
        return ""
    possible = np.can_cast(numpy_dtype(given.dtype), numpy_dtype(wanted.dtype), "same_kind")
    return wanted.dtype if possible else ""


def _as(array: Array, dtype: str) -> Array:
    if not dtype:
        return array
    with np.errstate(over="ignore", invalid="ignore"):  # `misfits` tells of those
        return array.astype(numpy_dtype(dtype))


def named(columns: Iterable[str]) -> str:
    """Names for people."""
    return ", ".join(repr(name) if name else "a bare array" for name in columns)


def there(columns: Iterable[str]) -> str:
    """Which ones there are, after one that is not."""
    return "the only one has no name" if list(columns) == [""] else f"there are {named(columns)}"
