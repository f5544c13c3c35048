"""A frozen graph, kept beside the findings: a start that has it neither loads nor traces the model.

Only for models that are all in their files: SavedModels, and archives of Keras's own classes,
without steps of the user's. Code that lies elsewhere may change, and the hash of the content would
not tell. What is kept has the weights in it; the oldest go when all of it is more than `_MOST_ALL`.

    first line: a header (JSON) with tensors, names and the checksum of the rest; then the GraphDef
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from penstock.config import Model
from penstock.model.assemble import known_key
from penstock.model.cache import Entry
from penstock.model.circumstances import circumstances
from penstock.model.contents import keepable
from penstock.model.frozen import Written, write_down
from penstock.model.graph import Graph
from penstock.model.handover import dtype_of
from penstock.model.modes import Bound, reread
from penstock.model.runtime import tf
from penstock.spec import Signature, TensorSpec

_log = logging.getLogger(__name__)
_FORMAT = 1
_MOST = 256 << 20
_MOST_ALL = 2 << 30


def restore(model: Model, found: Any) -> tuple[Graph, Bound] | None:
    """The graph of an earlier start, and how it runs frozen; `None` if there is none to be had."""
    path: Path | None = None
    try:
        if not keepable(model, found):
            return None
        key = known_key(model, found)
        if not key:
            return None
        entry = Entry(circumstances(key, model))
        if entry.read() is None or not _path(entry).exists():
            return None
        path = _path(entry)
        inputs, outputs, bound = _read(path)
        os.utime(path)
    except Exception as error:
        _log.info("cache: a stored graph is not used: %s", error)
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()
        return None
    return Graph(bound, inputs, outputs, None, key, ""), bound


def keep(entry: Entry, model: Model, inputs: Signature, outputs: Signature, bound: Bound) -> None:
    """Keep a frozen graph for the next start, where that is safe and the folder allows it."""
    path = _path(entry)
    try:
        if path.exists() or bound.rest or not keepable(model, model.source):
            return
        written = bound.written or write_down(bound.function)
        bound.written = None
        if len(written.data) > _MOST:
            return
        header = {
            "format": _FORMAT,
            "checksum": written.checksum,
            "inputs": inputs,
            "outputs": outputs,
            "feeds": written.feeds,
            "fetches": written.fetches,
        }
        aside = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            aside.touch(0o600)
            with aside.open("wb") as file:
                file.write(json.dumps(header).encode() + b"\n")
                file.write(written.data)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        _make_room(path.parent)
    except Exception as error:
        _log.info("cache: %s is not kept: %s", path, error)


def _path(entry: Entry) -> Path:
    return entry.path.with_suffix(".graph")


def _read(path: Path) -> tuple[Signature, Signature, Bound]:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            raise ValueError(f"{path} is another user's")  # a graph can do more than compute
        header = json.loads(file.readline())
        data = file.read()
    written = Written(data, header["feeds"], header["fetches"])
    if header["format"] != _FORMAT or header["checksum"] != written.checksum:
        raise ValueError(f"{path} is damaged, or of another format")
    inputs, outputs = (
        tuple(TensorSpec(*tensor) for tensor in header[side]) for side in ("inputs", "outputs")
    )
    specs = [
        tf.TensorSpec((None, *t.shape), dtype_of(t.dtype), f"input_{index}")
        for index, t in enumerate(inputs)
    ]
    bound = reread(written, specs)
    bound.written = None
    return inputs, outputs, bound


def _make_room(folder: Path) -> None:
    """Let go of what was not used for longest, until the rest is small enough."""
    kept = sorted(folder.glob("*.graph"), key=lambda path: path.stat().st_mtime, reverse=True)
    total = 0
    for path in kept:
        total += path.stat().st_size
        if total > _MOST_ALL:
            with contextlib.suppress(OSError):
                path.unlink()
