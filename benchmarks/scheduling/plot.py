"""p50, p99 and goodput against load: one picture a device, a row for each kind of arrivals."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.scheduling.campaign import OURS, Findings
from benchmarks.scheduling.devices import DEVICES

_COLOURS = ("#e08214", "#b8e186", "#7fbc41", "#4d9221", "#b35806", "#0b3d0b")
_OURS, _BOUND = "#1769aa", "#888888"
_FIGURES = {"p50": "p50, ms", "p99": "p99, ms", "rate": "answered in time, of the capacity"}


def draw(findings: list[Findings], folder: Path) -> list[Path]:
    """Write a PNG for each device; returns their paths."""
    paths = []
    for name in dict.fromkeys(found.cell.device for found in findings):
        chosen = [found for found in findings if found.cell.device == name]
        paths.append(_draw_device(name, chosen, folder / f"{name}.png"))
    return paths


def _draw_device(name: str, findings: list[Findings], path: Path) -> Path:
    kinds = list(dict.fromkeys(found.cell.kind for found in findings))
    figure, rows = pyplot.subplots(len(kinds), 3, figsize=(15, 4.2 * len(kinds)), squeeze=False)
    for kind, axes in zip(kinds, rows, strict=True):
        chosen = [found for found in findings if found.cell.kind == kind]
        for axis, what in zip(axes, _FIGURES, strict=True):
            draw = _closed if kind == "closed" else _curves
            draw(axis, chosen, what, DEVICES[name].capacity)
            axis.set_title(f"{kind}: {_FIGURES[what]}")
            axis.set_ylim(bottom=0)
    rows[0][0].legend(fontsize=8)
    figure.suptitle(DEVICES[name].title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _curves(axes: Axes, findings: list[Findings], what: str, capacity: float) -> None:
    scale = 1 / capacity if what == "rate" else 1.0
    loads = [found.cell.load for found in findings]
    for policy, colour in _colours(findings):
        values = [found.mean(policy, what) * scale for found in findings]
        width = 2.2 if policy == OURS else 1.2
        axes.plot(loads, values, "o-", color=colour, linewidth=width, markersize=3, label=policy)
    bound = [getattr(found.bound, what) * scale for found in findings]
    axes.plot(loads, bound, ":", color=_BOUND, label="bound")
    axes.set_xlabel("load, of the capacity")


def _closed(axes: Axes, findings: list[Findings], what: str, capacity: float) -> None:
    scale = 1 / capacity if what == "rate" else 1.0
    policies = _colours(findings)
    width = 0.8 / len(policies)
    for place, (policy, colour) in enumerate(policies):
        at = [cell + place * width for cell in range(len(findings))]
        values = [found.mean(policy, what) * scale for found in findings]
        axes.bar(at, values, width, color=colour, label=policy)
    for cell, found in enumerate(findings):
        bound = getattr(found.bound, what) * scale
        axes.hlines(bound, cell - width / 2, cell + 0.8, color=_BOUND, linestyle=":")
    axes.set_xticks(
        [cell + 0.4 - width / 2 for cell in range(len(findings))],
        [found.cell.name.removeprefix("closed-").replace("-", "\n", 1) for found in findings],
        fontsize=8,
    )
    axes.set_xlabel("clients × outstanding")


def _colours(findings: list[Findings]) -> list[tuple[str, str]]:
    others = [policy for policy in findings[0].runs if policy != OURS]
    colours = list(zip(others, _COLOURS, strict=False))
    return [*colours, (OURS, _OURS)] if OURS in findings[0].runs else colours
