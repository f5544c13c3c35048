"""One job over a whole data set, in a process of its own.

    python -m benchmarks.offline.gpu_job FOLDER SOURCE PRECISION ROWS MAX_BATCH

Runs `penstock.predict` with an engine of its own, checks every answer, and says what the report
says, as one JSON line. Images of the array have known answers; a file must be answered as the one
that it is a link to.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from benchmarks.core.client import say
from benchmarks.gpu.images import facts_of
from benchmarks.models.images import ANSWERS, NETWORK, WrongAnswer
from benchmarks.offline.gpu_data import DISTINCT

_OUT = "out.npy"


def main() -> None:
    folder, source = Path(sys.argv[1]), Path(sys.argv[2])
    precision, rows, max_batch = sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    out = folder / _OUT
    report = penstock.predict(
        str(folder / NETWORK),
        str(source),
        str(out),
        precision=precision,
        max_batch=max_batch,
        restart=True,
    )
    if (report.written, report.failed) != (rows, 0):
        raise WrongAnswer(f"{report.written} of {rows} rows came out, {report.failed} failed")
    answers = np.load(out, mmap_mode="r")
    files = source.is_dir()
    right = answers[:DISTINCT] if files else np.load(folder / ANSWERS)
    _check(answers, right, facts_of(folder)["tolerance"])
    if files and len(right) > 1 and np.array_equal(right[0], right[1]):
        raise WrongAnswer("two different files have the same answer")
    say(_told(report))


def _check(answers: Any, right: Any, tolerance: float) -> None:
    for start in range(0, len(answers), len(right)):
        some = answers[start : start + len(right)]
        off = float(np.abs(some - right[: len(some)]).max())
        if not off <= tolerance:
            raise WrongAnswer(f"after row {start}, one is off by {off:.3g} ({tolerance:.3g})")


def _told(report: penstock.JobReport) -> dict[str, Any]:
    told = report.to_json()
    samples = report.samples
    full = [sample for sample in samples if sample.loaders == report.loaders]
    if report.loaders and len(full) > 1 and full[-1].rows > full[0].rows:
        told["all_loaders"] = (full[-1].rows - full[0].rows) / (full[-1].at - full[0].at)
    return told | {
        "ended": report.rows / (report.seconds + report.finishing),
        "advice": report.advice,
    }


if __name__ == "__main__":
    main()
