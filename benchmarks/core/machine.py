"""The facts of the machine and of the software: without them a figure means nothing."""

import contextlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.core.processes import ROOT

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
)


def facts() -> dict[str, Any]:
    """What was measured, where and when."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(_field("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
        "kernel": platform.release(),
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
