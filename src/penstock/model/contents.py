"""What a Keras model is made of, read off its config before anything of it is loaded."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.config import Model

_CODE = {"Lambda", "__lambda__"}
_PACKAGES = {"keras", "keras_hub", "keras_cv", "keras_nlp", "tf_keras", "builtins"}
_NOT_LOADED = "compile_config"  # losses and metrics: for training only


def holds_code(config: Any) -> bool:
    """Whether Python code is in it: a Lambda layer, which runs whatever it was saved with."""
    return any(entry.get("class_name") in _CODE for entry in _entries(config))


def foreign_names(config: Any) -> list[str]:
    """The classes in it that are not Keras's own, as `module.class`."""
    found = {
        f"{entry['module']}.{entry.get('class_name')}"
        for entry in _entries(config)
        if isinstance(entry.get("module"), str)
        and entry["module"].partition(".")[0] not in _PACKAGES
    }
    return sorted(found)


def keepable(model: Model, found: Any) -> bool:
    """Whether everything that the model does is in its file."""
    if not isinstance(found, str) or model.preprocess or model.postprocess:
        return False
    if Path(found).is_dir():
        return True
    if not zipfile.is_zipfile(found):
        return False
    with zipfile.ZipFile(found) as archive:
        config = json.loads(archive.read("config.json"))
    return not holds_code(config) and not foreign_names(config)


def _entries(config: Any) -> Iterator[dict[str, Any]]:
    if isinstance(config, dict):
        yield config
        config = [value for key, value in config.items() if key != _NOT_LOADED]
    if isinstance(config, list):
        for value in config:
            yield from _entries(value)
