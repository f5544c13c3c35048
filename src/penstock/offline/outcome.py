"""What came of a job's rows, counted, checked and told."""

from __future__ import annotations

import os
from typing import Any

from penstock.errors import PenstockError
from penstock.offline.job import Job
from penstock.offline.monitor import Monitor, cores
from penstock.offline.parts import Facts
from penstock.offline.report import JobReport, shares_of
from penstock.offline.stages import limiting


def report_of(
    name: str, what: Any, out: str, job: Job, monitor: Monitor, known: int, taken: float,
    starting: float, finishing: float, errors: str, notes: tuple[str, ...], first: str = "",
) -> JobReport:  # fmt: skip
    device = monitor.device_share()
    served = job.work.served
    return JobReport(
        model=name,
        source=text_of(what),
        out=out,
        rows=job.rows,
        written=job.written,
        failed=job.failed,
        known=known,
        seconds=taken,
        starting=starting,
        finishing=finishing,
        kinds=kinds_of(job.parts),
        errors=errors,
        first=first,
        device=device,
        devices=served.devices,
        cpu=monitor.cpu_share(),
        cores=cores(),
        loaders=job.loaders,
        limit=limiting(job.spent, device),
        stages=job.spent,
        shares=shares_of(job.spent, device),
        plan={**served.plan(), **job.work.cut.to_json()},
        notes=notes,
        samples=tuple(monitor.samples),
    )


def check_rows(job: Job) -> None:
    """Nothing is silently dropped."""
    if not job.work.selection.endless and job.rows != len(job.work.selection):
        raise PenstockError(
            f"{len(job.work.selection):,} rows went in; {job.written:,} came out and "
            f"{job.failed:,} failed: some are missing"
        )


def kinds_of(parts: dict[int, Facts]) -> dict[str, int]:
    found: dict[str, int] = {}
    for facts in parts.values():
        kinds = facts["kinds"]
        assert isinstance(kinds, dict)
        for kind, count in kinds.items():
            found[kind] = found.get(kind, 0) + count
    return found


def text_of(what: Any) -> str:
    return os.fspath(what) if isinstance(what, (str, os.PathLike)) else type(what).__name__
