"""TensorFlow as far as its GPUs are set up, made up: stands in for the module `tensorflow`.

Like TensorFlow, it reads CUDA_VISIBLE_DEVICES once, refuses limits when its GPUs have started, and
refuses growth beside a limit. `limits` has the limit of each GPU in MB.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

limits: dict[str, int] = {}
_devices: list[str] = []
_started = False


def list_physical_devices(kind):
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    if not _devices and os.environ.get("FAKE_TENSORFLOW") != "cpu":
        _devices.extend(name for name in visible if name not in ("", "-1"))
    return list(_devices)


def start():
    global _started
    _started = True


def set_logical_device_configuration(device, configurations):
    if _started:
        raise RuntimeError("Virtual devices cannot be modified after being initialized")
    (limits[device],) = (each.memory_limit for each in configurations)


class Context:
    """Where `set_memory_growth` ends up."""

    def set_memory_growth(self, dev, enable):
        if dev in limits:
            raise ValueError("Cannot set memory growth on device when virtual devices configured")


if __name__ == "tensorflow":  # where it stands in for it, and not where its path is looked up
    sys.modules["tensorflow.python.eager.context"] = SimpleNamespace(Context=Context)

config = SimpleNamespace(
    list_physical_devices=list_physical_devices,
    set_logical_device_configuration=set_logical_device_configuration,
    LogicalDeviceConfiguration=lambda memory_limit: SimpleNamespace(memory_limit=memory_limit),
    experimental=SimpleNamespace(
        set_memory_growth=lambda device, enable: Context().set_memory_growth(device, enable)
    ),
)
