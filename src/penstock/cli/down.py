"""`penstock down`: end an engine, whoever started it, and wait until it is gone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import click

from penstock.cli.choice import missing
from penstock.cli.command import Command, folder_option, json_option, print_json, spinner
from penstock.cli.enquiry import Enquiry
from penstock.config import EngineConfig
from penstock.errors import EngineClosed
from penstock.transport import rendezvous

_EXIT_SECONDS = 15.0


class Ended(NamedTuple):
    """How it went. `result` is "ended", or "cleaned up" for one that was dead already."""

    name: str
    address: str
    pid: int | None
    result: str
    seconds: float


@click.command(cls=Command, short_help="End an engine.")
@click.argument("name")
@click.option(
    "--drain",
    type=click.FloatRange(0, 1e9),
    default=EngineConfig.drain_timeout,
    show_default=True,
    metavar="SECONDS",
    help="How long it may take to answer what is queued.",
)
@folder_option()
@json_option("what was done")
def down(name: str, drain: float, folder: str, as_json: bool) -> None:
    """End the engine NAME (or at the socket NAME, if that is a path).

    It takes no more requests, answers those that it has and exits. What a killed engine left behind
    is removed.
    """
    address = rendezvous.address_of(name, folder)
    with spinner(f"{name} works off what is queued", not as_json):
        ended = _end(name, address, drain)
    if as_json:
        print_json(ended._asdict())
    elif ended.result == "ended":
        click.echo(f"{name} has ended (process {ended.pid}, {ended.seconds:.1f} s)")
    else:
        click.echo(f"{name} was dead already; removed what it had left in {address.parent}")


def _end(name: str, address: Path, drain: float) -> Ended:
    began = time.monotonic()
    try:
        conversation = Enquiry(address)
    except rendezvous.Crowded:
        raise
    except EngineClosed as error:
        if not any(path.exists() for path in (address, address.with_suffix(".lock"))):
            raise missing(name, address) from None
        if not rendezvous.sweep(address):
            raise EngineClosed(
                f"{error}; its lock is held, so it is just starting or ending"
            ) from None
        return Ended(name, str(address), None, "cleaned up", time.monotonic() - began)
    with conversation:
        conversation.stop(drain)
        if not conversation.wait_gone(drain + _EXIT_SECONDS):
            raise EngineClosed(
                f"{name} did not end within {drain + _EXIT_SECONDS:g} s; "
                f"its process is {conversation.pid} (kill -KILL {conversation.pid})"
            )
        rendezvous.sweep(address)
        return Ended(name, str(address), conversation.pid, "ended", time.monotonic() - began)
