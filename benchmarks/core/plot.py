"""A run in one picture: rows a second, the latency of one request, and many clients."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.core.campaign import Figures, Findings
from benchmarks.core.plan import JUDGED_TOTAL
from benchmarks.core.systems.roster import PENSTOCK

_OURS, _THEIRS, _GOAL = "#1769aa", "#b0b7bf", "#c0392b"
_SCALE = (_OURS, "#74a9cf", "#b3cde3")  # one for each total


def draw(findings: Findings, path: Path) -> None:
    """Write the picture as PNG."""
    figure, (throughput, latency, scale) = pyplot.subplots(1, 3, figsize=(15, 4.6))
    _bars(
        throughput,
        "4 clients × 8 outstanding: rows/s",
        {name: (item, item.rows_per_s()) for name, item in findings.figures.items()},
        goal=15_000,
    )
    _bars(
        latency,
        "1 client × 1 outstanding: p50, µs (log)",
        {name: (item, item.single_p50_us()) for name, item in findings.figures.items()},
        goal=300,
    )
    latency.set_xscale("log")
    latency.set_xlim(left=10)
    _draw_scale(scale, findings)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _bars(
    axes: Axes, title: str, measured: dict[str, tuple[Figures, float | None]], goal: float
) -> None:
    entries = [
        (figures.title, value, _OURS if name == PENSTOCK.name else _THEIRS)
        for name, (figures, value) in measured.items()
        if value is not None
    ]
    axes.set_title(title)
    axes.axvline(goal, color=_GOAL, linestyle="--", linewidth=1)
    bottom = axes.get_xaxis_transform()
    axes.text(goal, 0.02, " goal", color=_GOAL, fontsize=8, transform=bottom)
    if entries:
        titles, values, colors = zip(*entries, strict=True)
        bars = axes.barh(titles, values, color=colors)
        axes.bar_label(bars, [f"{value:,.0f}" for value in values], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.18)


def _draw_scale(axes: Axes, findings: Findings) -> None:
    axes.set_title("Penstock: rows/s by number of clients")
    highest = 0.0
    for total, colour in zip(findings.scale.samples, _SCALE, strict=True):
        rates = {
            clients: rate
            for clients in findings.scale.samples[total]
            if (rate := findings.scale.rows_per_s(clients, total)) is not None
        }
        if not rates:
            continue
        highest = max(highest, *rates.values())
        label = f"{total:,} outstanding in all"
        axes.plot(list(rates), list(rates.values()), "o-", color=colour, label=label)
        if total == JUDGED_TOTAL:
            _label_judged(axes, rates)
    if not highest:
        return
    axes.set_ylim(0, 1.2 * highest)
    axes.legend(fontsize=8)
    axes.margins(x=0.12)


def _label_judged(axes: Axes, rates: dict[int, float]) -> None:
    for clients, rate in rates.items():
        axes.annotate(
            f"{rate:,.0f}", (clients, rate), (0, -14), textcoords="offset points", ha="center"
        )
    if 4 in rates:
        axes.axhline(0.6 * rates[4], color=_GOAL, linestyle="--", linewidth=1)
        axes.annotate(
            f"goal, with {JUDGED_TOTAL}: no less",
            (4, 0.6 * rates[4]),
            (0, -12),
            color=_GOAL,
            fontsize=8,
            textcoords="offset points",
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(rates), [str(clients) for clients in rates])
