"""NVML, made up: its cards are in the JSON file that FAKE_NVML names, so that every process sees
the same ones, and they can change. Stands in for the module `pynvml`.

A card: `{"uuid": …, "name": …, "total": …, "used": …, "processes": [[pid, bytes or null]], "lost":
…, "mig": [cards]}`; all but the UUID may be left out.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace


class NVMLError(Exception):
    pass


def nvmlInit():
    if "FAKE_NVML" not in os.environ:
        raise NVMLError("Driver Not Loaded")


def nvmlShutdown():
    pass


def _cards():
    return json.loads(Path(os.environ["FAKE_NVML"]).read_text())


def nvmlSystemGetDriverVersion():
    return "570.1"


def nvmlDeviceGetCount():
    return len(_cards())


def nvmlDeviceGetHandleByIndex(index):
    card = _cards()[index]
    if card.get("lost"):
        raise NVMLError("GPU is lost")
    return card


def nvmlDeviceGetUUID(card):
    return card["uuid"]


def nvmlDeviceGetName(card):
    return card.get("name", "Fake").encode()


def nvmlDeviceGetMemoryInfo(card):
    total, used = card.get("total", 16 << 30), card.get("used", 0)
    return SimpleNamespace(total=total, used=used, free=total - used)


def nvmlDeviceGetComputeRunningProcesses(card):
    return [SimpleNamespace(pid=p, usedGpuMemory=size) for p, size in card.get("processes", [])]


def nvmlDeviceGetGraphicsRunningProcesses(card):
    raise NVMLError("Not Supported")


def nvmlDeviceGetMigMode(card):
    if "mig" not in card:
        raise NVMLError("Not Supported")
    return 1, 1


def nvmlDeviceGetMaxMigDeviceCount(card):
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(card, index):
    if index >= len(card["mig"]):
        raise NVMLError("Not Found")
    return card["mig"][index]
