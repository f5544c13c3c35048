"""The command: python -m benchmarks.scheduling [--quick] [--seeds N] [--only CELL] [--table NAME].

Writes results.json, table.txt and a picture for each device, unless only some cells were asked for
and no `--out` was given. Ends with 1 when a required goal is not met, or not surely.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.core import machine
from benchmarks.core.processes import ROOT
from benchmarks.scheduling import report
from benchmarks.scheduling.campaign import FULL, POLICIES, QUICK, Findings, campaign, cells
from benchmarks.scheduling.devices import DEVICES
from benchmarks.scheduling.verdicts import Verdict, verdicts

_WIDTH = 180


def main() -> int:
    arguments = _arguments()
    plan = QUICK if arguments.quick else FULL
    plan = replace(
        plan, seeds=arguments.seeds or plan.seeds, requests=arguments.requests or plan.requests
    )
    chosen = cells(plan, arguments.table or list(DEVICES), arguments.only)
    policies = arguments.policy or list(POLICIES)
    if not chosen:
        print(f"No cell begins with {arguments.only!r}.", file=sys.stderr)
        return 2
    console = Console(width=_WIDTH)
    began = time.monotonic()
    columns = (TextColumn("Runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=True) as progress:
        bar = progress.add_task("", total=len(chosen) * plan.seeds)
        findings = campaign(plan, chosen, policies, lambda: progress.advance(bar))
    run = asdict(plan) | {"took_s": round(time.monotonic() - began, 1)}
    judged = verdicts(findings) if len(policies) == len(POLICIES) else []
    report.show(console, findings, judged)
    whole = not (arguments.only or arguments.table or arguments.policy)
    out = arguments.out or (ROOT / "benchmarks" / "results" / "scheduling" if whole else None)
    if out is not None:
        _write(out, findings, judged, run)
        console.print(f"Written to {out}")
    return 0 if all(verdict.met for verdict in judged if verdict.required) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer requests, seeds and loads")
    parser.add_argument("--seeds", type=int, help="pairs of runs for each cell")
    parser.add_argument(
        "--requests", type=int, help="requests in each run (more if batches are large)"
    )
    parser.add_argument(
        "--only", default="", help="cells whose name begins so: closed-16x1, poisson"
    )
    parser.add_argument("--table", action="append", choices=list(DEVICES), help="only this device")
    parser.add_argument("--policy", action="append", choices=list(POLICIES), help="only this one")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for the results (default: benchmarks/results/scheduling, for whole runs)",
    )
    return parser.parse_args()


def _write(out: Path, findings: list[Findings], judged: list[Verdict], run: dict) -> None:
    from benchmarks.scheduling.plot import draw

    out.mkdir(parents=True, exist_ok=True)
    results = report.as_json(findings, judged, machine.facts(), run)
    (out / "results.json").write_text(json.dumps(results) + "\n")
    with (out / "table.txt").open("w") as file:
        report.show(Console(file=file, width=_WIDTH), findings, judged)
    draw(findings, out)


if __name__ == "__main__":
    sys.exit(main())
