"""Having a say when a module is loaded, whoever imports it and whenever that is.

A look whether the module is there (`importlib.util.find_spec`) is no import: the say is kept until
the module was loaded. `devices/limit.py` does the same by itself: it stands alone.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

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
        if name != self._name or self not in sys.meta_path:
            return None
        spec = self._found_after(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def load(self, loader: importlib.abc.Loader, module: ModuleType) -> None:
        """Let whoever watches load it; once it is loaded that was all."""
        self._load(lambda: loader.exec_module(module), module)
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _found_after(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        """What would be found without this finder, and whoever was asked before it."""
        for other in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = other.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """Loads as the module's own loader does, which is the module's in the end."""

    def __init__(self, loader: importlib.abc.Loader, finder: _Finder) -> None:
        self._loader, self._finder = loader, finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # those who only look may ask more of it

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._finder.load(self._loader, module)
