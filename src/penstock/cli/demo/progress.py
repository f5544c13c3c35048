"""How far the demo is, on stderr: stages that fill and tick off in a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import click

if TYPE_CHECKING:
    from rich.progress import Progress as Display
    from rich.progress import TaskID

_EVERY = 5.0  # seconds between lines


class Progress(Protocol):
    """What the comparison tells."""

    def begin(self, text: str, total: float, unit: str) -> None:
        """A stage begins, of so many steps; the one before is done."""

    def advance(self, done: float) -> None:
        """So many of its steps are done."""

    def say(self, text: str) -> None:
        """Something to know."""


@contextlib.contextmanager
def shown_progress() -> Iterator[Progress]:
    """The kind that suits the place."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Display

    columns = (
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}"),
        BarColumn(16),
        TextColumn("{task.fields[steps]}"),
        TimeElapsedColumn(),
    )
    with Display(*columns, console=Console(stderr=True)) as display:
        stages = Stages(display)
        yield stages
        stages.finish()


class Lines:
    """A line when a stage begins, when it is done, and now and then between."""

    def begin(self, text: str, total: float, unit: str) -> None:
        self._total, self._unit = total, unit
        self._told, self._at = 0.0, time.monotonic()
        click.echo(f"{text} ...", err=True)

    def advance(self, done: float) -> None:
        if done <= self._told or (done < self._total and time.monotonic() < self._at + _EVERY):
            return
        self._told, self._at = done, time.monotonic()
        click.echo(f"  {_steps(done, self._total, self._unit)}", err=True)

    def say(self, text: str) -> None:
        click.echo(text, err=True)


class Stages:
    """A bar a stage, one below the other."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._task: TaskID | None = None

    def begin(self, text: str, total: float, unit: str) -> None:
        self.finish()
        self._total, self._unit = total, unit
        self._task = self._display.add_task(text, total=total, steps=_steps(0, total, unit))

    def advance(self, done: float) -> None:
        assert self._task is not None
        steps = _steps(done, self._total, self._unit)
        self._display.update(self._task, completed=done, steps=steps)

    def say(self, text: str) -> None:
        self._display.console.print(text, highlight=False)

    def finish(self) -> None:
        """The stage is done."""
        if self._task is not None:
            self.advance(self._total)


def _steps(done: float, total: float, unit: str) -> str:
    return f"{done:.{0 if total == int(total) else 1}f}/{total:g} {unit}"
