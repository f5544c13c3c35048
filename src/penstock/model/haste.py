"""TensorFlow is imported without a look for garbage.

What it makes while it is imported stays. To look for garbage among all of it, again and again,
takes a fifth of the seconds that the import takes, and finds none.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

from penstock.model.watching import watch


def hasten() -> None:
    """In a process of Penstock's own, before a model's or a script's code may import it."""
    if "tensorflow" not in sys.modules:
        watch("tensorflow", _hastily)


def _hastily(load: Callable[[], None], module: ModuleType) -> None:
    with without_collecting():
        load()


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Python does not look for garbage by itself in here."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
