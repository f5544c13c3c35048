"""The facts of the machine and of the software: without them a figure means nothing."""

import contextlib
import math
import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.core.processes import ROOT

_COPIED_BYTES = 1 << 27
_COPIES = 5

_PACKAGES = (
    "penstock",
    "numpy",
    "mosec",
    "litserve",
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
    "pyzmq",
    "tensorflow-cpu",
    "keras",
)


def facts() -> dict[str, Any]:
    """What was measured, where and when."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(_field("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
        "kernel": platform.release(),
        "copy_gb_per_s": round(_copy_speed() / 1e9, 1),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "commit": _commit(),
    }


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def _copy_speed() -> float:
    """Bytes a second that one core copies, at best, between areas that no cache holds."""
    source = np.ones(_COPIED_BYTES, np.uint8)
    target = np.empty_like(source)
    best = math.inf
    for _ in range(_COPIES):
        began = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - began)
    return _COPIED_BYTES / best


def _version(package: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _commit() -> str | None:
    """The commit of this checkout, with a plus sign where it was changed since."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()
