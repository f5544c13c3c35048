"""The command: asks the engine again and again, and shows what happened in between.

In a terminal it has the screen until Ctrl-C, then leaves the last view; elsewhere it prints one
view after the other. It ends well when the engine does: that is news, not an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from penstock.cli.choice import engine_named
from penstock.cli.command import (
    Command,
    folder_option,
    json_option,
    print_json,
    terminating_as_interrupt,
)
from penstock.cli.enquiry import Enquiry
from penstock.errors import EngineClosed

if TYPE_CHECKING:
    from penstock.cli.top.rates import View
    from penstock.statistics import Statistics

_PATIENCE = 5.0
_LAST_MOMENT = 1.0
_FIRST = 0.25


@click.command(cls=Command, short_help="Watch an engine.")
@click.argument("name", required=False)
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How long each view measures.",
)
@click.option("--once", is_flag=True, help="Print one view and exit.")
@click.option(
    "--clients",
    "most_clients",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="How many clients to list at most, the busiest first.",
)
@folder_option()
@json_option("every view, one on a line (with --once, one over several lines)")
def top(
    name: str | None, interval: float, once: bool, most_clients: int, folder: str, as_json: bool
) -> None:
    """Watch the engine NAME: rates, batches, times, workers, clients, as they are just now.

    Without NAME, the only engine there is. Ctrl-C stops watching.
    """
    with engine_named(name, folder) as conversation:
        views = _views(conversation, interval, once)
        try:
            with terminating_as_interrupt(), _showing(once, as_json, most_clients) as show:
                for view in views:
                    show(view)
        except KeyboardInterrupt:
            return
        except EngineClosed:
            if once or not conversation.wait_gone(_LAST_MOMENT):
                raise
            click.echo(f"the engine {conversation.address.stem} has ended", err=as_json)


def _views(conversation: Enquiry, interval: float, once: bool) -> Iterator[View]:
    """What happens, interval by interval. Raises `EngineClosed` at the end."""
    from penstock.cli.top.rates import between
    from penstock.cli.top.usage import Meter, cards_of

    meter = Meter()
    before = conversation.statistics(_PATIENCE)
    meter.look(_pids(conversation, before))
    wait = interval if once else min(interval, _FIRST)  # the first view comes soon
    while True:
        if conversation.wait_gone(wait):
            raise EngineClosed(f"the engine at {conversation.address} has ended")
        after = conversation.statistics(_PATIENCE)
        usage = meter.look(_pids(conversation, after))
        yield between(before, after, usage, os.getpid(), cards_of(after.workers))
        if once:
            return
        before, wait = after, interval


def _pids(conversation: Enquiry, statistics: Statistics) -> list[int]:
    """Its processes, unless they have other numbers here than where the engine lives."""
    if conversation.pid != statistics.pid:
        return []
    return [statistics.pid, *(worker.pid for worker in statistics.workers if worker.pid)]


@contextlib.contextmanager
def _showing(once: bool, as_json: bool, most_clients: int) -> Iterator[Callable[[View], None]]:
    if as_json:
        yield _print_json_view if once else _print_json_line
        return
    from rich.console import Console
    from rich.live import Live

    from penstock.cli.top.show import height_without_clients, view_text

    console = Console(highlight=False)
    if once or not console.is_terminal:

        def print_view(view: View) -> None:
            console.print(view_text(view, console.width, most_clients))
            if not once:
                console.print()
                sys.stdout.flush()

        yield print_view
        return
    last: View | None = None
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:

            def update(view: View) -> None:
                nonlocal last
                last = view
                room = console.height - height_without_clients(view, console.width)
                text = view_text(view, console.width, max(0, min(most_clients, room)))
                live.update(text, refresh=True)

            yield update
    finally:
        if last is not None:
            console.print(view_text(last, console.width, most_clients))


def _print_json_view(view: View) -> None:
    """One view, for people who read JSON."""
    print_json(dataclasses.asdict(view))


def _print_json_line(view: View) -> None:
    click.echo(json.dumps(dataclasses.asdict(view)))
