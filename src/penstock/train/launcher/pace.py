"""How fast the job trained, against one worker alone, where that is known.

Each run's pace is remembered under what it depends on: the script's text and arguments, the
machine and what a worker computes on. The pace is the chief's own (`rows_per_second`); that of a
run of a few steps (one taken up again near its end, say) tells nothing, and is not remembered.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Any

from penstock.model.cache import Entry, folder
from penstock.train.launcher.job import Job

_ENOUGH = 20  # steps that tell a pace


def scaling(job: Job, device: str, training: Any) -> dict[str, Any] | None:
    """Rows a second, and the efficiency against one worker; `None` where the chief told nothing."""
    try:
        pace, workers = float(training["rows_per_second"]), int(training["workers"])
    except (TypeError, KeyError, ValueError):
        return None
    entry = Entry(_key(job, device), folder() / "train")
    if workers == 1 and not job.servers and pace > 0 and _steps(training) >= _ENOUGH:
        entry.write({"rows_per_second": pace})
    told = {"rows_per_second": pace, "workers": workers}
    one = (entry.read() or {}).get("rows_per_second")
    if workers > 1 and one and pace > 0:
        told |= {"one_worker": one, "efficiency": round(pace / (workers * one), 3)}
    return told


def _steps(training: Any) -> int:
    """How many steps a run has taken itself."""
    return int(training.get("steps") or 0) - int(training.get("resumed_at_step") or 0)


def lines_of(told: dict[str, Any] | None) -> list[str]:
    """The same, for people."""
    if told is None:
        return []
    workers = told["workers"]
    lines = [f"{told['rows_per_second']:,.0f} rows/s, {workers} worker{'s' if workers > 1 else ''}"]
    if "efficiency" in told:
        lines.append(
            f"scaling efficiency {told['efficiency']:.0%}: "
            f"one worker alone trained {told['one_worker']:,.0f} rows/s"
        )
    elif workers > 1:
        lines.append("scaling efficiency is told once the same job has run with --workers 1")
    return lines


def _key(job: Job, device: str) -> dict[str, Any]:
    return {
        "script": hashlib.sha256(Path(job.script).read_bytes()).hexdigest(),
        "arguments": list(job.arguments),
        "machine": platform.node(),
        "device": device.rstrip("0123456789"),  # gpu:0 is as good as gpu:1
        "gpus_per_worker": job.gpus_per_worker,
    }
