"""A job's report as one page of HTML: figures, bars and a timeline, nothing from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

from penstock.offline.monitor import Sample
from penstock.offline.report import JobReport

_WIDTH, _HEIGHT, _LEFT = 720, 130, 60
_COLOURS = {
    "reading": "#5b8db8",
    "decoding": "#7a6fb0",
    "device": "#4c9f70",
    "queue": "#b0a04c",
    "writing": "#c2703d",
    "sending": "#888888",
    "mapping": "#b05b7a",
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 800px; color: #222 }
h1 { font-size: 1.4em } h2 { font-size: 1.05em; margin: 1.6em 0 .3em }
table { border-collapse: collapse } td { padding: .1em 1.2em .1em 0; vertical-align: top }
svg text { font: 11px system-ui, sans-serif; fill: #555 }
"""


def page(report: JobReport) -> str:
    """The whole page."""
    title = f"{report.model}: {report.source} to {report.out}"
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(report.advice)}</p>",
        _table(report),
        "<h2>Where the time went</h2>",
        _shares(report),
    ]
    if report.samples:
        body += [
            "<h2>The stage that limited</h2>",
            _timeline(report.samples),
            "<h2>Rows a second</h2>",
            _plot(report.samples, rates(report.samples, report.known), "#4c9f70"),
            "<h2>Device and CPU use</h2>",
            _plot(report.samples, [sample.device for sample in report.samples], "#4c9f70",
                  [sample.cpu for sample in report.samples], top=1.0, show=lambda v: f"{v:.0%}"),
            "<p>green: the devices; blue: all cores</p>",
        ]  # fmt: skip
    return (
        "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _table(report: JobReport) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(report.kinds.items()))
    rows = {
        "rows": f"{report.rows:,}",
        "written": f"{report.written:,}",
        "failed": f"{report.failed:,}" + (f" ({kinds})" if kinds else ""),
        "the first": report.first,
        "done before": f"{report.known:,}",
        "time": f"{report.seconds:.1f} s, and {report.starting:.1f} s to start, "
        f"{report.finishing:.1f} s to finish",
        "rate": f"{report.rate:,.0f} rows a second",
        "devices": f"{', '.join(report.devices)}: busy {report.device:.0%}",
        "CPU": f"{report.cpu * report.cores:.1f} of {report.cores} cores busy",
        "loaders": f"{report.loaders}",
        "plan": ", ".join(f"{name} {value}" for name, value in report.plan.items() if value != ""),
        "notes": "; ".join(report.notes),
    }
    cells = (
        f"<tr><td>{name}</td><td>{html.escape(value)}</td></tr>"
        for name, value in rows.items()
        if value
    )
    return f"<table>{''.join(cells)}</table>"


def _shares(report: JobReport) -> str:
    bars, at = [], 0
    for name, share in report.shares.items():
        if share < 0.001:
            continue
        bars.append(
            f'<rect x="120" y="{at}" width="{share * 500:.1f}" height="16" fill="{_colour(name)}"/>'
            f'<text x="0" y="{at + 12}">{name}</text>'
            f'<text x="{126 + share * 500:.1f}" y="{at + 12}">{share:.0%}</text>'
        )
        at += 22
    return f'<svg width="{_WIDTH}" height="{max(at, 1)}">{"".join(bars)}</svg>'


def _timeline(samples: Sequence[Sample]) -> str:
    last = samples[-1].at or 1.0
    parts, before = [], 0.0
    for sample in samples:
        x = _LEFT + before / last * (_WIDTH - _LEFT)
        width = max((sample.at - before) / last * (_WIDTH - _LEFT), 0.5)
        colour = _colour(sample.limit)
        parts.append(
            f'<rect x="{x:.1f}" y="0" width="{width:.1f}" height="20" fill="{colour}">'
            f"<title>{sample.at:.1f} s: {sample.limit or 'nothing'}</title></rect>"
        )
        before = sample.at
    names = list(dict.fromkeys(sample.limit for sample in samples if sample.limit))
    legend = "".join(
        f'<rect x="{_LEFT + at * 100}" y="30" width="10" height="10" fill="{_colour(name)}"/>'
        f'<text x="{_LEFT + 14 + at * 100}" y="39">{name}</text>'
        for at, name in enumerate(names)
    )
    return f'<svg width="{_WIDTH}" height="46">{"".join(parts)}{legend}</svg>'


def rates(samples: Sequence[Sample], known: int) -> list[float]:
    """Rows a second up to each sample, of a job that began with so many."""
    found, at, rows = [], 0.0, known
    for sample in samples:
        found.append((sample.rows - rows) / max(sample.at - at, 1e-9))
        at, rows = sample.at, sample.rows
    return found


def _plot(
    samples: Sequence[Sample],
    values: Sequence[float],
    colour: str,
    others: Sequence[float] = (),
    top: float = 0.0,
    show: Callable[[float], str] = lambda value: f"{value:,.0f}",
) -> str:
    last = samples[-1].at or 1.0
    top = top or max(*values, 1e-9, 0.0)

    def line(found: Sequence[float], colour: str) -> str:
        points = " ".join(
            f"{_LEFT + sample.at / last * (_WIDTH - _LEFT):.1f},"
            f"{_HEIGHT - 20 - min(value / top, 1.0) * (_HEIGHT - 30):.1f}"
            for sample, value in zip(samples, found, strict=True)
        )
        return f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>'

    digits = 0 if last >= 10 else 1
    lines = line(values, colour) + (line(others, "#5b8db8") if others else "")
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}">'
        f'<line x1="{_LEFT}" y1="{_HEIGHT - 20}" x2="{_WIDTH}" y2="{_HEIGHT - 20}" stroke="#bbb"/>'
        f'<text x="0" y="14">{show(top)}</text><text x="0" y="{_HEIGHT - 16}">0</text>'
        f'<text x="{_WIDTH - 60}" y="{_HEIGHT - 4}">{last:.{digits}f} s</text>{lines}</svg>'
    )


def _colour(name: str) -> str:
    return _COLOURS.get(name, "#dddddd")
