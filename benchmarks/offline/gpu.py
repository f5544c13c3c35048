"""Whole data sets on a GPU: python -m benchmarks.offline.gpu --out DIR [--quick] [--work DIR].

ResNet-50 in half precision over 50,000 images in one mapped array, and over 20,000 JPEG files, with
`penstock.predict`, beside the most that the device can do on data that it has: that is measured
before and after, by `benchmarks.gpu.limit`, a process that imports no Penstock. Writes results.json
and table.txt after every figure. Rows a second count from the first read to the whole output on the
disk; `until joined`, to its last part there.

`--work`: a folder for the network, the data and the caches, kept for the next command; that of
`benchmarks.gpu` will do. A step that fails, or takes longer than it may, leaves the others their
turn; the command ends with 1 then. `--rehearse`: a tiny network without a GPU, to see that it runs.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.core import machine, rehearsal
from benchmarks.core.budget import Budget, OutOfTime, add_limits, told_failure
from benchmarks.core.goals import goals_table, verdict
from benchmarks.core.processes import children
from benchmarks.gpu import card
from benchmarks.gpu.images import FACTS, facts_of
from benchmarks.gpu.place import Place
from benchmarks.offline.gpu_data import make_array, make_files

_CELL_SECONDS, _CALLS = 1.5, 20
_WITHIN = 300.0
_GOAL, _STRETCH = 0.85, 0.95
_WIDTH = 120


@dataclass(frozen=True)
class Scale:
    """How much is measured, and with which network. `rows`: images in the array, and files."""

    network: str = "resnet50"
    precision: str = "mixed_float16"
    mode: str = "frozen-xla"
    sizes: tuple[int, ...] = (256, 512, 1024)
    rows: tuple[int, int] = (50_000, 20_000)


_FULL = Scale()
_QUICK = Scale(rows=(20_000, 8_000))
_REHEARSAL = Scale(network="tiny", sizes=(8, 16), rows=(400, 60))


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
    scale = _REHEARSAL if arguments.rehearse else _QUICK if arguments.quick else _FULL
    scale = replace(scale, sizes=arguments.sizes or scale.sizes)
    results: dict[str, Any] = {"machine": facts, "limit": [], "jobs": [], "failures": {}}
    results["kind"] = "rehearsal" if arguments.rehearse else "gpu"
    place = Place(arguments.work, arguments.rehearse)
    run = Run(scale, place, results, arguments, console)
    try:
        run.measure()
    except KeyboardInterrupt:
        console.print(f"Interrupted; what was found is in {arguments.out}")
        return 130
    finally:
        place.remove()
    if "network" in results:
        _show(Console(width=None if sys.stdout.isatty() else _WIDTH), results)
        console.print(f"Written to {arguments.out}")
    if results["failures"]:
        console.print(f"Failed, or out of time: {', '.join(results['failures'])}", style="red")
    return 1 if results["failures"] else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offline.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows, one round")
    rehearsal.add_flag(parser)
    add_limits(parser)
    parser.add_argument("--rounds", type=int, default=0, help="of each job (default: 2; quick: 1)")
    parser.add_argument("--data", default="npy,jpeg", help="npy, jpeg, or both (default: both)")
    parser.add_argument(
        "--max-batch", type=int, default=0, help="Penstock's largest batch (0: what it finds best)"
    )
    parser.add_argument(
        "--sizes",
        type=_sizes,
        help="limit: batch sizes, with commas between (default: 256,512,1024)",
    )
    parser.add_argument("--work", type=Path, help="kept for the next command (default: a new one)")
    parser.add_argument("--out", type=Path, default=rehearsal.RESULTS / "offline-gpu")
    arguments = parser.parse_args()
    rehearsal.keep_apart(parser, arguments)
    arguments.data = arguments.data.split(",")
    if not {"npy", "jpeg"}.issuperset(arguments.data):
        parser.error(f"no such data: {', '.join(arguments.data)}; there are npy and jpeg")
    once = arguments.quick or arguments.rehearse
    arguments.rounds = arguments.rounds or (1 if once else 2)
    return arguments


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


class Run:
    """One step after the other; `results` has what they found, and which of them failed."""

    def __init__(
        self,
        scale: Scale,
        place: Place,
        results: dict[str, Any],
        arguments: argparse.Namespace,
        to: Console,
    ) -> None:
        self._scale = scale
        self._place = place
        self._results = results
        self._arguments = arguments
        self._to = to
        self._budget = Budget(arguments.limit, arguments.part_limit)

    def measure(self) -> None:
        """Everything, as far as time allows."""
        if not self._step("network", self._network):
            return
        self._step("limit", partial(self._limit, self._scale.sizes))
        made: dict[str, Path] = {}
        if not self._step("data", partial(self._data, made)):
            return
        for number in range(self._arguments.rounds):
            for data in made:
                self._step(f"{data}, round {number}", partial(self._job, data, made[data], number))
        best = max(
            self._results["limit"], key=lambda row: row.get("images_per_s", 0.0), default=None
        )
        if best is not None:  # what disturbed the first one may be over
            self._step("limit, once more", partial(self._limit, [best["size"]]))

    def _step(self, name: str, work: Callable[[], None]) -> bool:
        """Whether it came to its end."""
        try:
            if self._budget.is_over:
                raise OutOfTime("not begun, no time is left")
            with self._budget.part():
                work()
            return True
        except Exception as error:  # a fault of the benchmark's own, too: others may have none
            self._results["failures"][name] = told_failure(name, error, self._to)
        if "network" in self._results:
            _write(self._arguments.out, self._results)
        return False

    def _network(self) -> None:
        self._results["network"] = _network(self._scale, self._place)

    def _limit(self, sizes: Sequence[int]) -> None:
        for row in _limit(self._scale, self._place, sizes):
            self._found("limit", row)
            self._to.print(f"limit: {_told(row)}")

    def _data(self, made: dict[str, Path]) -> None:
        began = time.monotonic()
        images, files = self._scale.rows
        if "npy" in self._arguments.data:
            made["npy"] = make_array(self._place.files, images)
        if "jpeg" in self._arguments.data:
            made["jpeg"] = make_files(self._place.files, files)
        self._to.print(f"{' and '.join(made)} made in {time.monotonic() - began:.1f} s")

    def _job(self, data: str, source: Path, number: int) -> None:
        rows = self._scale.rows[data == "jpeg"]
        report = _job(self._scale, self._place, source, rows, self._arguments.max_batch)
        self._found("jobs", {"round": number, "data": data, **report})
        self._to.print(
            f"{data}: {report['ended']:,.0f} rows/s, {report['rate']:,.0f} until joined; "
            f"started in {report['starting']:.1f} s; {report['advice']}"
        )

    def _found(self, part: str, row: dict[str, Any]) -> None:
        self._results[part].append(row)
        _write(self._arguments.out, self._results)


def _network(scale: Scale, place: Place) -> dict[str, Any]:
    """The network's file and images: those that the folder has, or new ones."""
    asked, images = (scale.network, scale.precision), max(scale.sizes)
    if (place.files / FACTS).exists():
        known = facts_of(place.files)
        if (known["kind"], known["precision"]) == asked and known["images"] >= images:
            return known
    command = ["benchmarks.gpu.network", str(place.files), *asked, str(images)]
    with children([command], place) as [child]:
        return child.hear(time.monotonic() + _WITHIN)


