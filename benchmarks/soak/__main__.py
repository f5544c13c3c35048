"""The command: `python -m benchmarks.soak --model digits --seconds 600 --workers 2 --json FILE`."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from benchmarks.soak.campaign import Campaign, kind_of
from benchmarks.soak.report import as_json, as_table, faults


@click.command()
@click.option(
    "--model",
    type=click.Choice(["checksum", "digits"]),
    default="checksum",
    show_default=True,
    help="a function, or a network",
)
@click.option("--seconds", default=600.0, show_default=True, help="how long to run")
@click.option("--workers", default=2, show_default=True, help="worker processes")
@click.option("--clients", default=4, show_default=True, help="client processes")
@click.option("--seed", default=None, type=int, help="of the kills' times and victims")
@click.option(
    "--patience", default=None, type=float, help="seconds until an answer counts as missing"
)
@click.option("--json", "file", type=click.Path(path_type=Path), help="where to write the counts")
def main(
    model: str,
    seconds: float,
    workers: int,
    clients: int,
    seed: int | None,
    patience: float | None,
    file: Path | None,
) -> None:
    """Run mixed load while workers and clients are killed; every answer is checked."""
    console = Console()
    seed = random.randrange(1 << 32) if seed is None else seed
    os.environ.setdefault("PENSTOCK_LOG", "ERROR")  # workers are meant to die here

    def progress(elapsed: float, text: str) -> None:
        console.print(f"[dim]{elapsed:4.0f} s[/] {text}", highlight=False, soft_wrap=True)

    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as folder:
        kind = kind_of(model, Path(folder))
        kind = kind if patience is None else replace(kind, patience=patience)
        outcome = Campaign(kind, Path(folder), workers, clients, seed).run(seconds, progress)
    console.print(as_table(outcome))
    if file is not None:
        file.write_text(json.dumps({"seed": seed, **as_json(outcome)}, indent=2) + "\n")
    found = faults(outcome)
    for fault in found:
        console.print(f"[bold red]{fault}", highlight=False)
    if not found:
        console.print("[bold green]Nothing wrong, nothing twice, nothing missing, nothing left.")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
