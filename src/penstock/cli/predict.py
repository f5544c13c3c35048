"""`penstock predict`: a data set in, a data set out. How far it is, on stderr; a report at the end.

Ends with 3 when rows have failed: the others are written all the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.command import (
    Command,
    json_option,
    print_json,
    print_text,
    terminating_as_interrupt,
)
from penstock.cli.flags import settings_flags
from penstock.cli.quantities import duration
from penstock.config import EngineConfig, Model
from penstock.errors import ConfigError
from penstock.offline.settings import JobSettings

if TYPE_CHECKING:
    from penstock.offline.monitor import Progress

ROWS_FAILED = 3
_EVERY = 5.0  # seconds between lines

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Size(click.ParamType[Any]):
    """A picture's size: `96`, or `height,width`."""

    name = "height,width"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """One number or two, or a usage error."""
        try:
            sides = [int(side) for side in str(value).replace("x", ",").split(",")]
            return sides[0] if len(sides) == 1 else tuple(sides)
        except ValueError:
            self.fail(f"expected 96 or 96,128; got {value!r}", param, ctx)


class Json(click.ParamType[Any]):
    """A JSON value."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, or a usage error."""
        try:
            return json.loads(value)
        except ValueError as error:
            self.fail(f"expected JSON ({error}); got {value!r}", param, ctx)


def source_options(command: Decorated) -> Decorated:
    """What may be said about the source; `docs/data.md` says what is for which format."""
    options = (
        click.option("--format", help="The source's format, if its suffix does not tell."),
        click.option("--key", help="The column that keys are taken from, or #row, or #path."),
        click.option("--columns", help="Columns to read, with commas between them."),
        click.option("--images", help="The column that holds encoded images."),
        click.option("--size", type=Size(), help="The size of images (default: the model's)."),
        click.option("--mode", help="RGB, L or RGBA (default: as the model wants them)."),
        click.option("--resample", help="How images are resized (default: bilinear)."),
        click.option("--fit", help="How images fit: stretch, crop or pad."),
        click.option(
            "--draft", is_flag=True, default=None, help="Shrink JPEGs as they are decoded."
        ),
        click.option(
            "--decode/--no-decode", default=None, help="Pass pixels, or the files' bytes."
        ),
        click.option("--features", type=Json(), help="Columns' types, as JSON."),
        click.option("--fill", type=Json(), help="What replaces nulls, by column, as JSON."),
        click.option("--delimiter", help="What separates the fields of CSV."),
        click.option("--header", help="Names of CSV's columns, with commas, if it has none."),
        click.option("--compression", help="How Parquet is compressed (default: zstd)."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(cls=Command, short_help="Predict a whole data set, to a file.")
@click.argument("model")
@click.argument("source", nargs=-1, required=True)
@click.option("--out", required=True, help="The file to write: .parquet, .npy, .jsonl, ...")
@settings_flags(JobSettings)
@source_options
@click.option(
    "--engine", default="", help="A running engine; MODEL is then the name of one of its models."
)
@settings_flags(Model, leave_out={"source", "name", "weight", "warm"})
@settings_flags(EngineConfig, leave_out={"name"})
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report as one page of HTML there.",
)
@json_option("the report")
def predict(
    model: str,
    source: tuple[str, ...],
    out: str,
    report: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Predict a whole data set: MODEL on SOURCE (files, folders, patterns) to a file.

    May be killed at any time: the same command continues where it was. With --shard 3/8, only that
    shard; `penstock merge` joins them.
    """
    from penstock.offline.run import predict as predicted

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if report is not None and not os.access(report.absolute().parent, os.W_OK | os.X_OK):
        raise ConfigError(f"--report {report}: expected a folder that can be written to")
    what = source[0] if len(source) == 1 else list(source)
    for names in ("columns", "header"):
        if isinstance(options.get(names), str):
            options[names] = [name.strip() for name in options[names].split(",")]
    try:
        with terminating_as_interrupt(), _progress() as tell:
            done = predicted(model, what, out, tell=tell, **_said(options))
    except KeyboardInterrupt:
        but = " (without --restart)" if options["restart"] else ""
        raise KeyboardInterrupt(f"the same command{but} goes on from here") from None
    if as_json:
        print_json(done.to_json())
    else:
        print_text(str(done))
    if report is not None:
        try:
            done.page(report)
        except OSError as error:
            raise ConfigError(
                f"the job is done, but --report {report} cannot be written: {error.strerror}"
            ) from error
    if done.failed:
        sys.exit(ROWS_FAILED)


def _said(options: dict[str, Any]) -> dict[str, Any]:
    """What was said on the command line, and is not what it would be anyway."""
    defaults = {"engine": ""} | {
        field.name: field.default
        for settings in (EngineConfig, Model, JobSettings)
        for field in dataclasses.fields(settings)
    }
    return {
        name: value
        for name, value in options.items()
        if value is not None and (name not in defaults or value != defaults[name])
    }


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    """A bar in a terminal, a line now and then elsewhere; on stderr."""
    if not sys.stderr.isatty():
        yield _Lines().tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Display

    columns = (BarColumn(24), TextColumn("{task.description}"))
    with Display(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task("starting", total=None)

        def tell(progress: Progress) -> None:
            total = progress.total or None
            display.update(task, total=total, completed=progress.rows, description=_text(progress))

        yield tell


class _Lines:
    def __init__(self) -> None:
        self._told = time.monotonic()

    def tell(self, progress: Progress) -> None:
        """Now and then."""
        if time.monotonic() - self._told >= _EVERY:
            self._told = time.monotonic()
            click.echo(_text(progress), err=True)


def _text(progress: Progress) -> str:
    whole = f"/{progress.total:,}" if progress.total else ""
    parts = [f"{progress.rows:,}{whole} rows", f"{progress.rate:,.0f}/s"]
    if progress.left:
        parts.append(f"{duration(progress.left)} left")
    parts.append(f"device {progress.device:.0%}")
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if progress.limit:
        parts.append(f"limit: {progress.limit}")
    return ", ".join(parts)
