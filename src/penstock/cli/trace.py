"""`penstock trace`: record what becomes of every request for a few seconds, and say what limits it.

Writes a file for Perfetto or chrome://tracing, and prints a summary: where requests spent their
time, what the workers did, and one sentence of advice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from penstock.errors import EngineClosed, PenstockError
from penstock.transport import messages as m

if TYPE_CHECKING:
    from penstock.tracing import Trace
    from penstock.tracing.summary import Summary

_PATIENCE = 5.0
_LARGE = 60.0
_STEP = 0.1


@click.command(cls=Command, short_help="Record what an engine does, and name what limits it.")
@click.argument("name", required=False)
@click.option(
    "--seconds",
    type=click.FloatRange(0.01, 3600),
    default=5.0,
    show_default=True,
    help="How long to record.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("trace.json"),
    show_default=True,
    help="The file to write; one that ends in .gz is compressed.",
)
@folder_option()
@json_option("the summary")
def trace(name: str | None, seconds: float, output: Path, folder: str, as_json: bool) -> None:
    """Record what the engine NAME does, and name what limits it.

    Open the file at https://ui.perfetto.dev or chrome://tracing. Without NAME, the only engine
    there is.
    """
    from penstock.tracing.timeline import check_place

    check_place(output)
    with engine_named(name, folder) as conversation, terminating_as_interrupt():
        recorded = _record(conversation, seconds)
    if not recorded.batches:
        raise PenstockError(f"the trace is empty: {_why_empty(recorded)}")
    recorded.save(output)
    summary = recorded.summary()
    if as_json:
        print_json({**dataclasses.asdict(summary), "file": str(output)})
    else:
        for line in lines_of(summary):
            click.echo(line)
        click.echo(
            f"\n{output} ({output.stat().st_size / 2**20:.1f} MB): "
            "open it at https://ui.perfetto.dev"
        )


def _record(conversation: Enquiry, seconds: float) -> Trace:
    from penstock.tracing.record import Meter, trace_of

    conversation.ask(m.ASK_TRACE_START, _PATIENCE)
    meter = Meter(conversation.pid)
    try:
        with _progress(seconds) as tell:
            _wait(conversation, seconds, tell)
    except KeyboardInterrupt:
        with contextlib.suppress(EngineClosed):
            conversation.ask(m.ASK_TRACE, _PATIENCE)  # it writes nothing more down
        raise
    load = meter.load()
    statistics = conversation.statistics(_PATIENCE)
    return trace_of(lambda: conversation.ask(m.ASK_TRACE, _LARGE), statistics, seconds, load)


def _wait(conversation: Enquiry, seconds: float, tell: Callable[[float], None]) -> None:
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        tell(passed)
        if conversation.wait_gone(min(_STEP, seconds - passed)):
            raise EngineClosed(
                f"the engine {conversation.address.stem} ended while it was traced; "
                "nothing was written"
            )
    tell(seconds)


@contextlib.contextmanager
def _progress(seconds: float) -> Iterator[Callable[[float], None]]:
    """How much of the time has passed, on stderr, when somebody looks."""
    if not sys.stderr.isatty():
        yield lambda passed: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns: tuple[Any, ...] = (
        TextColumn("recording"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:g} s"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("recording", total=seconds)
        yield lambda passed: progress.update(task, completed=passed)


def _why_empty(recorded: Trace) -> str:
    running = sum(worker.inflight for worker in recorded.engine.workers)
    waiting = recorded.engine.requests.queued
    if recorded.left_out:
        return f"the first batch had {recorded.left_out} requests, more than are written down"
    if running or waiting:
        return (
            f"no batch ended within {recorded.seconds:.1f} s, but {running} run and "
            f"{waiting} requests wait; record for longer (--seconds)"
        )
    return f"nobody asked the engine for anything within {recorded.seconds:.1f} s"


# ── the summary ────────────────────────────────────────────────────────────────────────────────


def lines_of(summary: Summary) -> Iterator[str]:
    """The summary in words."""
    from penstock.tracing.advice import percent

    seconds = summary.seconds or 1.0
    yield (
        f"{summary.requests:,} requests with {summary.rows:,} rows in {summary.batches:,} batches "
        f"within {summary.seconds:.1f} s: {summary.rows / seconds:,.0f} rows/s"
    )
    if summary.left_out:
        yield f"({summary.left_out:,} more were not written down: record for a shorter time)"
    yield ""
    yield f"{'a request':<10}{'share':>8}{'mean':>10}{'p50':>10}{'p99':>10}   ms"
    for name, stage in [*summary.stages.items(), ("in all", summary.total)]:
        times = "".join(f"{1e3 * time:>10.2f}" for time in (stage.mean, stage.p50, stage.p99))
        yield f"{name:<10}{percent(stage.share):>8}{times}"
    yield ""
    device = summary.device
    workers = "the worker is" if len(summary.workers) == 1 else "the workers are, on average,"
    yield (
        f"{workers} busy {percent(device.busy)} of the time (gather {percent(device.gather)}, "
        f"run {percent(device.run)}, scatter {percent(device.scatter)});"
    )
    yield (
        f"  {percent(device.messages)} waiting for messages, {percent(device.held)} with requests "
        f"that wait for others, {percent(device.starved)} with nothing to do"
    )
    if len(summary.workers) > 1:
        shares = ", ".join(percent(worker.busy) for worker in summary.workers)
        yield f"  busy, one by one: {shares}"
    if summary.load.engine is not None and summary.load.machine is not None:
        yield (
            f"the engine's process uses {percent(summary.load.engine)} of a core; of all cores "
            f"{percent(summary.load.machine)} are in use"
        )
    for name, model in summary.models.items():
        if model.batches:
            closed = ", ".join(f"{why} {percent(share)}" for why, share in model.closed.items())
            yield (
                f"{name}: mean batch {model.mean_batch:.1f} of at most {model.max_batch}, "
                f"padding {percent(model.padding)}, closed because: {closed}"
            )
    yield ""
    yield f"limit: {summary.limit.stage}. {summary.limit.advice}"
