"""A goal beside the figure of a run: met or not, by arithmetic alone; and the table of goals."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import ge, gt, le, lt

from rich.table import Table


@dataclass(frozen=True)
class Verdict:
    """One goal; `met` and `stretch_met` are None where the figure is missing."""

    name: str
    unit: str
    figure: float | None
    relation: str
    goal: float
    stretch: float | None
    met: bool | None
    stretch_met: bool | None


_RELATIONS: dict[str, Callable[[float, float], bool]] = {"≥": ge, "≤": le, "<": lt, ">": gt}


def verdict(
    name: str, unit: str, figure: float | None, relation: str, goal: float, stretch: float | None
) -> Verdict:
    """Judge a figure."""
    holds = _RELATIONS[relation]
    met = None if figure is None else holds(figure, goal)
    stretch_met = None if figure is None or stretch is None else holds(figure, stretch)
    return Verdict(name, unit, figure, relation, goal, stretch, met, stretch_met)


def goals_table(verdicts: list[Verdict]) -> Table:
    """What was to be reached, and what was."""
    table = Table(title="Goals")
    table.add_column("what")
    for column in ("figure", "goal", "stretch"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for judged in verdicts:
        table.add_row(
            judged.name,
            f"{number(judged.figure)} {judged.unit}",
            f"{judged.relation} {judged.goal:,g}",
            "" if judged.stretch is None else f"{judged.relation} {judged.stretch:,g}",
            _word(judged),
        )
    return table


def number(figure: float | None) -> str:
    """A figure with three digits, or a dash where there is none."""
    if figure is None:
        return "—"
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"


def _word(judged: Verdict) -> str:
    if judged.met is None:
        return "[yellow]not measured[/]"
    if not judged.met:
        return "[red]not met[/]"
    return "[green]met, stretch too[/]" if judged.stretch_met else "[green]met[/]"
