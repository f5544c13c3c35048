"""What is known as tables for people."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.core import rehearsal
from benchmarks.core.goals import Verdict, goals_table, number

_GIB = 1 << 30


def line(part: str, row: dict[str, Any]) -> str:
    """A row, as it is told at once."""
    return f"{part:6} {row['title']:38} {_rate(row):>12} {_peak(row):>12}  {_note(row)}"


def show(
    console: Console,
    parts: dict[str, list[dict[str, Any]]],
    verdicts: list[Verdict],
    machine: dict[str, Any],
    is_rehearsal: bool,
) -> None:
    """The machine, one table a part, and the goals."""
    if is_rehearsal:
        console.print(rehearsal.SAID)
    gpus = ", ".join(gpu["name"] for gpu in machine["card"].get("gpus", [])) or "no GPU"
    console.print(
        f"{gpus}; {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Python {machine['python']}, {machine['date']}",
        highlight=False,
    )
    for part, rows in parts.items():
        console.print(_table(part, rows))
    console.print(goals_table(verdicts))


def _table(part: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=part)
    table.add_column("what")
    for column in ("images/s", "against the first", "peak GiB", "against the first"):
        table.add_column(column, justify="right")
    table.add_column("note", max_width=64)
    first = rows[0] if rows else {}
    for row in rows:
        table.add_row(
            row["title"],
            number(row["images_per_s"]),
            _times(row["images_per_s"], first["images_per_s"]),
            number(row["peak_bytes"] / _GIB or None),
            _times(row["peak_bytes"], first["peak_bytes"]),
            escape(_note(row)),  # errors tell of [/job:localhost]
        )
    return table


def _rate(row: dict[str, Any]) -> str:
    return "" if row["images_per_s"] is None else f"{number(row['images_per_s'])}/s"


def _peak(row: dict[str, Any]) -> str:
    return f"{row['peak_bytes'] / _GIB:.2f} GiB" if row["peak_bytes"] else ""


def _times(figure: float | None, other: float | None) -> str:
    return f"× {figure / other:.2f}" if figure and other else ""


def short(error: str) -> str:
    """The first line of an error."""
    return error.splitlines()[0][:160]


def _note(row: dict[str, Any]) -> str:
    if row["error"]:
        return short(row["error"])
    told = row["report"]
    names = ("jit", "micro_batch", "precision", "remat")
    named = [f"{name} {told[name]}" for name in names if name in told]
    why = told.get("jit_trial", {}).get("why", "")
    return f"warm after {row['ready_s']} s; " + ", ".join(named) + (f" ({why})" if why else "")
