"""Whole data sets on a GPU: python -m benchmarks.offline.gpu --out DIR [--quick] [--work DIR].

ResNet-50 in half precision over 50,000 images in one mapped array, and over 20,000 JPEG files, with
`penstock.predict`, beside the most that the device can do on data that it has: that is measured
before and after, by `benchmarks.gpu.limit`, a process that imports no Penstock. Writes results.json
and table.txt after every figure. Rows a second count from the first read to the whole output on the
disk; `until joined`, to its last part there.

`--work`: a folder for the network, the data and the caches, kept for the next command; that of
`benchmarks.gpu` will do. `--cpu`: a small network, to see that it runs.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.core import machine
from benchmarks.core.goals import goals_table, verdict
from benchmarks.core.processes import ROOT, ChildFailed, children
from benchmarks.gpu import card
from benchmarks.gpu.images import FACTS, facts_of
from benchmarks.gpu.place import Place
from benchmarks.offline.gpu_data import make_array, make_files

_NETWORK = {"gpu": ("resnet50", "mixed_float16"), "cpu": ("mobilenetv2", "float32")}
_MODE = {"gpu": "frozen-xla", "cpu": "frozen"}
_SIZES = {"gpu": (256, 512, 1024), "cpu": (32, 64)}
_ROWS = {"gpu": (50_000, 20_000), "cpu": (4_000, 2_000)}
_QUICK_ROWS = {"gpu": (20_000, 8_000), "cpu": (600, 300)}
_CELL_SECONDS, _CALLS = 1.5, 20
_WITHIN = 300.0
_GOAL, _STRETCH = 0.85, 0.95
_WIDTH = 120


def main() -> int:
    arguments = _arguments()
    console = Console(soft_wrap=True, highlight=False, markup=False)
    facts = machine.facts() | {"card": card.facts()}
    if not facts["card"] and not arguments.cpu:
        console.print("There is no GPU here (nvidia-smi tells of none): use --cpu.")
        return 2
    kind = "cpu" if arguments.cpu else "gpu"
    results: dict[str, Any] = {"machine": facts, "kind": kind, "limit": [], "jobs": []}
    place = Place(arguments.work, arguments.cpu)
    try:
        _measure(kind, arguments, place, results, console)
    except ChildFailed as error:
        console.print(str(error), style="red")
        return 1
    finally:
        place.remove()
    _show(Console(width=None if sys.stdout.isatty() else _WIDTH), results)
    console.print(f"Written to {arguments.out}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offline.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows, one round")
    parser.add_argument("--cpu", action="store_true", help="a small network on the CPU")
    parser.add_argument("--rounds", type=int, default=0, help="of each job (default: 2; quick: 1)")
    parser.add_argument(
        "--max-batch", type=int, default=0, help="Penstock's largest batch (0: what it finds best)"
    )
    parser.add_argument("--work", type=Path, help="kept for the next command (default: a new one)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "offline-gpu")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 2)
    return arguments


def _measure(
    kind: str, arguments: argparse.Namespace, place: Place, results: dict[str, Any], to: Console
) -> None:
    def found(part: str, row: dict[str, Any]) -> None:
        results[part].append(row)
        _write(arguments.out, results)

    images, files = (_QUICK_ROWS if arguments.quick else _ROWS)[kind]
    results["network"] = _network(kind, place)
    for row in _limit(kind, place, _SIZES[kind]):
        found("limit", row)
        to.print(f"limit: {_told(row)}")
    began = time.monotonic()
    sources = {"npy": make_array(place.files, images), "jpeg": make_files(place.files, files)}
    to.print(f"{images:,} images and {files:,} files made in {time.monotonic() - began:.1f} s")
    for number in range(arguments.rounds):
        for data, source in sources.items():
            rows = images if data == "npy" else files
            report = _job(kind, place, source, rows, arguments.max_batch)
            found("jobs", {"round": number, "data": data, **report})
            to.print(
                f"{data}: {report['ended']:,.0f} rows/s, {report['rate']:,.0f} until joined; "
                f"started in {report['starting']:.1f} s; {report['advice']}"
            )

    best = max(results["limit"], key=lambda row: row.get("images_per_s", 0.0))["size"]
    for row in _limit(kind, place, [best]):  # what disturbed the first one may be over
        found("limit", row)
        to.print(f"limit, once more: {_told(row)}")


def _network(kind: str, place: Place) -> dict[str, Any]:
    """The network's file and images: those that the folder has, or new ones."""
    name, precision = _NETWORK[kind]
    images = max(_SIZES[kind])
    if (place.files / FACTS).exists():
        known = facts_of(place.files)
        if (known["kind"], known["precision"]) == (name, precision) and known["images"] >= images:
            return known
    command = ["benchmarks.gpu.network", str(place.files), name, precision, str(images)]
    with children([command], place) as [child]:
        return child.hear(time.monotonic() + _WITHIN)


def _limit(kind: str, place: Place, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Images a second on data that the device has, at each size."""
    with children([["benchmarks.gpu.limit", str(place.files)]], place) as [child]:
        child.hear(time.monotonic() + _WITHIN)
        for size in sizes:
            cell = {"precision": _NETWORK[kind][1], "mode": _MODE[kind], "size": size}
            child.say(cell | {"seconds": _CELL_SECONDS, "calls": _CALLS})
            yield cell | child.hear(time.monotonic() + _WITHIN)


def _job(kind: str, place: Place, source: Path, rows: int, max_batch: int) -> dict[str, Any]:
    command = ["benchmarks.offline.gpu_job", str(place.files), str(source)]
    command += [_NETWORK[kind][1], str(rows), str(max_batch)]
    with children([command], place) as [child]:
        return child.hear(time.monotonic() + _WITHIN)


def _write(out: Path, results: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    with (out / "table.txt").open("w") as file:
        _show(Console(file=file, width=_WIDTH), results)


def _best(results: dict[str, Any]) -> float | None:
    return max((row.get("images_per_s", 0.0) for row in results["limit"]), default=0.0) or None


def _told(row: dict[str, Any]) -> str:
    rate = f"{row['images_per_s']:,.0f} images/s" if "images_per_s" in row else row["error"]
    return f"{row['precision']} {row['mode']}, batch {row['size']}: {rate}"


def _show(console: Console, results: dict[str, Any]) -> None:
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
    if results["kind"] == "cpu":
        return  # the goal is one for GPUs
    best = max((job["ended"] for job in results["jobs"] if job["data"] == "npy"), default=None)
    share = best / limit if best and limit else None
    console.print(goals_table([verdict("npy, of the limit", "times", share, "≥", _GOAL, _STRETCH)]))


if __name__ == "__main__":
    sys.exit(main())
