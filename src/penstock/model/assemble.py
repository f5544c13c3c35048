"""From a TensorFlow model's source and settings to its `Graph`.

Model ──▶ what it is (archive, SavedModel, live object) ──▶ its Part
preprocess ──▶ Part  ┐
the model  ──▶ Part  ├── joined ──▶ Graph, with a key that says what it was made of
postprocess ─▶ Part  ┘
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from penstock.config import Model, is_keras_model
from penstock.errors import ModelLoadError
from penstock.model import digest
from penstock.model.archive import read_archive
from penstock.model.chunks import in_chunks
from penstock.model.graph import Graph
from penstock.model.live import in_memory
from penstock.model.network import network_at
from penstock.model.parts import Part, Specs, accept, graph_of, join, promise, specs_of, trace
from penstock.model.precision import refuse
from penstock.model.runtime import tf
from penstock.model.saved import saved_part
from penstock.model.source import resolve
from penstock.model.traceable import function_part, is_traceable, traceable_part

Make = Callable[[str], Part]  # the model itself, in its own precision ("") or in another one


def assemble(model: Model, found: Any) -> Graph:
    """The graph of a model whose source is a path, or was resolved to something of TensorFlow's."""
    declared = None if model.inputs is None else specs_of(model.inputs)
    steps = {
        which: resolve(str(getattr(model, which)))
        for which in ("preprocess", "postprocess")
        if getattr(model, which)
    }
    before = _step(model, steps, "preprocess", declared) if model.preprocess else None
    make, content = _main(model, found, before.outputs if before else declared)
    key = _key(model, content, steps)

    def at(precision: str) -> Graph:
        part = in_chunks(make(precision))
        if before is not None:
            part = join(before, part)
        elif declared is not None:
            part = accept(part, declared)
        if model.postprocess:
            part = join(part, _step(model, steps, "postprocess", part.outputs))
        if model.outputs is not None:
            part = promise(part, specs_of(model.outputs))
        return replace(graph_of(part, key), at=at)

    return at("")


def known_key(model: Model, path: str) -> str:
    """The key of the graph of a file or folder without steps, before it is loaded; "" if none."""
    return _key(model, _content(path), {})


def _content(path: str) -> str:
    """A hash of a file or folder; "" where it cannot be read: whoever loads it tells why."""
    place = Path(path)
    try:
        return digest.folder_digest(place) if place.is_dir() else digest.file_digest(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return ""


def _main(model: Model, found: Any, given: Specs | None) -> tuple[Make, str]:
    """The model itself, and a hash of its content; "" where that is not known."""
    if isinstance(found, str):
        return _at(model, found, given)
    what = f"the model {model.name!r}"
    if is_keras_model(found):
        _refuse_signature(model, "a Keras model")
        return partial(network_at, found, given, what), ""
    return _only(traceable_part(found, model.signature, given, what), "a function"), ""


def _at(model: Model, path: str, given: Specs | None) -> tuple[Make, str]:
    content = _content(path)
    make = _read(model, path, given)
    # Written anew meanwhile: which of the two was read is not known, so nothing is remembered.
    return make, content if _content(path) == content else ""


def _read(model: Model, path: str, given: Specs | None) -> Make:
    place = Path(path)
    if place.is_dir():
        return _only(saved_part(place, model.signature, given), "a SavedModel")
    label = f"the Keras model {model.name!r}" if in_memory(path) else path
    _refuse_signature(model, "a Keras file")
    return partial(network_at, read_archive(path, label, model.unsafe), given, label)


def _only(part: Part, kind: str) -> Make:
    """A part that has one precision."""

    def make(precision: str) -> Part:
        if precision:
            why = f"{kind} computes in what it was written in; save the Keras model as .keras"
            raise refuse(precision, part.what, why)
        return part

    return make


def _refuse_signature(model: Model, what: str) -> None:
    if model.signature:
        raise ModelLoadError(
            f"model {model.name!r}: {what} has no signatures, so not {model.signature!r} either"
        )


def _step(model: Model, steps: dict[str, Any], which: str, given: Specs | None) -> Part:
    """Preprocess or postprocess, given what callers send or what the model returns."""
    function = steps[which]
    what = f"the {which} {getattr(model, which)}"
    if not callable(function):
        raise ModelLoadError(f"{what} is a {type(function).__name__}, which cannot be called")
    if getattr(function, "input_signature", None) is not None:
        part = in_chunks(function_part(function, None, what))
        return accept(part, given) if which == "preprocess" and given else part
    if given is None:
        raise ModelLoadError(
            f"{what}: declare what callers send, for example "
            "Model(…, inputs=('string', ())), or give it an input_signature"
        )
    if isinstance(function, type):
        function = function()
    return trace(function if is_traceable(function, False) else tf.function(function), given, what)


def _key(model: Model, content: str, steps: dict[str, Any]) -> str:
    """What the graph was made of; "" where some of it is not known."""
    codes = [digest.code_digest(function) for function in steps.values()]
    if not all((content, *codes)):
        return ""
    names = [f"{which}={getattr(model, which)}" for which in (*steps, "signature")]
    return digest.text_digest(content, *codes, *names, repr(model.inputs), repr(model.outputs))
