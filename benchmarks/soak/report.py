"""The verdict on a run, as a table and as JSON."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from benchmarks.soak.campaign import Outcome
from benchmarks.soak.ledger import EVENTS, FATAL

_GROWTH = 48.0  # megabytes that the engine may hold more at the end
_RIGHT = 0.9  # of the requests that ended; the others were to be cancelled, or too late, on purpose


def faults(outcome: Outcome) -> list[str]:
    """All that was wrong; empty when the run has passed."""
    found = list(outcome.faults)
    judgement = outcome.judgement
    wrong = {
        "answers that were wrong": judgement.ended["WRONG"],
        "requests without an answer": judgement.ended["MISSING"] + judgement.unanswered,
        "requests that were told that the engine had ended": judgement.ended["EngineClosed"],
        "errors that may not be retried": judgement.ended["OTHER ERROR"],
        "requests that ended twice": judgement.twice,
        "answers that nobody asked for": judgement.unasked,
    }
    found += [f"{count} {what}" for what, count in wrong.items() if count]
    right, ended = judgement.ended["right"], judgement.ended.total()
    if right < max(_RIGHT * ended, 1):
        found.append(f"only {right} right answers of {ended}")
    before, after = outcome.engine_megabytes
    if after > before + _GROWTH:
        found.append(f"the engine's memory grew from {before:.0f} to {after:.0f} MB")
    return found


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Everything that was counted."""
    judgement = outcome.judgement
    return {
        "model": outcome.model,
        "seconds": round(outcome.seconds, 1),
        "asked": judgement.asked,
        "right": judgement.ended["right"],
        "errors": {
            name: judgement.ended[name]
            for name in EVENTS[4:]
            if name not in FATAL and judgement.ended[name]
        },
        "wrong": judgement.ended["WRONG"],
        "missing": judgement.ended["MISSING"] + judgement.unanswered,
        "twice": judgement.twice,
        "open_when_their_client_was_killed": judgement.open_at_death,
        "slowest_seconds": round(judgement.slowest, 2),
        "killed_workers": outcome.killed_workers,
        "killed_clients": outcome.killed_clients,
        "clients": outcome.clients,
        "worker_restarts": outcome.restarts,
        "engine_megabytes": [round(value, 1) for value in outcome.engine_megabytes],
        "worker_megabytes": [round(value, 1) for value in outcome.worker_megabytes],
        "faults": faults(outcome),
    }


def as_table(outcome: Outcome) -> Table:
    """The same for people."""
    data = as_json(outcome)
    table = Table(title=f"Soak, {data['model']}, {data['seconds']:g} s", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("requests", f"{data['asked']:,}")
    table.add_row("right answers", f"{data['right']:,}")
    for name, count in data["errors"].items():
        table.add_row(f"  {name}", f"{count:,}")
    for name in ("wrong", "missing", "twice"):
        table.add_row(name, f"{data[name]:,}", style="bold red" if data[name] else "")
    table.add_row(
        "open when their client was killed", f"{data['open_when_their_client_was_killed']:,}"
    )
    table.add_row("from a request to its end, at most", f"{data['slowest_seconds']:.2f} s")
    table.add_section()
    table.add_row("workers killed / restarted", f"{data['killed_workers']} / {outcome.restarts}")
    table.add_row("clients killed / started", f"{data['killed_clients']} / {data['clients']}")
    for name in ("engine", "worker"):
        before, after = data[f"{name}_megabytes"]
        table.add_row(f"{name}'s memory, warm / at the end", f"{before:.0f} / {after:.0f} MB")
    return table