def _limit(scale: Scale, place: Place, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Images a second on data that the device has, at each size."""
    with children([["benchmarks.gpu.limit", str(place.files)]], place) as [child]:
        child.hear(time.monotonic() + _WITHIN)
        for size in sizes:
            cell = {"precision": scale.precision, "mode": scale.mode, "size": size}
            child.say(cell | {"seconds": _CELL_SECONDS, "calls": _CALLS})
            yield cell | child.hear(time.monotonic() + _WITHIN)


def _job(scale: Scale, place: Place, source: Path, rows: int, max_batch: int) -> dict[str, Any]:
    command = ["benchmarks.offline.gpu_job", str(place.files), str(source)]
    command += [scale.precision, str(rows), str(max_batch)]
    with children([command], place) as [child]:
        return child.hear(time.monotonic() + _WITHIN)


def _write(out: Path, results: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    unfinished = out / "results.tmp"
    unfinished.write_text(json.dumps(results, indent=1) + "\n")
    os.replace(unfinished, out / "results.json")
    with (out / "table.txt").open("w") as file:
        _show(Console(file=file, width=_WIDTH), results)


def _best(results: dict[str, Any]) -> float | None:
    return max((row.get("images_per_s", 0.0) for row in results["limit"]), default=0.0) or None


def _told(row: dict[str, Any]) -> str:
    rate = f"{row['images_per_s']:,.0f} images/s" if "images_per_s" in row else row["error"]
    return f"{row['precision']} {row['mode']}, batch {row['size']}: {rate}"


def _show(console: Console, results: dict[str, Any]) -> None:
    if results["kind"] == "rehearsal":
        console.print(rehearsal.SAID)
    table = Table(title=f"A whole data set through {results['network']['kind']}")
    names = ("data", "rows/s", "of the limit", "until joined", "with all loaders", "device")
    for name in (*names, "cores", "loaders", "limits", "waited or worked"):
        table.add_column(name)
    limit = _best(results)
    for row in results["limit"]:
        table.add_row(f"limit, batch {row['size']}", f"{row.get('images_per_s', 0):,.0f}")
    for job in results["jobs"]:
        shares = (f"{name} {share:.0%}" for name, share in job["shares"].items() if share >= 0.01)
        table.add_row(
            f"{job['data']}, {job['rows']:,}",
            f"{job['ended']:,.0f}",
            f"{job['ended'] / limit:.3f}" if limit else "",
            f"{job['rate']:,.0f}",
            f"{job['all_loaders']:,.0f}" if "all_loaders" in job else "",
            f"{job['device']:.0%}",
            f"{job['cpu'] * job['cores']:.1f} of {job['cores']}",
            str(job["loaders"]),
            job["limit"],
            ", ".join(shares),
        )
    console.print(table)
    for name, why in results["failures"].items():
        console.print(f"{name} failed: {why}", markup=False)
    best = max((job["ended"] for job in results["jobs"] if job["data"] == "npy"), default=None)
    share = best / limit if best and limit else None
    console.print(goals_table([verdict("npy, of the limit", "times", share, "≥", _GOAL, _STRETCH)]))


if __name__ == "__main__":
    sys.exit(main())
