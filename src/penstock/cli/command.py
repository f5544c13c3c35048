"""What the commands share: an error is one line on stderr and an exit code, never a traceback.

A command that is made with `cls=Command` may raise any `PenstockError`. `--verbose` adds the remote
traceback, when the error came from another process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from penstock import launch
from penstock.errors import PenstockError, RemoteTraceback

_VERBOSE = "penstock.verbose"
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Command(click.Command):
    """A command whose failures are told in one line."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params.append(
            click.Option(
                ["--verbose"],
                is_flag=True,
                expose_value=False,
                callback=lambda ctx, _, value: ctx.meta.update({_VERBOSE: value}),
                help="On an error, show where it came from.",
            )
        )

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; tell errors."""
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            tell_error(error, ctx.meta.get(_VERBOSE, False))
            ctx.exit(1)
        except KeyboardInterrupt as stop:
            click.echo("; ".join(["penstock: interrupted", *map(str, stop.args)]), err=True)
            ctx.exit(130)
        except OSError as error:
            if error.errno == errno.EPIPE or ctx.meta.get(_VERBOSE, False):
                raise  # whoever read it has seen enough
            where = f"{error.filename}: " if error.filename else ""
            click.echo(f"penstock: error: {where}{error.strerror or error}", err=True)
            ctx.exit(1)


def tell_error(error: PenstockError, verbose: bool = False) -> None:
    """One line on stderr; with `verbose`, the traceback from the other process behind it."""
    text = " ".join(str(error).split()) or type(error).__name__
    click.echo(f"penstock: error: {text}", err=True)
    for note in getattr(error, "__notes__", ()):
        click.echo(f"({note})", err=True)
    if isinstance(error.__cause__, RemoteTraceback):
        if verbose:
            click.echo(str(error.__cause__).rstrip(), err=True)
        else:
            click.echo("(--verbose shows where it was raised)", err=True)


def open_standard() -> None:
    """Open what was closed of stdin, stdout and stderr, to nowhere, for what is printed, too."""
    for number in launch.open_standard():
        stream = os.fdopen(number, "r" if number == 0 else "w", closefd=False)
        setattr(sys, ("stdin", "stdout", "stderr")[number], stream)


def json_option(what: str) -> Callable[[Decorated], Decorated]:
    """`--json`, for scripts."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON.")


def folder_option() -> Callable[[Decorated], Decorated]:
    """`--folder`, where engines are looked for."""
    return click.option(
        "--folder",
        default="",
        help="Where the engines' sockets lie (default: a folder of the user's).",
    )


def print_text(text: str) -> None:
    """Lines on stdout; what its encoding has no place for, as escapes."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding))


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    click.echo(json.dumps(value, indent=2))


@contextlib.contextmanager
def spinner(text: str, wanted: bool = True) -> Iterator[None]:
    """Show on stderr that something goes on, when somebody looks."""
    if not wanted or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


@contextlib.contextmanager
def terminating_as_interrupt() -> Iterator[None]:
    """SIGTERM raises `KeyboardInterrupt`, as Ctrl-C does, so that what was begun is undone."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
