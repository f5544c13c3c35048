"""`penstock tune`: how a model runs best here: latency, throughput and memory by batch size.

What goes on is told on stderr; the plan is printed, as JSON or as a table with bars, and drawn.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from penstock.cli.command import Command, json_option, print_json, terminating_as_interrupt
from penstock.cli.flags import settings_flags, settings_of
from penstock.config import Model
from penstock.tuning import picture
from penstock.tuning.plan import Plan
from penstock.tuning.run import Tell
from penstock.tuning.run import tune as measured


@click.command(cls=Command, short_help="Find out how a model runs best here.")
@click.argument("source")
@settings_flags(Model, leave_out={"source", "name", "weight"})
@click.option(
    "--device",
    default="",
    help="Where to measure: cpu, gpu:0, ... (default: the GPU with the most room, else the CPU).",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the plan as a PNG there (needs matplotlib).",
)
@click.option("--timeout", default=600.0, show_default=True, help="Seconds after which to give up.")
@json_option("the plan")
def tune(
    source: str, device: str, plot: Path | None, timeout: float, as_json: bool, **settings: Any
) -> None:
    """Find out how the model SOURCE runs best on a device, and remember it.

    Engines with the same settings start from what was found. Runs in a process of its own, which
    takes a GPU's memory only while it lasts.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    model = Model(source, **settings_of(Model, settings))
    if plot is not None:
        picture.check(plot)  # before minutes of measuring
    with terminating_as_interrupt(), _progress() as tell:
        plan = measured(model, device=device or None, timeout=timeout, tell=tell)
    if plot is not None:
        plan.plot(plot)
    if as_json:
        print_json(plan.to_json())
        return
    from rich.console import Console

    from penstock.tuning.show import show

    show(plan, Console(highlight=False))
    if plan.memory:
        _show_room(plan)
    if plot is not None:
        click.echo(f"\ndrawn: {plot}")


def _show_room(plan: Plan) -> None:
    """What fits on each card now, with what others have taken or were promised."""
    from penstock.devices.ledger import rooms
    from penstock.devices.plan import plan as fitting

    click.echo()
    needs, most = {plan.model: plan.need}, {plan.model: plan.max_batch}
    click.echo(fitting(needs, rooms(), most).table())


@contextlib.contextmanager
def _progress() -> Iterator[Tell]:
    """A line that changes in a terminal, lines elsewhere; on stderr."""
    if not sys.stderr.isatty():
        yield lambda text: click.echo(f"{text} ...", err=True)
        return
    from rich.console import Console

    with Console(stderr=True).status("penstock tune") as status:
        yield lambda text: status.update(text)
