"""TensorFlow is imported without a look for garbage.

What it makes while it is imported stays: half a million objects. To look for garbage among all of
them, again and again, takes a fifth of the seconds that the import takes, and finds none. Nor is
there any later on; in Penstock's own processes it is not looked for among them again, not even when
Python ends, where that takes a second.
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
    load_for_good(load)


def load_for_good(load: Callable[[], None]) -> None:
    """Load it; nothing that is there then is looked at for garbage again.

    All that the process has by then counts for that, which in a user's process might be much.
    """
    with without_collecting():
        load()
    gc.freeze()


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
