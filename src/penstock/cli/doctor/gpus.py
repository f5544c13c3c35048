"""NVIDIA's driver and cards: asked through NVML, else read from /proc, else from nvidia-smi.

None of them starts CUDA, so looking takes no memory of a card.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from penstock.cli.doctor.finding import Finding, note, ok, problem

_OLDEST_DRIVER = 525  # the first for CUDA 12
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
_SMI_SECONDS = 20.0


class Cards(NamedTuple):
    """The driver's version ("": there is none), and each card in words."""

    driver: str
    cards: list[str]


def cards() -> Cards:
    """What there is."""
    for source in (_from_nvml, _from_proc, _from_smi):
        found = source()
        if found.driver:
            return found
    return Cards("", [])


def findings(found: Cards) -> list[Finding]:
    """What to say of them."""
    if not found.driver:
        present = _on_the_bus()
        if present:
            return [
                problem(
                    "gpu",
                    f"{present} NVIDIA card{'s' if present > 1 else ''}, but no driver",
                    "install NVIDIA's driver, or start the container with --gpus all",
                )
            ]
        return [ok("gpu", "none: models run on CPUs")]
    told: list[Finding] = []
    release = found.driver.partition(".")[0]
    if release.isdigit() and int(release) < _OLDEST_DRIVER:
        told.append(
            problem(
                "driver",
                f"{found.driver} is too old for CUDA 12",
                f"install NVIDIA's driver {_OLDEST_DRIVER} or newer",
            )
        )
    else:
        told.append(ok("driver", found.driver))
    told += [ok(f"gpu {index}", card) for index, card in enumerate(found.cards)]
    if not found.cards:
        told.append(problem("gpu", "the driver sees no card", "look at nvidia-smi, and at dmesg"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and found.cards:
        what = visible or "empty: it hides every GPU"
        told.append(
            note("visible gpus", f"CUDA_VISIBLE_DEVICES is {what}", "unset it to use all of them")
        )
    return told


def _from_nvml() -> Cards:
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, no driver, a driver that does not fit: others may know
        return Cards("", [])
    try:
        found: list[str] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            name = _text(nvml.nvmlDeviceGetName(handle))
            free, total = memory.free / 2**30, memory.total / 2**30
            found.append(f"{name}, {free:.1f} of {total:.1f} GB free")
        return Cards(_text(nvml.nvmlSystemGetDriverVersion()), found)
    except nvml.NVMLError:
        return Cards("", [])
    finally:
        nvml.nvmlShutdown()


def _from_proc(place: Path = Path("/proc/driver/nvidia")) -> Cards:
    try:
        match = re.search(r"Module.*?(\d+\.[\d.]+)", (place / "version").read_text())
        found = []
        for file in sorted(place.glob("gpus/*/information")):
            facts = dict(re.findall(r"^(.*?):\s*(.*)$", file.read_text(), re.MULTILINE))
            found.append(facts.get("Model", "unknown"))
    except OSError:
        return Cards("", [])
    return Cards(match[1] if match else "", found)


def _from_smi() -> Cards:
    command = [
        "nvidia-smi",
        "--query-gpu=driver_version,name,memory.total",
        "--format=csv,noheader",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return Cards("", [])
    lines = [line.split(", ") for line in done.stdout.splitlines() if line.count(", ") == 2]
    if done.returncode or not lines:
        return Cards("", [])
    return Cards(lines[0][0], [f"{name}, {memory}" for _, name, memory in lines])


def _on_the_bus(place: Path = Path("/sys/bus/pci/devices")) -> int:
    """How many NVIDIA cards are plugged in, driver or not."""
    count = 0
    for device in place.glob("*"):
        try:
            vendor = (device / "vendor").read_text().strip()
            kind = (device / "class").read_text()
        except OSError:
            continue
        count += vendor == _NVIDIA and kind.startswith(_DISPLAY)
    return count


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
