"""What a user gets today, what Penstock gives, and the limit: images a second, in one picture."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from benchmarks.gpu.results import Results

_OURS, _THEIRS, _LIMIT = "#1769aa", "#b0b7bf", "#c0392b"


def draw(results: Results, precision: str, path: Path) -> None:
    """Write the picture as PNG; nothing where there is no bar."""
    bars = [(row["title"], row["images_per_s"], _THEIRS) for row in results.rows("ways")]
    for part in ("one", "few", "crowd", "array"):
        bars += [(row["title"], row["images_per_s"], _OURS) for row in results.rows(part)]
    limit = results.limit(precision)
    if limit:
        bars.append((f"the limit, {precision}, data on the device", limit, _LIMIT))
    bars = [bar for bar in bars if bar[1]]
    if not bars:
        return
    figure, axes = pyplot.subplots(figsize=(11, 1.2 + 0.42 * len(bars)))
    axes.set_title(f"{results.network.get('kind')}, {precision}: images/s (logarithmic)")
    axes.set_xscale("log")
    for title, rate, color in bars:
        drawn = axes.barh(title, rate, color=color)
        axes.bar_label(drawn, [f"{rate:,.0f}"], padding=3)
    if limit:
        axes.axvline(limit, color=_LIMIT, linestyle="--", linewidth=1)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
