"""What is known as tables for people."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.core import rehearsal
from benchmarks.core.goals import Verdict, goals_table, number
from benchmarks.gpu.results import Results, Row


def line(part: str, row: Row) -> str:
    """A row, as it is told at once."""
    rate = "" if row.images_per_s is None else f"{number(row.images_per_s)}/s"
    p50 = "" if row.p50_ms is None else f"p50 {number(row.p50_ms)} ms"
    p99 = "" if row.p99_ms is None else f"p99 {number(row.p99_ms)} ms"
    return f"{part:6} {row.title:44} {rate:>10} {p50:>13} {p99:>13}  {row.note}"


def show(
    console: Console, results: Results, verdicts: list[Verdict], machine: dict[str, Any]
) -> None:
    """The machine, one table a part, and the goals."""
    if results.is_rehearsal:
        console.print(rehearsal.SAID)
    gpus = ", ".join(gpu["name"] for gpu in machine["card"].get("gpus", [])) or "no GPU"
    versions = results.network.get("versions", {})
    console.print(
        f"{gpus}; {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Python {machine['python']}, TensorFlow {versions.get('tensorflow')}, "
        f"Keras {versions.get('keras')}, {machine['date']}",
        highlight=False,
    )
    for part, found in results.parts.items():
        console.print(_table(part, found))
    mixed = results.mixed()
    if mixed:
        console.print("The parts are not of one run:", *mixed, sep="\n  ", highlight=False)
    console.print(goals_table(verdicts))


def _table(part: str, found: dict[str, Any]) -> Table:
    table = Table(title=part)
    table.add_column("what")
    rows = found["rows"]
    columns = {"images_per_s": "rows/s" if part == "soak" else "images/s"}
    columns |= {"p50_ms": "p50 ms", "p99_ms": "p99 ms"}
    used = [name for name in columns if any(row[name] is not None for row in rows)]
    for name in used:
        table.add_column(columns[name], justify="right")
    table.add_column("note", max_width=70)
    for row in rows:
        title, note = escape(row["title"]), escape(row["note"])  # errors tell of [/job:localhost]
        table.add_row(title, *(number(row[name]) for name in used), note)
    if found["failure"]:
        table.add_row("failed", *("" for _ in used), escape(found["failure"]))
    return table
