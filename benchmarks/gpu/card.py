"""The GPU, as `nvidia-smi` tells of it: facts, and memory in use. Without one, there is nothing."""

import re
import subprocess
from typing import Any

_FACTS = ("name", "driver_version", "memory.total", "power.limit", "clocks.max.sm")
_MIB = 1 << 20


def facts() -> dict[str, Any]:
    """Of all GPUs that this process may see."""
    listed = _smi(f"--query-gpu={','.join(_FACTS)}", "--format=csv,noheader")
    if listed is None:
        return {}
    gpus = [dict(zip(_FACTS, line.split(", "), strict=False)) for line in listed.splitlines()]
    cuda = re.search(r"CUDA Version: *([\d.]+)", _smi() or "")
    return {"gpus": gpus, "cuda_of_driver": cuda and cuda.group(1)}


def used_bytes() -> int | None:
    """Memory of the first GPU that is in use, by whomever; None without a GPU."""
    told = _smi("--query-gpu=memory.used", "--format=csv,noheader,nounits")
    return int(told.split()[0]) * _MIB if told else None


def _smi(*options: str) -> str | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", *options], capture_output=True, text=True, check=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
