"""A GPU that is made up, in every Python process that has this folder on its path.

CUDA is `tests.worker.fake_cuda`: rows are gathered, pinned and waited for as on a card, in the
host's memory. NVML is `tests.devices.fake_nvml`. TensorFlow is itself, on the CPU, but says that it
sees a GPU; memory that it should measure there is a fixed amount. So everything of Penstock's that
is between a client and the model runs as it would; nothing about speed or memory is true.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

_ROOT = os.environ["PRETENDED_ROOT"]
_HELD, _LIMIT_MB = 64 << 20, 8192


def _pretend_tensorflow(runtime: Any) -> None:
    config = runtime.tf.config
    for name in ("list_logical_devices", "list_physical_devices"):
        real = getattr(config, name)
        setattr(config, name, lambda kind=None, real=real: real("CPU" if kind == "GPU" else kind))
    limits = [SimpleNamespace(memory_limit=_LIMIT_MB)]
    config.get_logical_device_configuration = lambda device: limits
    config.experimental.get_memory_info = lambda device: {"current": _HELD, "peak": 2 * _HELD}
    config.experimental.reset_memory_stats = lambda device: None
    config.experimental.get_device_details = lambda device: {"device_name": "made up"}


def _pretend_handover(handover: Any) -> None:
    handover.on_device.__defaults__ = (1,)  # DLPack's number for the host's memory
    handover.gathered = lambda array: array


def _pretend_cuda(cuda: Any) -> None:
    sys.path.append(_ROOT)
    from tests.worker.fake_cuda import FakeCuda

    cuda.Cuda = FakeCuda


def _pretend_nvml(cards: Any) -> None:
    sys.path.append(_ROOT)
    from tests.devices import fake_nvml

    sys.modules["pynvml"] = fake_nvml


_CHANGES = {
    "penstock.model.runtime": _pretend_tensorflow,
    "penstock.model.handover": _pretend_handover,
    "penstock.worker.cuda": _pretend_cuda,
    "penstock.devices.cards": _pretend_nvml,
}


class _Finder:
    """Changes a module as soon as it was loaded."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        change = _CHANGES.pop(name, None)
        if change is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            change(module)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
