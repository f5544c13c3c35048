"""Images a second, and gigabytes at the peak, of every way."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

_OURS, _THEIRS = "#1769aa", "#b0b7bf"
_GIB = 1 << 30


def draw(parts: dict[str, list[dict[str, Any]]], title: str, path: Path) -> None:
    """Write the picture as PNG; nothing where there is no bar."""
    rows = [(part, row) for part, found in parts.items() for row in found if row["images_per_s"]]
    if not rows:
        return
    figure, (rates, peaks) = pyplot.subplots(
        1, 2, figsize=(13, 1.4 + 0.42 * len(rows)), sharey=True
    )
    figure.suptitle(title)
    for part, row in rows:
        name = f"{part}: {row['title']}"
        color = _THEIRS if row["way"]["way"] == "plain" else _OURS
        bar = rates.barh(name, row["images_per_s"], color=color)
        rates.bar_label(bar, [f"{row['images_per_s']:,.0f}"], padding=3)
        peak = row["peak_bytes"] / _GIB
        bar = peaks.barh(name, peak, color=color)
        peaks.bar_label(bar, [f"{peak:.1f}" if peak else "not known"], padding=3)
    rates.set_title("images/s")
    peaks.set_title("peak memory, GiB")
    rates.invert_yaxis()
    for axes in (rates, peaks):
        axes.margins(x=0.15)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
