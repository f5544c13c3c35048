"""Packages that only some sources and sinks need, imported when one is used."""

from __future__ import annotations

import importlib
from typing import Any

from penstock.errors import ConfigError

_PACKAGES = {"PIL": "Pillow", "google_crc32c": "google-crc32c"}


def need(module: str, purpose: str) -> Any:
    """The module, or a `ConfigError` that says what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != top:
            raise
        raise ConfigError(
            f"{purpose} needs the package {_PACKAGES.get(top, top)}: pip install 'penstock[data]'"
        ) from None
