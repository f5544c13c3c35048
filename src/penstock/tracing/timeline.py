"""A trace as a file for Perfetto and chrome://tracing: Chrome's trace events, in JSON.

A process for each worker, with a slice for each batch and in it its stages, one after the other;
and one for each client, with an asynchronous slice for each request and two parts in it: `queue`
until its batch was sent, and `run` until it ended. Process numbers are made up (two clients may
live in one process); the real ones are in the names. What lies before the start is cut off. Whole
microseconds: fractions would be rounded by the reader, and slices overlap by a hair.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.tracing.record import Trace, TracedBatch

_WORKERS = 1  # the first worker's process number, and the first client's
_CLIENTS = 100_000


def check_place(path: Path) -> None:
    """Raise `ConfigError` when a trace cannot be written there."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is there already, and is no file")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"the folder {path.parent} cannot be written to")


def write(trace: Trace, path: Path) -> None:
    """Write the file: under another name first, so that it is there as a whole or not at all."""
    check_place(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    open_text: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with open_text(beside, "wt", encoding="ascii") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            lines = events(trace)
            file.write(next(lines))
            for line in lines:
                file.write(",\n" + line)
            file.write("\n]}\n")
        beside.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def events(trace: Trace) -> Iterator[str]:
    """Every event, as JSON; the processes' names come first."""
    for worker in trace.engine.workers:
        name = f"{trace.engine.name}: worker {worker.index} (pid {worker.pid})"
        yield from _process(_WORKERS + worker.index, name, worker.index)
    clients = sorted({r.client for batch in trace.batches for r in batch.requests})
    for number in clients:
        name = trace.clients.get(number, f"client {number} (gone)")
        yield from _process(_CLIENTS + number, name, _CLIENTS + number)
    for batch in trace.batches:
        yield from _slices(batch)
    numbers = itertools.count(1)
    for batch in trace.batches:
        yield from _requests(batch, numbers)


def _process(number: int, name: str, order: int) -> Iterator[str]:
    for what, value in (
        ("process_name", {"name": name}),
        ("process_sort_index", {"sort_index": order}),
    ):
        yield _text({"ph": "M", "pid": number, "tid": number, "name": what, "args": value})


def _slices(batch: TracedBatch) -> Iterator[str]:
    """The batch, and its stages in it."""
    process = _WORKERS + batch.worker
    start, gathered, ran, scattered = batch.placed
    args = {"rows": batch.rows, "size": batch.size, "closed": batch.closed}
    more = {"batch": batch.number, "model": batch.model, "requests": len(batch.requests)}
    pieces: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
        (f"{batch.model} × {batch.rows}", start, scattered, {**args, **more}),
        ("gather", start, gathered, args),
        ("run", gathered, ran, args),
        ("scatter", ran, scattered, args),
    )
    for title, first, last, facts in pieces:
        begin, end = _micro(first), _micro(last)
        event = {"ph": "X", "pid": process, "tid": process, "cat": "batch", "name": title}
        yield _text({**event, "ts": begin, "dur": end - begin, "args": facts})


def _requests(batch: TracedBatch, numbers: Iterator[int]) -> Iterator[str]:
    """Its requests, each from `admitted` to `ended`, with what came before `sent` and after."""
    sent, ended = _micro(batch.sent), _micro(batch.ended)
    for request in batch.requests:
        process = _CLIENTS + request.client
        common = f'"cat":"request","id":"{next(numbers)}","pid":{process},"tid":{process}'
        admitted = _micro(request.admitted)
        args = (
            f'{{"request":{request.number},"rows":{request.rows},"batch":{batch.number},'
            f'"worker":{batch.worker},"ms":{(batch.ended - request.admitted) / 1e6}}}'
        )
        yield f'{{"ph":"b","name":"request","ts":{admitted},{common},"args":{args}}}'
        for name, first, last in (("queue", admitted, sent), ("run", sent, ended)):
            yield f'{{"ph":"b","name":"{name}","ts":{first},{common}}}'
            yield f'{{"ph":"e","name":"{name}","ts":{last},{common}}}'
        yield f'{{"ph":"e","name":"request","ts":{ended},{common}}}'


def _micro(nanoseconds: int) -> int:
    return max(nanoseconds, 0) // 1000


def _text(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"))
