"""A run in one picture: images a second, memory, and the first start beside the second."""

from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.models.findings import Findings
from benchmarks.models.targets import LIMIT_SHARE

_OURS, _THEIRS, _GOAL = "#1769aa", "#b0b7bf", "#c0392b"


def draw(findings: Findings, path: Path) -> None:
    """Write the picture as PNG."""
    figure, (rates, memory, starts) = pyplot.subplots(
        1, 3, figsize=(15, 4.2), width_ratios=(1.2, 1, 0.8)
    )
    _draw_rates(rates, findings)
    _draw_memory(memory, findings)
    _draw_starts(starts, findings)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_rates(axes: Axes, findings: Findings) -> None:
    axes.set_title("MobileNetV2, single images from 8 processes: images/s")
    ways = [findings.penstock, findings.predict, findings.function]
    bars = [(way.title, way.rates()) for way in ways if way.rounds]
    best = findings.best_limit()
    if best is not None:
        bars.append((best.title, best.rates()))
        goal = LIMIT_SHARE * median(best.rates())
        axes.axvline(goal, color=_GOAL, linestyle="--", linewidth=1)
        bottom = axes.get_xaxis_transform()
        axes.text(goal, 0.02, " goal", color=_GOAL, fontsize=8, transform=bottom)
    for title, values in bars:
        middle = median(values)
        spread = [[middle - min(values)], [max(values) - middle]]
        drawn = axes.barh(title, middle, xerr=spread, color=_color(title), capsize=3)
        axes.bar_label(drawn, [f"{middle:,.0f}"], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.16)


def _draw_memory(axes: Axes, findings: Findings) -> None:
    axes.set_title("Memory of all processes (PSS): MB")
    best = findings.best_limit()
    ways = [findings.penstock, findings.predict, findings.function, *([best] if best else [])]
    for way in ways:
        if way.memory_bytes is not None:
            megabytes = way.memory_bytes / 1e6
            drawn = axes.barh(way.title, megabytes, color=_color(way.title))
            axes.bar_label(drawn, [f"{megabytes:,.0f}"], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.16)


def _draw_starts(axes: Axes, findings: Findings) -> None:
    axes.set_title("Start to first answer: s")
    pairs = findings.pairs
    if not pairs:
        return
    for name, values in (
        ("empty cache", [pair.first.answered_s for pair in pairs]),
        ("filled cache", [pair.second.answered_s for pair in pairs]),
    ):
        middle = median(values)
        drawn = axes.bar(name, middle, color=_OURS if name.startswith("filled") else _THEIRS)
        axes.bar_label(drawn, [f"{middle:.1f}"], padding=3)
        axes.plot([name] * len(values), values, "_", color="black", markersize=14)
    axes.margins(y=0.14)


def _color(title: str) -> str:
    return _OURS if title.startswith("Penstock") else _THEIRS
