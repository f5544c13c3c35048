"""TensorFlow kept to its share of a card, from the moment that it is imported, whoever imports it.

`limit_tensorflow` watches for the import of `tensorflow` and then, before anybody can use it, gives
its GPU a memory limit: the share less what TensorFlow takes beside its limit. It watches until that
is done: a look whether there is a TensorFlow is no import. Scripts may go on
calling `set_memory_growth`, which TensorFlow refuses beside a limit: it has no effect then, memory
grows up to the limit anyhow.

This file stands alone, without the rest of Penstock: under `penstock run` it is loaded by whatever
Python the command is (`startup/sitecustomize.py`).
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

MEMORY = "PENSTOCK_GPU_MEMORY"  # a process's share of its card in bytes; "": no limit
BUFFERS = "PENSTOCK_GPU_BUFFERS"  # of that, what a worker may gather batches into; "": any
ROWS = "PENSTOCK_GPU_ROWS"  # the most rows of models that share a worker, by name, as JSON; or ""
SQUEEZED = "PENSTOCK_GPU_SQUEEZED"  # how often workers in this place ran out of it as they loaded
SQUEEZES = 2  # so often another begins in its place
CLAIM = "PENSTOCK_GPU_CLAIM"  # descriptor:path of the promise that the process was started with
OVERHEAD = 700 << 20  # what TensorFlow takes beside its limit: CUDA's context, cuDNN, cuBLAS

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def limit_tensorflow(share: int | None = None) -> None:
    """Limit TensorFlow to so many bytes of its card, or to what the environment says, if anything.

    Call it before TensorFlow is imported. Where it is imported already, but has not started its
    GPUs, it is limited now; else this raises `RuntimeError`.
    """
    share = share if share is not None else int(os.environ.get(MEMORY) or 0)
    forget()
    if not share:
        return
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        sys.meta_path.insert(0, _Finder(share))
    else:
        apply(tensorflow, share)


def forget() -> None:
    """No longer watch for the import."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not _is_ours(finder)]


def _is_ours(finder: object) -> bool:
    # By name: under `penstock run` this file is loaded twice, by Python's start and as a module.
    return type(finder).__qualname__ == "_Finder" and type(finder).__module__.endswith(".limit")


def apply(tensorflow: Any, share: int) -> None:
    """Set the limit. Raises `RuntimeError` when TensorFlow has started its GPUs."""
    config = tensorflow.config
    gpus = config.list_physical_devices("GPU")
    if not gpus:
        if not _hides_all(os.environ.get(_VISIBLE)):
            warnings.warn(
                "a share of a GPU is held for this process, but TensorFlow sees no GPU "
                "(penstock doctor --deep says why)",
                RuntimeWarning,
                stacklevel=2,
            )
        return
    if len(gpus) > 1:
        raise RuntimeError(
            f"TensorFlow sees {len(gpus)} GPUs where it should see one: CUDA was started in this "
            "process before its card was chosen"
        )
    megabytes = max(1, (share - OVERHEAD) >> 20)
    config.set_logical_device_configuration(
        gpus[0], [config.LogicalDeviceConfiguration(memory_limit=megabytes)]
    )
    _tolerate_growth(gpus[0])


def _tolerate_growth(limited: Any) -> None:
    """Where all of TensorFlow's `set_memory_growth` meet: it has several public names."""
    context: Any = getattr(sys.modules.get("tensorflow.python.eager.context"), "Context", None)
    original = getattr(context, "set_memory_growth", None)
    if original is None:
        return

    @functools.wraps(original)
    def set_memory_growth(self: Any, dev: Any, enable: bool) -> None:
        if dev != limited:
            original(self, dev, enable)

    context.set_memory_growth = set_memory_growth


def _hides_all(visible: str | None) -> bool:
    return visible is not None and (not visible.strip() or visible.strip().startswith("-"))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module `tensorflow` as it would be found anyhow, and limits it once loaded."""

    def __init__(self, share: int) -> None:
        self._share = share
        self._visible = os.environ.get(_VISIBLE)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "tensorflow" or self not in sys.meta_path:
            return None
        spec = _found_after(self, name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def load(self, loader: importlib.abc.Loader, module: ModuleType) -> None:
        """Load it, within the limit; then it need not be watched for any more."""
        if self._visible is not None and not _hides_all(os.environ.get(_VISIBLE)):
            os.environ[_VISIBLE] = self._visible  # scripts like to set it to a number
        loader.exec_module(module)
        apply(module, self._share)
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _found_after(
    finder: object, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    """What would be found without this finder, and whoever was asked before it."""
    for other in sys.meta_path[sys.meta_path.index(finder) + 1 :]:  # type: ignore[arg-type]
        spec = other.find_spec(name, path, target)
        if spec is not None:
            return spec
    return None


class _Loader(importlib.abc.Loader):
    """Loads as the module's own loader does, which is the module's in the end."""

    def __init__(self, loader: importlib.abc.Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # those who only look may ask more of it

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._finder.load(self._loader, module)
