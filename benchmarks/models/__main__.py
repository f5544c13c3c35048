"""The command: python -m benchmarks.models [--quick] [--out DIR].

Writes results.json, table.txt and plot.png. Ends with 1 where something could not be measured.
"""

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.core import machine
from benchmarks.core.processes import ROOT, ChildFailed, Workspace
from benchmarks.models import report
from benchmarks.models.campaign import Campaign
from benchmarks.models.findings import Findings
from benchmarks.models.plan import FULL, QUICK, Plan
from benchmarks.models.targets import verdicts


def main() -> int:
    arguments = _arguments()
    plan = QUICK if arguments.quick else FULL
    console = Console()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    facts = machine.facts()
    began = time.monotonic()
    try:
        findings = _run(plan, console)
    except KeyboardInterrupt:
        console.print("Interrupted; nothing was written.")
        return 130
    except ChildFailed as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return 1
    _write(arguments.out, plan, findings, facts, time.monotonic() - began)
    for failure in findings.failures:
        console.print(failure, style="red", markup=False, highlight=False)
    judged = verdicts(findings)
    report.show(console, findings, judged, facts)
    console.print(f"Written to {arguments.out}")
    return 0 if all(verdict.met is not None for verdict in judged) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run, for a first impression")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "models",
        help="folder for the results (default: benchmarks/results/models)",
    )
    return parser.parse_args()


def _run(plan: Plan, console: Console) -> Findings:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    workspace = Workspace()
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("Starting")
            started = 0

            def announce(step: str) -> None:
                nonlocal started
                progress.update(bar, completed=started, description=step)
                started += 1

            campaign = Campaign(plan, workspace, announce)
            progress.update(bar, total=campaign.steps())
            return campaign.run()
    finally:
        workspace.remove()


def _write(out: Path, plan: Plan, findings: Findings, facts: dict[str, Any], took_s: float) -> None:
    from benchmarks.models.plot import draw

    judged = verdicts(findings)
    out.mkdir(parents=True, exist_ok=True)
    results = report.as_json(plan, findings, judged, facts, took_s)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    with (out / "table.txt").open("w") as file:
        report.show(Console(file=file, width=140), findings, judged, facts)
    draw(findings, out / "plot.png")


if __name__ == "__main__":
    sys.exit(main())
