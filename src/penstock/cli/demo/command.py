"""The command: runs the comparison, shows how far it is, prints what came out."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator

import click

from penstock.cli.command import Command, json_option, print_json, terminating_as_interrupt
from penstock.errors import PenstockError


@click.command(cls=Command)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 600),
    default=4.0,
    show_default=True,
    help="How long each way is measured.",
)
@json_option("what was measured")
def demo(seconds: float, as_json: bool) -> None:
    """Eight processes, one model: a copy in each of them, then one copy for all.

    Measures both on this machine, in some fifteen seconds, and prints what it found.
    """
    from penstock.cli.demo.comparison import compare

    with terminating_as_interrupt(), _progress() as tell:
        comparison = compare(seconds, tell)
    if as_json:
        print_json(dataclasses.asdict(comparison))
    else:
        from rich.console import Console

        from penstock.cli.demo.show import show

        show(comparison, Console())
    if not comparison.agreement.good:
        raise PenstockError("the two ways' answers differ by more than rounding")


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """What `compare` tells, on stderr: stages that tick off in a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield lambda text: click.echo(f"{text} ...", err=True)
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:

        def tell(text: str) -> None:
            for task in progress.tasks:
                progress.update(task.id, total=1, completed=1)
            progress.add_task(text, total=None)

        yield tell
        for task in progress.tasks:
            progress.update(task.id, total=1, completed=1)
