"""The command: python -m benchmarks.train [--only PART,...] [--quick] [--rehearse] [--out DIR].

Tells every figure as soon as it is known, and writes results.json and table.txt then; plot.png
after each part. With --only, what an earlier command with the same plan found of other parts stays
in the results. A part that fails, or takes longer than it may, leaves the others their turn. Ends
with 1 then, and where a way of Penstock's failed.
"""

import argparse
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.core import machine, rehearsal
from benchmarks.core.budget import Budget, add_limits, told_failure
from benchmarks.gpu import card
from benchmarks.train import report
from benchmarks.train.parts import PARTS
from benchmarks.train.plan import Plan, add_flags, plan_of
from benchmarks.train.results import Results
from benchmarks.train.turns import Outcome, Place

_WIDTH = 150


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(soft_wrap=True, highlight=False, markup=False)
    facts = machine.facts() | {"card": card.facts()}
    if not facts["card"] and not arguments.rehearse:
        console.print("There is no GPU here (nvidia-smi tells of none): use --rehearse.")
        return 2
    if arguments.rehearse:
        console.print(rehearsal.SAID)
    plan = plan_of(arguments)
    head = {
        "quick": arguments.quick,
        "rehearsal": arguments.rehearse,
        "plan": {name: value for name, value in asdict(plan).items() if name != "ways"},
    }
    results = Results(arguments.out, head, facts)
    kept = results.keep() if arguments.only else []
    if kept:
        console.print(f"Kept from an earlier command: {', '.join(kept)}")
    budget = Budget(arguments.limit, arguments.part_limit)
    place = Place(arguments.rehearse)
    failed = []
    try:
        for part in arguments.only or PARTS:
            if not _run(part, plan, place, results, budget, console):
                failed.append(part)
    except KeyboardInterrupt:
        console.print(f"Interrupted; what was found is in {arguments.out}")
        return 130
    finally:
        place.remove()
    results.show(Console(width=None if sys.stdout.isatty() else _WIDTH))
    console.print(f"Written to {arguments.out}")
    if failed:
        console.print(f"Failed, or out of time: {', '.join(failed)}", style="red")
    return 1 if failed else 0


def _run(
    part: str, plan: Plan, place: Place, results: Results, budget: Budget, console: Console
) -> bool:
    """One part; whether all ways came to their end, but those of Keras that need not."""

    def tell(outcome: Outcome, news: str) -> None:
        told = report.short(outcome.error) if outcome.error else news
        console.print(f"{part:6} {outcome.title:38} {told}")
        results.add(part, outcome)

    if budget.is_over:
        console.print(f"{part}: not begun, no time is left", style="red")
        return False
    results.begin(part)
    began, failure = time.monotonic(), None
    try:
        with budget.part():
            PARTS[part](plan, place, tell)
    except Exception as error:  # a fault of the benchmark's own, too: the others may have none
        failure = told_failure(part, error, console)
    took = time.monotonic() - began
    for row in results.parts[part]:
        console.print(report.line(part, row))
    console.print(f"{part} took {took:.1f} s")
    results.end(part, took, failure)
    results.draw(f"{plan.network}, training")
    ours = [row for row in results.parts[part] if row["way"]["way"] == "penstock"]
    return failure is None and not any(row["error"] for row in ours)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train", description=__doc__)
    parser.add_argument("--only", type=_parts, default=[], help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="a short run, for a first impression")
    rehearsal.add_flag(parser)
    add_limits(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=rehearsal.RESULTS / "train",
        help="folder for the results (default: benchmarks/results/train)",
    )
    add_flags(parser)
    arguments = parser.parse_args()
    rehearsal.keep_apart(parser, arguments)
    return arguments


def _parts(text: str) -> list[str]:
    asked = text.split(",")
    for part in asked:
        if part not in PARTS:
            raise argparse.ArgumentTypeError(f"no part {part!r}; there are {', '.join(PARTS)}")
    return [part for part in PARTS if part in asked]


if __name__ == "__main__":
    sys.exit(main())
