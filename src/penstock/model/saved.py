"""SavedModel folders: what `tf.saved_model.save`, Keras 3's `export` and Keras 2's `save` write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.errors import ModelLoadError
from penstock.model.parts import Part, Specs
from penstock.model.runtime import tf
from penstock.model.traceable import traceable_part


def saved_part(folder: Path, signature: str, declared: Specs | None) -> Part:
    """The signature of this name, or the default one."""
    return traceable_part(_load(folder), signature, declared, f"the SavedModel {folder}")


def _load(folder: Path) -> Any:
    if not tf.saved_model.contains_saved_model(str(folder)):
        inside = sorted(path.name for path in folder.iterdir())[:8]
        raise ModelLoadError(
            f"{folder} is no SavedModel: expected a file saved_model.pb in it, "
            f"found {', '.join(inside) or 'nothing'}"
        )
    try:
        return tf.saved_model.load(str(folder))
    except Exception as error:
        raise ModelLoadError(
            f"the SavedModel {folder} cannot be read, perhaps it is damaged or incomplete: "
            f"{_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:500]}"
