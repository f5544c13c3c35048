"""What Python runs first in every process that a test starts (see `conftest`).

Keras imports scikit-learn and matplotlib wherever they are installed, for wrappers and plots that
no test of ours looks at: a third of the seconds that TensorFlow takes to import, in each of
hundreds of processes. Here Keras finds neither, as with `pip install penstock[cpu]`. Whoever else
imports them gets them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_HIDDEN = ("matplotlib", "sklearn")


class _HiddenFromKeras:
    """A finder that finds nothing; asked first, it refuses what Keras asks for."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if name in _HIDDEN and _asking().startswith("keras."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _asking() -> str:
    """The module with the import statement: the first frame that is not of the import system's."""
    frame = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith("importlib") and name != "_frozen_importlib":
            return name
        frame = frame.f_back
    return ""


sys.meta_path.insert(0, _HiddenFromKeras)
