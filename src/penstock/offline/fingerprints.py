"""Whether a model is still the same, told without loading it; and what else was there."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from penstock.config import Model
from penstock.model.digest import file_digest, folder_digest, text_digest
from penstock.model.machine import version
from penstock.spec import ModelSpec

_PACKAGES = ("penstock", "numpy", "pyarrow", "Pillow", "tensorflow", "tensorflow-cpu", "keras")
_IMMATERIAL = ("source", "name", "weight", "warm")


def versions() -> dict[str, str]:
    """What the result may depend on, and is installed here."""
    found = {package: version(package) for package in _PACKAGES}
    return {"python": platform.python_version(), **{k: v for k, v in found.items() if v}}


def of_model(model: Model) -> str:
    """Its content, that of the functions around it, and its settings.

    Of code, only the file that it is written in counts, not what that imports.
    """
    settings = {
        field.name: getattr(model, field.name)
        for field in dataclasses.fields(model)
        if field.name not in _IMMATERIAL
    }
    source = model.source
    content = of_text(source) if isinstance(source, str) else _of_live(source)
    steps = [of_text(str(step)) for step in (model.preprocess, model.postprocess) if step]
    return text_digest(content, *steps, repr(sorted(settings.items(), key=str)))


def of_served(name: str, spec: ModelSpec, facts: dict[str, Any]) -> str:
    """Of a model in an engine that runs already: only what it tells of itself."""
    told = (str(facts.get(what)) for what in ("mode", "precision", "content"))
    return text_digest(name, repr(spec), *told)


def of_text(source: str) -> str:
    """A file, a folder, or the code behind `module:function`; its name, where there is neither."""
    path = _behind(source)
    if path is None:
        return source
    content = folder_digest(path) if path.is_dir() else file_digest(path)
    return content if path == Path(source) else source + content


def stamps(source: str) -> tuple[object, ...]:
    """Of the files that `of_text` reads, without reading them: changes when they are written."""
    path = _behind(source)
    if path is None:
        return ()
    try:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        return tuple((str(file), *_times(file.stat())) for file in files)
    except FileNotFoundError:  # it is being replaced
        return (None,)


def _times(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _behind(source: str) -> Path | None:
    place, colon, _ = source.rpartition(":")
    if not colon or Path(source).exists():
        path: Path | None = Path(source)
    else:
        path = Path(place) if place.endswith(".py") else _module_file(place)
    return path if path is not None and (path.is_file() or path.is_dir()) else None


def _module_file(name: str) -> Path | None:
    """Where a module lies, found without importing what is above it."""
    steps = name.split(".")
    for place in sys.path:
        base = Path(place or ".", *steps)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
    return None


def _of_live(model: Any) -> str:
    weights = hashlib.sha256()
    for array in model.get_weights():
        weights.update(f"{array.dtype}{array.shape}".encode())
        weights.update(array.tobytes())
    config = json.dumps(model.get_config(), default=str, sort_keys=True)
    return text_digest(config, weights.hexdigest())
