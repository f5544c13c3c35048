"""A run's findings as tables for people and as JSON for everything else."""

from __future__ import annotations

from dataclasses import asdict, fields
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.scheduling.campaign import OURS, Findings, Run
from benchmarks.scheduling.devices import DEVICES, MESSAGE, MS
from benchmarks.scheduling.verdicts import WITHIN, Ratio, Verdict, against_best, against_bound


def show(console: Console, findings: list[Findings], judged: list[Verdict]) -> None:
    """The tables: one a device, what Penstock loses, and the verdict."""
    for device, found in groupby(findings, key=lambda f: f.cell.device):
        console.print(_device(device, list(found)))
    if all(OURS in found.runs and len(found.runs) > 1 for found in findings):
        console.print(_losses(findings))
        required = [verdict for verdict in judged if verdict.required]
        beside = [verdict for verdict in judged if not verdict.required]
        console.print(_verdicts("Goals; ratios below 1: Penstock is better", required))
        console.print(_verdicts("Beside the goals, not required", beside))


def as_json(
    findings: list[Findings], judged: list[Verdict], machine: dict[str, Any], run: dict[str, Any]
) -> dict[str, Any]:
    """All that is known about the run."""
    return {
        "benchmark": "scheduling",
        "machine": machine,
        "run": run,
        "message_ms": MESSAGE / MS,
        "devices": {
            name: asdict(device)
            | {"capacity": device.capacity, "deadline_ms": device.deadline / MS}
            for name, device in DEVICES.items()
        },
        "verdicts": [asdict(verdict) for verdict in judged],
        "cells": [
            {
                "device": found.cell.device,
                "cell": found.cell.name,
                "load": found.cell.load or None,
                "think_ms": found.cell.loop.think / MS if found.cell.kind == "closed" else None,
                "bound": asdict(found.bound),
                "runs": {name: _columns(runs) for name, runs in found.runs.items()},
            }
            for found in findings
        ],
    }


def _columns(runs: list[Run]) -> dict[str, list[float]]:
    """Each figure, seed by seed."""
    return {
        field.name: [round(getattr(run, field.name), 4) for run in runs] for field in fields(Run)
    }


def _device(name: str, findings: list[Findings]) -> Table:
    device = DEVICES[name]
    policies = list(findings[0].runs)
    table = Table(
        title=f"{device.title}: at most {device.capacity:,.0f} rows/s, batches of at most "
        f"{device.max_batch}, deadline {device.deadline / MS:.0f} ms; times in ms"
    )
    table.add_column("cell", no_wrap=True)
    table.add_column("figure")
    for policy in policies:
        table.add_column(policy, justify="right")
    table.add_column("bound", justify="right")
    table.add_column("against the best other", no_wrap=True)
    for found in findings:
        table.add_section()
        bound = found.bound
        for row, (figure, limit) in enumerate(
            (("p50", bound.p50), ("p99", bound.p99), ("rate", bound.rate), ("batch", None))
        ):
            table.add_row(
                "" if row else found.cell.name,
                {"rate": "in time/s"}.get(figure, figure),
                *(_number(found.mean(policy, figure)) for policy in policies),
                "" if limit is None else _number(limit),
                _against(found, figure),
            )
    return table


def _against(found: Findings, figure: str) -> str:
    if figure == "batch" or OURS not in found.runs or len(found.runs) < 2:
        return ""
    ratio = against_best(found, figure)
    if figure == "rate" and found.cell.kind == "closed":
        return f"{_ratio(ratio)}; {against_bound(found).mean:.2f} of the bound's cycle"
    return _ratio(ratio)


def _ratio(ratio: Ratio) -> str:
    text = f"{ratio.mean:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
    colour = "red" if ratio.mean > WITHIN else "green" if ratio.high < 1 else ""
    return f"[{colour}]{text}[/] {ratio.other}" if colour else f"{text} {ratio.other}"


def _losses(findings: list[Findings]) -> Table:
    """Every cell and figure in which Penstock is behind another, the worst first."""
    table = Table(title="Where Penstock is behind by more than 1 %, the worst first")
    for column in ("device", "cell", "figure", "times worse than the best other"):
        table.add_column(column, no_wrap=True)
    ratios = [
        against_best(found, figure) for found in findings for figure in ("p50", "p99", "rate")
    ]
    for ratio in sorted(ratios, key=lambda r: r.mean, reverse=True):
        if ratio.mean > 1.01:
            table.add_row(ratio.cell.device, ratio.cell.name, ratio.figure, _ratio(ratio))
    return table


def _verdicts(title: str, judged: list[Verdict]) -> Table:
    table = Table(title=title)
    for column in ("goal", "limit", "decided by", "ratio", "verdict"):
        table.add_column(column)
    for verdict in judged:
        worst = verdict.worst
        words = {True: "[green]met[/]", None: "[yellow]unsure[/]", False: "[red]not met[/]"}
        missed = f", in {len(verdict.misses)} cells" if verdict.misses else ""
        table.add_row(
            verdict.goal,
            f"≤ {verdict.limit:g}",
            f"{worst.cell.device} {worst.cell.name} {worst.figure}" if worst else "",
            _ratio(worst) if worst else "",
            words[verdict.met] + missed,
        )
    return table


def _number(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.2f}"
