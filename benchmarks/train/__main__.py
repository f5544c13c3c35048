"""The command: python -m benchmarks.train [--only PART,...] [--quick] [--cpu] [--out DIR].

Tells every figure as soon as it is known, and writes results.json, table.txt and plot.png after
each part. Ends with 1 where a way failed that was to work.
"""

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.core import machine
from benchmarks.core.processes import ROOT
from benchmarks.gpu import card
from benchmarks.train import report
from benchmarks.train.parts import PARTS
from benchmarks.train.plan import Plan, add_flags, plan_of
from benchmarks.train.targets import verdicts
from benchmarks.train.turns import Place

_WIDTH = 150


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(soft_wrap=True, highlight=False, markup=False)
    facts = machine.facts() | {"card": card.facts()}
    if not facts["card"] and not arguments.cpu:
        if not arguments.quick:
            console.print("There is no GPU here (nvidia-smi tells of none): use --cpu.")
            return 2
        arguments.cpu = True
    plan = plan_of(arguments)
    place = Place(arguments.cpu)
    parts: dict[str, list[dict[str, Any]]] = {}
    took: dict[str, float] = {}
    try:
        for name in arguments.only:
            began = time.monotonic()
            parts[name] = [outcome.as_json() for outcome in PARTS[name](plan, place)]
            took[name] = round(time.monotonic() - began, 1)
            for row in parts[name]:
                console.print(report.line(name, row))
            console.print(f"{name} took {took[name]} s")
            _publish(arguments, plan, facts, parts, took)
    except KeyboardInterrupt:
        console.print(f"Interrupted; what was found is in {arguments.out}")
        return 130
    finally:
        place.remove()
    wide = Console(width=None if sys.stdout.isatty() else _WIDTH)
    report.show(wide, parts, verdicts(parts, not arguments.cpu), facts)
    console.print(f"Written to {arguments.out}")
    failed = [row for rows in parts.values() for row in rows if row["error"]]
    return int(any(row["way"]["way"] == "penstock" for row in failed))


def _publish(
    arguments: argparse.Namespace,
    plan: Plan,
    facts: dict[str, Any],
    parts: dict[str, list[dict[str, Any]]],
    took: dict[str, float],
) -> None:
    """All files, of all that is known."""
    from benchmarks.train.plot import draw

    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    judged = verdicts(parts, not arguments.cpu)
    found = {
        "benchmark": "train",
        "quick": arguments.quick,
        "machine": facts,
        "plan": asdict(plan),
        "took_s": took,
        "parts": parts,
        "verdicts": [asdict(one) for one in judged],
    }
    unfinished = out / "results.tmp"
    unfinished.write_text(json.dumps(found, indent=1, default=str) + "\n")
    os.replace(unfinished, out / "results.json")
    with (out / "table.txt").open("w") as file:
        report.show(Console(file=file, width=_WIDTH), parts, judged, facts)
    draw(parts, f"{plan.network}, training", out / "plot.png")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train", description=__doc__)
    parser.add_argument("--only", type=_parts, default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="a short run, for a first impression")
    parser.add_argument("--cpu", action="store_true", help="a tiny network on the CPU")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "train",
        help="folder for the results (default: benchmarks/results/train)",
    )
    add_flags(parser)
    return parser.parse_args()


def _parts(text: str) -> list[str]:
    asked = text.split(",")
    for part in asked:
        if part not in PARTS:
            raise argparse.ArgumentTypeError(f"no part {part!r}; there are {', '.join(PARTS)}")
    return [part for part in PARTS if part in asked]


if __name__ == "__main__":
    sys.exit(main())
