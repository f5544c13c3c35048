"""A plan as a PNG: throughput, latency and memory against the batch size. Needs matplotlib."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.tuning.plan import Plan

_COLOUR = "#1f6f8b"
_NEEDED = "a plot needs matplotlib: pip install matplotlib"


def check(path: Path) -> None:
    """Raise `ConfigError` if a picture could not be drawn or written there, before it is made."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(_NEEDED)
    _kind(path)
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"the plot {path} cannot be written: there is no folder {folder}")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"the plot {path} cannot be written there")


def draw(plan: Plan, path: Path) -> None:
    """Write the picture. Raises `ConfigError` where it cannot be drawn or written."""
    if not plan.sizes:
        raise ConfigError(f"nothing was measured of {plan.model!r}, so there is nothing to draw")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ConfigError(_NEEDED) from error
    panels: list[tuple[str, list[float]]] = [
        ("rows a second", [size.rows_per_second for size in plan.sizes]),
        ("latency, ms", [size.latency * 1e3 for size in plan.sizes]),
    ]
    if any(size.memory for size in plan.sizes):
        panels.append(("memory, MB", [size.memory / 2**20 for size in plan.sizes]))
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for number, (title, values) in enumerate(panels):
        _panel(figure.add_subplot(1, len(panels), number + 1), plan, title, values)
    precision = plan.precision or "as saved"
    figure.suptitle(f"{plan.model} on {plan.device}: {plan.mode}, {precision}")
    try:
        figure.savefig(path, dpi=120, format=_kind(path))
    except OSError as error:
        raise ConfigError(f"the plot {path} cannot be written: {error.strerror}") from None


def _kind(path: Path) -> str:
    """The kind of file, by its suffix; without one, PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    kind = path.suffix.lower().removeprefix(".") or "png"
    known = sorted(FigureCanvasAgg.get_supported_filetypes())
    if kind not in known:
        raise ConfigError(f"the plot {path}: expected .png, or one of {', '.join(known)}")
    return kind


def _panel(axes: Any, plan: Plan, title: str, values: list[float]) -> None:
    rows = [size.rows for size in plan.sizes]
    axes.plot(rows, values, color=_COLOUR, linewidth=1, zorder=1)
    for measured, face in ((True, _COLOUR), (False, "white")):
        chosen = [at for at, size in enumerate(plan.sizes) if size.measured == measured]
        if chosen:
            axes.scatter(
                [rows[at] for at in chosen],
                [values[at] for at in chosen],
                color=_COLOUR,
                facecolor=face,
                label="measured" if measured else "fitted",
                zorder=2,
            )
    axes.axvline(plan.max_batch, color="grey", linestyle=":", label="largest batch")
    axes.set_xscale("log", base=2)
    axes.set_xticks(rows, [str(size) for size in rows], minor=False)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows in a batch")
    axes.set_title(title)
    axes.legend(fontsize="small")
