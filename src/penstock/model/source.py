"""From a source's text to the object that it names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.errors import ModelLoadError


def resolve(source: str) -> Any:
    """The object behind `"module:attribute"` or `"path/file.py:attribute"`."""
    place, colon, attribute = source.rpartition(":")
    if not colon or not place or not attribute:
        raise ModelLoadError(
            f"source {source!r}: expected 'module:callable' or 'path/file.py:callable'"
        )
    found: Any = _module_at(Path(place)) if place.endswith(".py") else _module_named(place)
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ModelLoadError(f"source {source!r}: {place} has no {attribute!r}") from None
    return found


def _module_named(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            raise ModelLoadError(
                f"there is no module {error.name!r} on the worker's path: {sys.path}"
            ) from error
        raise


def _module_at(path: Path) -> ModuleType:
    if not path.is_file():
        raise ModelLoadError(f"there is no file {path}")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
