"""The command: python -m benchmarks.gpu [--only PART,...] [--quick] [--rehearse] [--out DIR].

Tells every figure as soon as it is known, and writes results.json after each; table.txt and
plot.png after each part. With --only, what an earlier command found of other parts stays in the
results. A part that fails, or takes longer than it may, leaves the others their turn; the command
ends with 1 then.
"""

import argparse
import json
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.core import machine, rehearsal
from benchmarks.core.budget import Budget, OutOfTime, add_limits, told_failure
from benchmarks.core.processes import ChildFailed, children
from benchmarks.gpu import card, loads, mps, report, soak, sweep, tight, tuned, ways
from benchmarks.gpu.bench import Bench, settings_of
from benchmarks.gpu.images import FACTS, facts_of
from benchmarks.gpu.place import Place
from benchmarks.gpu.plan import Plan, add_flags, plan_of
from benchmarks.gpu.results import Results, Row
from benchmarks.gpu.targets import verdicts

PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "limit": sweep.run,
    "crowd": loads.crowd,
    "few": loads.few,
    "one": loads.one,
    "array": loads.array,
    "again": loads.again,
    "tune": tuned.run,
    "ways": ways.run,
    "tight": tight.run,
    "mps": mps.run,
    "soak": soak.run,
}
_OF_ONE_ENGINE = ("crowd", "few", "one", "array", "again")
_MADE_WITHIN = 300.0
_WIDTH = 140


def main() -> int:
    arguments = _arguments()
    plan = plan_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(soft_wrap=True, highlight=False, markup=False)
    wide = Console(width=None if sys.stdout.isatty() else _WIDTH)
    facts = machine.facts() | {"card": card.facts()}
    if not facts["card"] and not arguments.rehearse:
        console.print("There is no GPU here (nvidia-smi tells of none): use --rehearse.")
        return 2
    if arguments.rehearse:
        console.print(rehearsal.SAID)
    wanted = [part for part in PARTS if part in (arguments.only or PARTS)]
    if not plan.tight and "tight" in wanted:
        wanted.remove("tight")
        console.print("tight: left out, it needs a card to fill")
    results = _results(arguments, plan, facts)
    kept = results.keep(PARTS) if arguments.only else []
    if kept:
        console.print(f"Kept from an earlier command: {', '.join(kept)}")
    budget = Budget(arguments.limit, arguments.part_limit)
    place = Place(arguments.work, arguments.rehearse)
    settings = settings_of(plan, dict(arguments.setting))
    bench = Bench(plan, place, results, settings)
    try:
        with budget.part():
            results.network = _network(plan, place, console)
        failed = []
        for part in wanted:
            if not _run(bench, part, budget, console):
                failed.append(part)
            try:
                _publish(bench, arguments.out, facts)
            except Exception:  # what cannot be shown is in results.json
                console.print(traceback.format_exc(), style="red")
    except KeyboardInterrupt:
        console.print(f"Interrupted; what was found is in {arguments.out}")
        return 130
    except (ChildFailed, OutOfTime) as error:
        console.print(f"There is no network to measure: {error}", style="red")
        return 1
    finally:
        bench.end_engine()
        place.remove()
        _publish(bench, arguments.out, facts)
    report.show(wide, results, verdicts(results, plan.precision), facts)
    console.print(f"Written to {arguments.out}")
    if failed:
        console.print(f"Failed, or out of time: {', '.join(failed)}", style="red")
    return 1 if failed else 0


def _run(bench: Bench, part: str, budget: Budget, console: Console) -> bool:
    """One part; whether it came to its end."""
    if budget.is_over:
        console.print(f"{part}: not begun, no time is left", style="red")
        return False
    if part not in _OF_ONE_ENGINE:
        bench.end_engine()
    bench.results.begin(part, asdict(bench.plan))
    began, failure = time.monotonic(), None
    try:
        with budget.part():
            for row in PARTS[part](bench):
                bench.results.add(part, row)
                console.print(report.line(part, row))
    except Exception as error:  # a fault of the benchmark's own, too: the others may have none
        failure = told_failure(part, error, console)
    took = time.monotonic() - began
    if failure is not None:
        bench.end_engine()
    bench.results.end(part, took, failure)
    console.print(f"{part:6} took {took:.1f} s")
    return failure is None


def _network(plan: Plan, place: Place, console: Console) -> dict[str, Any]:
    """The network's file and images: those that the folder has, or new ones."""
    if (place.files / FACTS).exists():
        found = facts_of(place.files)
        asked = (plan.network, plan.precision)
        if (found["kind"], found["precision"]) == asked and found["images"] >= plan.images_made():
            return found
    began = time.monotonic()
    command = ["benchmarks.gpu.network", str(place.files), plan.network, plan.precision]
    with children([[*command, str(plan.images_made())]], place) as [child]:
        facts = child.hear(began + _MADE_WITHIN)
    took = time.monotonic() - began
    console.print(
        f"{plan.network} made in {took:.1f} s; answers differ by {facts['closest_answers']:.2g} or "
        f"more, {plan.precision} is off by {facts['off_in_this_precision']:.2g}, "
        f"{facts['tolerance']:.2g} is allowed"
    )
    if not facts["mixed_up_answers_are_seen"]:
        console.print("This precision is off by so much that mixed-up answers may go unseen.")
    return facts


def _results(arguments: argparse.Namespace, plan: Plan, facts: dict[str, Any]) -> Results:
    gpus = [gpu["name"] for gpu in facts["card"].get("gpus", [])]
    head = {
        "quick": arguments.quick,
        "gpus": gpus,
        "cpu": facts["cpu"],
        "kind": plan.network,
        "precision": plan.precision,
    }
    if arguments.rehearse:
        head["rehearsal"] = True
    return Results(arguments.out, head, facts, PARTS)


def _publish(bench: Bench, out: Path, facts: dict[str, Any]) -> None:
    """All files, of all that is known."""
    from benchmarks.gpu.plot import draw

    results, precision = bench.results, bench.plan.precision
    if not results.parts:
        return
    judged = verdicts(results, precision)
    results.write(settings=bench.settings, verdicts=[asdict(one) for one in judged])
    with (out / "table.txt").open("w") as file:
        report.show(Console(file=file, width=_WIDTH), results, judged, facts)
    draw(results, precision, out / "plot.png")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--only", type=_parts, default=[], help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="a short run, for a first impression")
    rehearsal.add_flag(parser)
    add_limits(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=rehearsal.RESULTS / "gpu",
        help="folder for the results (default: benchmarks/results/gpu)",
    )
    parser.add_argument(
        "--work",
        type=Path,
        help="folder for the network and caches, kept for the next command (default: a new one)",
    )
    parser.add_argument(
        "--setting",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Penstock's engine or model, its value as JSON; several times",
    )
    add_flags(parser)
    arguments = parser.parse_args()
    rehearsal.keep_apart(parser, arguments)
    return arguments


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    for part in parts:
        if part not in PARTS:
            raise argparse.ArgumentTypeError(f"no part {part!r}; there are {', '.join(PARTS)}")
    return parts


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


if __name__ == "__main__":
    sys.exit(main())
