"""`penstock ps`: the engines of a folder, and what they do."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, NamedTuple

import click

from penstock.cli.command import Command, folder_option, json_option, print_json
from penstock.cli.enquiry import Enquiry
from penstock.cli.quantities import duration
from penstock.errors import EngineClosed
from penstock.statistics import Statistics
from penstock.transport import rendezvous

_PATIENCE = 2.0


class Found(NamedTuple):
    """An engine: what it says of itself, or only its process, if that, when it does not answer."""

    address: Path
    pid: int | None
    statistics: Statistics | None


@click.command(cls=Command)
@folder_option()
@json_option("everything that the engines tell")
def ps(folder: str, as_json: bool) -> None:
    """List the engines that run. Removes what killed ones left behind."""
    place = Path(folder) if folder else rendezvous.default_folder()
    found = list(filter(None, map(_look, sorted(place.glob("*.sock")))))
    if as_json:
        print_json([_as_json(engine) for engine in found])
    elif found:
        _print_table(found)
    else:
        click.echo(f"no engine runs in {place}")


def _look(address: Path) -> Found | None:
    try:
        with Enquiry(address) as conversation:
            try:
                statistics = conversation.statistics(_PATIENCE)
            except EngineClosed:
                return Found(address, conversation.pid, None)
    except rendezvous.Crowded:
        return Found(address, None, None)
    except EngineClosed:
        rendezvous.sweep(address)
        return None
    others = tuple(client for client in statistics.clients if client.pid != os.getpid())
    return Found(address, conversation.pid, dataclasses.replace(statistics, clients=others))


def _as_json(found: Found) -> dict[str, Any]:
    known: dict[str, Any] = {"name": found.address.stem, "pid": found.pid, "state": "silent"}
    if found.statistics is not None:
        known = dataclasses.asdict(found.statistics)
    return {**known, "address": str(found.address)}


def _print_table(found: list[Found]) -> None:
    lines = [("NAME", "PID", "STATE", "MODELS", "WORKERS", "CLIENTS", "ROWS", "UP")]
    for address, pid, statistics in found:
        if statistics is None:
            lines.append((address.stem, str(pid or "?"), "silent", "", "", "", "", ""))
            continue
        ready = sum(worker.state == "ready" for worker in statistics.workers)
        lines.append(
            (
                statistics.name,
                str(statistics.pid),
                statistics.state,
                ",".join(model.name for model in statistics.models),
                f"{ready}/{len(statistics.workers)}",
                str(len(statistics.clients)),
                str(statistics.batches.rows),
                duration(statistics.uptime),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
