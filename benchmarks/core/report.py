"""A run's findings as tables for people and as JSON for everything else."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.core.campaign import Figures, Findings, Scale, described
from benchmarks.core.goals import Verdict, goals_table, number
from benchmarks.core.plan import JUDGED_TOTAL, Plan
from benchmarks.core.systems.roster import PENSTOCK
from benchmarks.core.work import ANSWER_WORDS, ROW_BYTES


def as_json(
    plan: Plan, findings: Findings, verdicts: list[Verdict], machine: dict[str, Any], took_s: float
) -> dict[str, Any]:
    """All that is known about the run."""
    memory = findings.memory
    return {
        "benchmark": "core",
        "quick": plan.quick,
        "took_s": round(took_s, 1),
        "machine": machine,
        "workload": {"row_bytes": ROW_BYTES, "answer_bytes": ANSWER_WORDS * 8},
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "figures": {name: _figures(figures) for name, figures in findings.figures.items()},
        "driver": _figures(findings.driver) if findings.driver else None,
        "scale": _scale_json(findings.scale),
        "no_system": _scale_json(findings.nothing),
        "memory": asdict(memory) | {"bytes_per_client": memory.bytes_per_client()}
        if memory
        else None,
        "sweeps": {
            name: [asdict(trial) for trial in trials] for name, trials in findings.sweeps.items()
        },
        "plan": asdict(plan),
    }


def _scale_json(scale: Scale) -> dict[str, Any]:
    return {
        "judged_total": JUDGED_TOTAL,
        "failures": scale.failures,
        "totals": [
            {
                "total_outstanding": total,
                "clients": [
                    {
                        "clients": clients,
                        "rows_per_s": scale.rows_per_s(clients, total),
                        "loss": scale.loss(clients, total),
                        "samples": [asdict(sample) for sample in samples],
                    }
                    for clients, samples in by_clients.items()
                ],
            }
            for total, by_clients in scale.samples.items()
        ],
    }


def _figures(figures: Figures) -> dict[str, Any]:
    return {
        "rows_per_s": figures.rows_per_s(),
        "p50_us": figures.p50_us(),
        "p99_us": figures.p99_us(),
        "single_p50_us": figures.single_p50_us(),
        "single_p99_us": figures.single_p99_us(),
    } | asdict(figures)


def show(
    console: Console, findings: Findings, verdicts: list[Verdict], machine: dict[str, Any]
) -> None:
    """The tables."""
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}, {machine['date']}"
    )
    console.print(_systems(findings))
    console.print(_settings(findings))
    console.print(_scale(findings))
    console.print(goals_table(verdicts))


def _systems(findings: Findings) -> Table:
    table = Table(title="Rows of 150,528 bytes; medians of all rounds; times in µs")
    table.add_column("system", no_wrap=True)
    for column in ("4×8 rows/s", "p50", "p99", "1×1 p50", "p99", "we are"):
        table.add_column(column, justify="right")
    ours = findings.figures[PENSTOCK.name].rows_per_s()
    for name, figures in findings.figures.items():
        theirs = figures.rows_per_s()
        ratio = ours / theirs if ours and theirs and name != PENSTOCK.name else None
        table.add_row(*_measured(figures), "" if ratio is None else f"{ratio:.1f}×")
    if findings.driver:
        table.add_section()
        table.add_row(*_measured(findings.driver), "")
    return table


def _measured(figures: Figures) -> list[str]:
    numbers = (
        figures.rows_per_s(),
        figures.p50_us(),
        figures.p99_us(),
        figures.single_p50_us(),
        figures.single_p99_us(),
    )
    return [figures.title, *(number(value) for value in numbers)]


def _settings(findings: Findings) -> Table:
    table = Table(title="Best settings of each sweep")
    for column in ("system", "load", "settings"):
        table.add_column(column)
    for name in findings.sweeps:
        figures = findings.figures[name]
        table.add_row(figures.title, "4×8", described(figures.throughput_settings))
        table.add_row("", "1×1", described(figures.latency_settings))
    return table


def _scale(findings: Findings) -> Table:
    table = Table(
        title="By requests outstanding in all: rows/s, and what is lost against 4 clients"
    )
    table.add_column("clients", justify="right")
    for total in findings.scale.samples:
        table.add_column(f"{total:,}", justify="right")
        table.add_column("lost", justify="right")
    for clients in findings.scale.samples[JUDGED_TOTAL]:
        table.add_row(f"{clients}", *_scaled(findings.scale, clients))
    table.add_section()
    for clients in findings.nothing.samples[JUDGED_TOTAL]:
        table.add_row(f"{clients}, no system", *_scaled(findings.nothing, clients))
    return table


def _scaled(scale: Scale, clients: int) -> list[str]:
    cells = []
    for total in scale.samples:
        loss = scale.loss(clients, total)
        cells.append(number(scale.rows_per_s(clients, total)))
        cells.append("—" if loss is None else f"{100 * loss:.0f} %")
    return cells
