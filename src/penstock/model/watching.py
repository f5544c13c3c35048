"""Having a say when a module is loaded, whoever imports it and whenever that is.

`devices/limit.py` does the same by itself: it stands alone.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Load = Callable[[Callable[[], None], ModuleType], None]


def watch(name: str, load: Load) -> None:
    """When the module is imported, `load` is called with what loads it, and the module."""
    sys.meta_path.insert(0, _Finder(name, load))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module as it would be found anyhow."""

    def __init__(self, name: str, load: Load) -> None:
        self._name, self._load = name, load

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._load)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, load: Load) -> None:
        self._loader, self._load = loader, load

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._load(lambda: self._loader.exec_module(module), module)
