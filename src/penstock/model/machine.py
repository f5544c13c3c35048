"""What a machine is, as far as measurements depend on it: found out without TensorFlow."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform


@functools.cache
def processor() -> str:
    """The processor's name and a hash of all that it can do."""
    try:
        with open("/proc/cpuinfo") as file:
            facts = [line.split(":", 1) for line in file if ":" in line]
    except OSError:
        return platform.processor()
    wanted = {"vendor_id", "cpu family", "model", "model name", "flags"}
    first = {name.strip(): value.strip() for name, value in reversed(facts)}
    text = repr(sorted((name, first.get(name, "")) for name in wanted))
    return f"{first.get('model name', '')} {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def version(package: str) -> str:
    """Of an installed package; "" where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
