"""From a source's text to what it names: a place on the disk, or an object to import."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.errors import ModelLoadError

_folders: set[Path] = set()  # of the files that models were loaded from
KERAS_FILES = (".keras", ".h5", ".hdf5")


def is_path(source: str) -> bool:
    """Whether a source is a file or a folder, and not something to import."""
    return ":" not in source or os.path.exists(source)


def check_place(path: str) -> None:
    """Raise `ModelLoadError` unless there is a file of a kind that is known, or a folder."""
    place = Path(path)
    if place.is_dir() or (place.is_file() and place.suffix in KERAS_FILES):
        return
    expected = (
        "expected 'module:callable', 'file.py:callable', a SavedModel folder, "
        f"or a file {', '.join(KERAS_FILES)}"
    )
    if not place.exists():
        raise ModelLoadError(f"there is no file or folder {path}; {expected}")
    kind = f"a file with the suffix {place.suffix!r}" if place.is_file() else "neither"
    raise ModelLoadError(f"{path} is {kind}; {expected}")


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
                f"there is no module {error.name!r}, neither in {_own_folders()} nor installed"
            ) from error
        raise


def _own_folders() -> str:
    """Where modules are looked for, without what belongs to Python and what is installed."""
    inside = tuple(os.path.join(place, "lib") for place in (sys.prefix, sys.base_prefix))
    own = [
        place
        for place in dict.fromkeys(os.path.abspath(place) for place in sys.path)
        if os.path.isdir(place)
        and not place.startswith(inside)
        and os.path.basename(place) not in ("site-packages", "dist-packages")
    ]
    return ", ".join(own) or "a folder of your own"


def _module_at(path: Path) -> ModuleType:
    if not path.is_file():
        raise ModelLoadError(f"there is no file {path}")
    _refuse_namesakes(path)
    _folders.add(path.parent)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(path.stem, None)
        raise
    return module


def _refuse_namesakes(path: Path) -> None:
    """A module beside another model's file would be taken for the one of its name beside this."""
    here = path.parent
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/")
        folder = file.parent.parent if file.name == "__init__.py" else file.parent
        if folder not in _folders or folder == here or name == path.stem:
            continue
        if (here / f"{name}.py").is_file() or (here / name / "__init__.py").is_file():
            raise ModelLoadError(
                f"{path} and a model from {folder} each have a module {name!r} beside them, and a "
                "process can have one of that name: rename one, or use an engine for each"
            )
