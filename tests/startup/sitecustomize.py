"""What Python runs first in every process that a test starts (see `conftest`).

Keras imports scikit-learn, matplotlib and IPython wherever they are installed, for wrappers, plots
and tables that no test of ours looks at: a third of the seconds that TensorFlow takes to import, in
each of hundreds of processes. Here Keras finds none of them, as with `pip install penstock[cpu]`.
Whoever else imports them gets them.

And no process looks for garbage in TensorFlow, as `penstock.model.haste` has it in those that are
Penstock's own: else a second of its import, and another one when it ends, go into that.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_HIDDEN = ("IPython", "matplotlib", "sklearn")


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


class _WithoutCollecting:
    """A finder of TensorFlow alone, which is loaded as ever, but for the looks for garbage.

    Asked only after all others that watch for it.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == "tensorflow" else None
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                enabled = gc.isenabled()
                gc.disable()
                try:
                    load(module)
                finally:
                    if enabled:
                        gc.enable()
                gc.freeze()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _HiddenFromKeras)
sys.meta_path.insert(sys.meta_path.index(PathFinder), _WithoutCollecting)
