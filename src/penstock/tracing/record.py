"""A recording of an engine's work: batches, with the requests in them and when each thing happened.

All times are nanoseconds since the recording began; what was admitted before has negative ones. A
request's life, and who knows the moment::

    admitted ──queue──▶ sent ──waiting──▶ gather ─▶ run ─▶ scatter ──reply──▶ ended
     engine             engine            └─── durations: worker ───┘        engine

The worker tells how long its stages took, not when: they are placed from the moment when the worker
was free for the batch, one after the other, never over those of the batch before. What is left
until `ended` is the way of the message back.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import PenstockError
from penstock.statistics import Statistics

if TYPE_CHECKING:
    from penstock.tracing.summary import Summary

_TOLERANCE = 1_000_000  # nanoseconds


class TracedRequest(NamedTuple):
    """A request, or a part of one that ran in another batch than the rest."""

    client: int
    number: int
    rows: int
    admitted: int


@dataclass(frozen=True)
class Load:
    """How busy the cores were: the share of one that the engine's process used, and the share of
    all of them that was used by anybody. `None`: not known."""

    engine: float | None = None
    machine: float | None = None


class Placed(NamedTuple):
    """When a worker's stages began and ended: gather, run, scatter, one after the other."""

    start: int
    gathered: int
    ran: int
    scattered: int


class TracedBatch(NamedTuple):
    """A batch. `size` is what it was padded to, `closed` why it was sent as it was."""

    number: int
    worker: int
    model: str
    rows: int
    size: int
    closed: str
    sent: int
    placed: Placed
    ended: int
    requests: tuple[TracedRequest, ...]


@dataclass(frozen=True)
class Trace:
    """Everything that ended in an engine within `seconds`, as far as there was room.

    `left_out` counts requests that found none. `engine` is what the engine told of itself
    afterwards, `clients` has the names of those that were still connected then.
    """

    seconds: float
    left_out: int
    engine: Statistics
    load: Load
    clients: dict[int, str]
    batches: tuple[TracedBatch, ...]

    @property
    def requests(self) -> int:
        """How many requests ended."""
        return len({(r.client, r.number) for batch in self.batches for r in batch.requests})

    def summary(self) -> Summary:
        """Where the time went, and which stage is the limit."""
        from penstock.tracing.summary import summary_of

        return summary_of(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that Perfetto and chrome://tracing open; `.gz` compresses it.

        It is there as a whole or not at all.
        """
        from penstock.tracing.timeline import write

        write(self, Path(path))


def trace_of(take: Callable[[], bytes], engine: Statistics, wanted: float, load: Load) -> Trace:
    """The recording, from the engine's answers. `take` asks for the next piece of it.

    Raises `PenstockError` when it covers less than the `wanted` seconds: the engine records for one
    at a time, and somebody else has begun anew, or taken it.
    """
    pieces = [json.loads(take())]
    while pieces[-1].get("more"):
        pieces.append(json.loads(take()))
    first = pieces[0]
    since, until = first["since"], first["until"]
    if not since or until - since + _TOLERANCE < wanted * 1e9:
        raise PenstockError("somebody else traced this engine at the same time; try again")
    batches = _batches(
        [batch for piece in pieces for batch in piece["batches"]], first["models"], since
    )
    if first["left_out"]:  # there was no room for more: it covers less time
        until = since + max((batch.ended for batch in batches), default=0)
    return Trace(
        seconds=(until - since) / 1e9,
        left_out=first["left_out"],
        engine=engine,
        load=load,
        clients={
            int(number): _name(int(number), client) for number, client in first["clients"].items()
        },
        batches=batches,
    )


def _name(number: int, client: dict[str, Any]) -> str:
    own = f"pid {client['pid']}"
    label = client["label"]
    return f"client {number}: {own if label in ('', own) else f'{label} ({own})'}"


def _batches(
    values: list[dict[str, Any]], models: list[str], since: int
) -> tuple[TracedBatch, ...]:
    last: dict[int, int] = {}  # by worker: the end of its stages so far
    batches: list[TracedBatch] = []
    for value in values:
        worker, sent, ended = value["worker"], value["sent"] - since, value["ended"] - since
        stages = (value["gather"], value["run"], value["scatter"])
        earliest = max(sent, last.get(worker, sent))
        placed = _place(stages, earliest, value["began"] - since, ended)
        last[worker] = placed.scattered
        batches.append(
            TracedBatch(
                number=value["batch"],
                worker=worker,
                model=models[value["model"]],
                rows=value["rows"],
                size=value["size"],
                closed=value["closed"],
                sent=sent,
                placed=placed,
                ended=ended,
                requests=tuple(
                    TracedRequest(client, number, rows, admitted - since)
                    for client, number, rows, admitted in value["requests"]
                ),
            )
        )
    return tuple(batches)


def _place(stages: tuple[int, int, int], earliest: int, began: int, ended: int) -> Placed:
    """One after the other from `began`; earlier if they would not end in time, else squeezed."""
    total = sum(stages)
    start = min(max(earliest, min(began, ended - total)), ended)
    room = min(total, ended - start)
    marks, passed = [start], 0
    for stage in stages:
        passed += stage
        marks.append(start + (passed * room // total if total else 0))
    return Placed(*marks)


class Meter:
    """What an engine's process, and all of the machine, use of the cores, from now on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since = time.monotonic()
        self._engine = _engine_seconds(pid)
        self._machine = _machine_ticks()

    def load(self) -> Load:
        """So far."""
        used, before = _engine_seconds(self._pid), self._engine
        engine = machine = None
        if used is not None and before is not None:
            engine = (used - before) / (time.monotonic() - self._since)
        busy, all_ = (b - a for a, b in zip(self._machine, _machine_ticks(), strict=True))
        if all_ > 0:
            machine = busy / all_
        return Load(engine, machine)


def _engine_seconds(pid: int) -> float | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        process = Path(f"/proc/{pid}")
        if b"penstock" in (process / "cmdline").read_bytes():  # not one of another container
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return None


def _machine_ticks() -> tuple[int, int]:
    """The cores' time since the machine started: busy, and in all."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = [int(field) for field in Path("/proc/stat").read_text().split()[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
    return 0, 0
