"""A run's findings as tables for people and as JSON for everything else."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.core.goals import Verdict, goals_table, number
from benchmarks.models.findings import Figures, Findings, Trial, middle
from benchmarks.models.images import SHAPE, TOLERANCE
from benchmarks.models.plan import Plan

_MB = 1e6


def as_json(
    plan: Plan, findings: Findings, verdicts: list[Verdict], machine: dict[str, Any], took_s: float
) -> dict[str, Any]:
    """All that is known about the run."""
    best = findings.best_limit()
    return {
        "benchmark": "models",
        "quick": plan.quick,
        "took_s": round(took_s, 1),
        "machine": machine,
        "workload": {
            "network": "MobileNetV2",
            "input": ["float32", *SHAPE],
            "tolerance": TOLERANCE,
            **findings.network,
        },
        "disturbed": findings.disturbed(),
        "cores_of_others": middle(findings.others()),
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "penstock": _figures(findings, findings.penstock),
        "predict": _figures(findings, findings.predict),
        "function": _figures(findings, findings.function),
        "best_limit": best.title if best else None,
        "limits": [_figures(findings, figures) for figures in findings.limits.values()],
        "served": [
            asdict(served) | {"mean_batch": served.mean_batch()} for served in findings.served
        ],
        "facts": findings.facts,
        "starts": [asdict(pair) | {"ratio": pair.ratio()} for pair in findings.pairs],
        "sweep": [asdict(trial) for trial in findings.trials],
        "failures": [failure.splitlines()[0] for failure in findings.failures],
        "plan": asdict(plan),
    }


def _figures(findings: Findings, figures: Figures) -> dict[str, Any]:
    return {
        "images_per_s": figures.images_per_s(),
        "p50_ms": figures.p50_ms(),
        "p99_ms": figures.p99_ms(),
        "penstock_against_it": None if figures is findings.penstock else findings.ratios(figures),
    } | asdict(figures)


def show(
    console: Console, findings: Findings, verdicts: list[Verdict], machine: dict[str, Any]
) -> None:
    """The tables."""
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}, {machine['date']}; "
        f"load average before: {machine['load_average']:.2g}"
    )
    console.print(_ways(findings))
    if findings.served:
        console.print(_inside(findings, machine))
    console.print(_sweep(findings.trials))
    console.print(_starts(findings))
    goals = goals_table(verdicts)
    if findings.disturbed():
        goals.caption = (
            "[red]The machine was busy with other things: the first three say little. "
            "Whoever has more processes got more of the cores.[/]"
        )
    console.print(goals)


def _ways(findings: Findings) -> Table:
    table = Table(title="MobileNetV2, 96 × 96 × 3, float32; medians of all rounds (least – most)")
    table.add_column("way", no_wrap=True)
    for column in ("images/s", "p50 ms", "p99 ms", "MB", "cores", "Penstock is"):
        table.add_column(column, justify="right")
    for figures in (findings.penstock, findings.predict, findings.function):
        table.add_row(*_way(findings, figures))
    table.add_section()
    for figures in findings.limits.values():
        table.add_row(*_way(findings, figures))
    table.caption = f"Cores that other processes of the machine had: {_spread(findings.others())}"
    return table


def _way(findings: Findings, figures: Figures) -> list[str]:
    ratios = findings.ratios(figures) if figures is not findings.penstock else []
    memory = figures.memory_bytes
    return [
        figures.title,
        _spread(figures.rates()),
        number(figures.p50_ms()),
        number(figures.p99_ms()),
        "—" if memory is None else f"{memory / _MB:,.0f}",
        number(figures.cores()),
        _spread(ratios, "×") if ratios else "",
    ]


def _inside(findings: Findings, machine: dict[str, Any]) -> Table:
    """Penstock's batches and where the cores' time goes."""
    served = findings.served
    table = Table(title="What Penstock did", show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("figure")
    table.add_row("compiled as", str(findings.facts.get("mode")))
    table.add_row("rows a batch, mean", number(middle([one.mean_batch() for one in served])))
    table.add_row("batches by size", _counted((one.sizes for one in served), 8))
    table.add_row("batches closed", _counted((one.closed for one in served), 8))
    parts = {
        "worker": median(one.worker_us for one in served),
        "engine": median(one.engine_us for one in served),
        "clients": median(one.clients_us for one in served),
    }
    told = ", ".join(f"{name} {us / 1000:.3g}" for name, us in parts.items())
    table.add_row("CPU an image, ms", told)
    rate = findings.penstock.images_per_s()
    if rate is not None:
        copied = 2 * rate * findings.network["image_bytes"] / _MB
        speed = machine["copy_gb_per_s"]
        table.add_row("copied", f"{copied:,.0f} MB/s, twice each image; a core copies {speed} GB/s")
    return table


def _counted(counts: Iterable[dict[str, int]], most: int) -> str:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    shown = ", ".join(f"{name}: {count}" for name, count in total.most_common(most))
    return shown + (", …" if len(total) > most else "")


def _sweep(trials: list[Trial]) -> Table:
    sizes = sorted({trial.size for trial in trials})
    table = Table(title="One process without Penstock, by batch size: images/s, briefly")
    table.add_column("compiled as")
    for size in sizes:
        table.add_column(str(size), justify="right")
    for mode in dict.fromkeys(trial.mode for trial in trials):
        by_size = {trial.size: trial for trial in trials if trial.mode == mode}
        table.add_row(mode, *(_cell(by_size.get(size)) for size in sizes))
    skipped = [trial for trial in trials if trial.skipped]
    if skipped:
        table.caption = "; ".join(f"{one.mode} {one.size}: {one.skipped}" for one in skipped)
    return table


def _cell(trial: Trial | None) -> str:
    if trial is None:
        return ""
    return "skipped" if trial.skipped else number(trial.images_per_s)


def _starts(findings: Findings) -> Table:
    table = Table(title="From starting the engine to its first answer, in seconds")
    for column in ("pair", "empty cache", "filled cache", "times"):
        table.add_column(column, justify="right")
    for index, pair in enumerate(findings.pairs, 1):
        first, second = pair.first.answered_s, pair.second.answered_s
        table.add_row(str(index), f"{first:.1f}", f"{second:.1f}", f"{pair.ratio():.2f}")
    return table


def _spread(values: list[float], unit: str = "") -> str:
    if not values:
        return "—"
    return f"{number(middle(values))}{unit} ({number(min(values))} – {number(max(values))})"
