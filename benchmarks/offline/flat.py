"""Memory by rows, with a model that does nothing: python -m benchmarks.offline.flat [ROWS ...].

Ten thousand and ten million rows by default. Shows the most that the job, its engine and its worker
held, each run in a process of its own, and how fast it was. Writes results.json and table.txt.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.core import machine
from benchmarks.core.processes import ROOT, Child, Workspace
from benchmarks.offline.watch import Watch

_COLUMNS = 4
_FORMATS = ("npy", "parquet")


def main() -> None:
    if len(sys.argv) == 4 and sys.argv[1] == "run":
        _job(sys.argv[2], sys.argv[3])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offline.flat", description=__doc__)
    parser.add_argument("rows", type=int, nargs="*", default=[10_000, 10_000_000])
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / "offline-flat"
    )
    arguments = parser.parse_args()
    console = Console()
    facts, runs = machine.facts(), []
    for suffix in _FORMATS:
        for rows in arguments.rows:
            console.print(f"{rows:,} rows to .{suffix}")
            runs.append(_measure(rows, suffix))
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = {"machine": facts, "row_bytes": 4 * _COLUMNS, "runs": runs}
    (arguments.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    for target in (console, Console(file=(arguments.out / "table.txt").open("w"), width=140)):
        target.print(_table(runs))


def _table(runs: list[dict[str, Any]]) -> Table:
    table = Table(title="The most memory that a job, its engine and its worker held")
    for name in ("to", "rows", "MB", "rows/s", "seconds"):
        table.add_column(name, justify="left" if name == "to" else "right")
    for run in runs:
        table.add_row(
            f".{run['format']}",
            f"{run['rows']:,}",
            f"{run['peak_mb']:,.0f}",
            f"{run['rate']:,.0f}",
            f"{run['seconds']:,.1f}",
        )
    return table


def _measure(rows: int, suffix: str) -> dict[str, Any]:
    workspace = Workspace()
    try:
        with tempfile.TemporaryDirectory(dir=ROOT) as folder:
            _fill(Path(folder) / "x.npy", rows)
            child = Child(["benchmarks.offline.flat", "run", folder, suffix], workspace)
            with Watch(child.pid) as watch:
                result = child.hear(time.monotonic() + 3600)
            child.dismiss()
            child.close(time.monotonic() + 10)
    finally:
        workspace.remove()
    return {"format": suffix, "rows": rows, "peak_mb": watch.peak / 2**20, **result}


def _fill(path: Path, rows: int) -> None:
    x = np.lib.format.open_memmap(path, "w+", np.float32, (rows, _COLUMNS))
    for start in range(0, rows, 1 << 20):
        stop = min(start + (1 << 20), rows)
        x[start:stop] = np.arange(start, stop)[:, None] % 1000


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
