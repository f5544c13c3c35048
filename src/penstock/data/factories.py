"""Factories, `module:function` or `file.py:function`: names that any process can follow."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.data.source import digest
from penstock.errors import InputError

_FACTORY = re.compile(r"[\w./-]+\.py:[\w.]+|[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def resolve(text: str, base: str) -> tuple[Callable[[], Any], str]:
    """The factory, and a hash of the file that it is written in."""
    place, _, attribute = text.rpartition(":")
    if place.endswith(".py"):
        path = Path(base, place)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise InputError(f"there is no file {place}, named by {text!r}")
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)
        spec.loader.exec_module(module)
    else:
        if base not in sys.path:
            sys.path.append(base)
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not place.startswith(error.name):
                raise
            raise InputError(f"there is no module {error.name!r}, named by {text!r}") from None
    found: Any = module
    for step in attribute.split("."):
        found = getattr(found, step, None)
    if not callable(found):
        raise InputError(f"{text!r}: expected a function that returns rows, got {found!r}")
    code = Path(module.__file__).read_bytes() if module.__file__ else b""
    return found, digest(code)


def is_factory(text: str, base: str) -> bool:
    """Whether a text names something to call, and no file."""
    return bool(_FACTORY.fullmatch(text)) and not os.path.exists(os.path.join(base, text))
