"""The command: python -m benchmarks.offline [--quick] [--rounds N] [--out DIR].

Writes results.json and table.txt. All ways in turn, round after round; medians. The answers of all
ways are compared with those of the first.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.core import machine
from benchmarks.core.processes import ROOT, Child, ChildFailed, Workspace
from benchmarks.offline.watch import Watch
from benchmarks.offline.ways import WAYS

_PATIENCE = 1800.0
_TOLERANCE = 1e-5
_OTHER_PIXELS = 0.1  # TensorFlow decodes and resizes with code of its own
_LIMIT = "limit"


def main() -> int:
    arguments = _arguments()
    rows = {"npy": 640, "jpeg": 640} if arguments.quick else {"npy": 20_000, "jpeg": 10_000}
    console, workspace = Console(), Workspace()
    facts, runs = machine.facts(), []
    try:
        folder = workspace.folder
        console.print("making the network and the data")
        _run(["benchmarks.offline.rows", str(folder), str(rows["npy"]), str(rows["jpeg"])],
             workspace, speaks=False)  # fmt: skip
        for number in range(arguments.rounds):
            for data in rows:
                runs += _round(number, data, rows[data], workspace, console)
    except ChildFailed as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return 1
    finally:
        workspace.remove()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = {"machine": facts, "rows": rows, "runs": runs}
    (arguments.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    for target in (console, Console(file=(arguments.out / "table.txt").open("w"), width=140)):
        target.print(_table(runs))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offline", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="640 rows of each, one round")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "offline")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    return arguments


def _round(
    number: int, data: str, rows: int, workspace: Workspace, console: Console
) -> list[dict[str, Any]]:
    found, expected = [], None
    for way in (_LIMIT, *WAYS):
        console.print(f"round {number + 1}, {data}: {way}")
        folder = workspace.folder
        command = ["benchmarks.offline.way", way, str(folder), data, str(rows)]
        result, peak = _run(command, workspace)
        off = None
        if way != _LIMIT:
            answers = np.load(folder / "out.npy")
            expected = answers if expected is None else expected
            off = float(np.abs(answers - expected).max())
            other = data == "jpeg" and "tf.data" in way
            if len(answers) != rows or off > (_OTHER_PIXELS if other else _TOLERANCE):
                raise ChildFailed(f"{way}: {len(answers)} rows, off by {off}")
        rate = result["rows"] / result["seconds"]
        found.append(
            {"round": number, "data": data, "way": way, "rate": rate, "peak": peak, "off": off,
             **result}
        )  # fmt: skip
    return found


def _run(
    command: list[str], workspace: Workspace, speaks: bool = True
) -> tuple[dict[str, Any], int]:
    child = Child(command, workspace)
    try:
        with Watch(child.pid) as watch:
            if speaks:
                result = child.hear(time.monotonic() + _PATIENCE)
            else:
                result = {}
                while child.alive():
                    time.sleep(0.05)
        return result, watch.peak
    finally:
        child.dismiss()
        child.close(time.monotonic() + 10)


def _table(runs: list[dict[str, Any]]) -> Table:
    table = Table(title="A whole data set through MobileNetV2 96×96")
    for name in ("data", "way", "rows/s", "of the limit", "peak memory", "note"):
        table.add_column(name)
    for data in dict.fromkeys(run["data"] for run in runs):
        limits = {r["round"]: r["rate"] for r in runs if (r["data"], r["way"]) == (data, _LIMIT)}
        for way in (_LIMIT, *WAYS):
            mine = [run for run in runs if (run["data"], run["way"]) == (data, way)]
            share = statistics.median(run["rate"] / limits[run["round"]] for run in mine)
            table.add_row(
                data,
                way,
                f"{statistics.median(run['rate'] for run in mine):,.0f}",
                f"{share:.2f}",
                f"{max(run['peak'] for run in mine) / 2**20:,.0f} MB",
                str(mine[-1].get("note", ""))[:60],
            )
    return table


if __name__ == "__main__":
    sys.exit(main())
