"""Memory by rows, with a model that does nothing: python -m benchmarks.offline.flat [ROWS ...].

Ten thousand and a million rows by default. Shows the most that the job, its engine and its worker
held, each run in a process of its own, and how fast it was.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.core.processes import ROOT, Child, Workspace
from benchmarks.offline.watch import Watch

_COLUMNS = 4


def main() -> None:
    if len(sys.argv) == 4 and sys.argv[1] == "run":
        _job(sys.argv[2], sys.argv[3])
        return
    for rows in [int(text) for text in sys.argv[1:]] or [10_000, 1_000_000]:
        for suffix in ("npy", "parquet"):
            _measure(rows, suffix)


def _measure(rows: int, suffix: str) -> None:
    workspace = Workspace()
    try:
        with tempfile.TemporaryDirectory(dir=ROOT) as folder:
            x = np.lib.format.open_memmap(
                Path(folder) / "x.npy", "w+", np.float32, (rows, _COLUMNS)
            )
            for start in range(0, rows, 1 << 20):
                stop = min(start + (1 << 20), rows)
                x[start:stop] = np.arange(start, stop)[:, None] % 1000
            del x
            command = ["benchmarks.offline.flat", "run", folder, suffix]
            child = Child(command, workspace)
            with Watch(child.pid) as watch:
                result = child.hear(time.monotonic() + 3600)
            child.dismiss()
            child.close(time.monotonic() + 10)
    finally:
        workspace.remove()
    print(
        f"{rows:>12,} rows to .{suffix:<8} peak {watch.peak / 2**20:7.0f} MB   "
        f"{result['rate']:>10,.0f} rows/s   {result['seconds']:.1f} s",
        flush=True,
    )


def _job(folder: str, suffix: str) -> None:
    import penstock
    from benchmarks.core.client import say

    report = penstock.predict(
        "penstock.testing.models:double",
        f"{folder}/x.npy",
        f"{folder}/y.{suffix}",
        max_batch=1024,
    )
    assert report.written == report.rows
    say({"rate": report.rate, "seconds": report.starting + report.seconds + report.finishing})


if __name__ == "__main__":
    main()
