"""What models need of a card's memory, and what fits where: arithmetic, before anything starts.

A worker needs, in bytes::

    overhead                  CUDA's context and libraries, once for the process
    + program × sizes         of every model: XLA's programs, where the weights are in each of them
    + buffers_per_row × rows  of every model: what batches are gathered into
    + weights                 of every model                               ┐ TensorFlow's own, which
    + fixed + per_row × rows  of one model, the hungriest: batches run     ├ uses at most `ROOM` of
                              one after another                            ┘ its limit

Workers cut their batches by the same sum (`model.peak`). The peak of a batch is linear in its rows,
so two small batches tell what a large one takes (`fit`). A model that was never measured has at
least the weights in its file (`estimate`).
"""

from __future__ import annotations

import json
import math
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from penstock.devices.cards import amount
from penstock.devices.limit import OVERHEAD
from penstock.devices.room import Room
from penstock.errors import DeviceMemoryError

ROOM = 0.92  # of the limit: memory is handed out in pieces, which do not always fit together
MOST_ROWS = 65_536
DAMAGED = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
_PROGRAMS = 8  # with the weights in them: as many as a ladder has sizes
_WITH_OPTIMIZER = 3  # Adam keeps two numbers beside each weight, and files may hold them


@dataclass(frozen=True)
class Need:
    """What a model takes of a card, in bytes. `measured`: false where that is a lower bound.

    `ladder` are the sizes that its batches have, and `program` what each of them takes beside
    TensorFlow's limit.
    """

    weights: int
    fixed: int = 0
    per_row: int = 0
    buffers_per_row: int = 0
    overhead: int = OVERHEAD
    measured: bool = True
    program: int = 0
    ladder: tuple[int, ...] = ()

    def at(self, rows: int) -> int:
        """In a worker of its own, with batches of at most so many rows."""
        return worker_need({"": self}, {"": rows})

    def beside(self, rows: int) -> int:
        """Of that, what is neither TensorFlow's own nor the process's: programs and buffers."""
        programs = max(1, sum(size <= rows for size in self.ladder)) * self.program
        return programs + self.buffers_per_row * rows


def fit(points: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """`(fixed, per_row)`: the line through peaks in bytes at batches of some rows.

    Its slope is that of the least squares, never below 0, and no peak that was seen is above it.
    Sizes far apart tell more: 16 and 64 rather than 16 and 17.
    """
    if not points:
        raise ValueError("no point to fit a line to")
    count = len(points)
    mean_rows = sum(rows for rows, _ in points) / count
    mean_peak = sum(peak for _, peak in points) / count
    spread = sum((rows - mean_rows) ** 2 for rows, _ in points)
    slope = (
        sum((rows - mean_rows) * (peak - mean_peak) for rows, peak in points) / spread
        if spread
        else max(peak / max(rows, 1) for rows, peak in points)  # one size: no constant is known
    )
    per_row = max(0, -int(-slope // 1))
    fixed = max(0, *(peak - per_row * rows for rows, peak in points))
    return fixed, per_row


def measured(points: Sequence[tuple[int, int]], weights: int, buffers_per_row: int = 0) -> Need:
    """A need from peaks that were measured, weights and all."""
    fixed, per_row = fit(points)
    return Need(weights, max(0, fixed - weights), per_row, buffers_per_row)


def largest_batch(need: Need, limit: int, most: int = MOST_ROWS) -> int:
    """The largest batch of a worker with this share of a card; 0: not even one row."""
    return _batches({"": need}, {"": most}, limit)[""]


def batches(needs: Mapping[str, Need], limit: int) -> dict[str, int]:
    """The largest batches of a worker with these models and this share; all 0: none fits."""
    wanted = {name: max(need.ladder, default=MOST_ROWS) for name, need in needs.items()}
    return _batches(needs, wanted, limit)


class Beside(NamedTuple):
    """Of a worker's share, what programs and what buffers take beside TensorFlow's limit; and the
    largest batches of the models that were measured."""

    programs: int
    buffers: int
    rows: dict[str, int]


def beside(needs: Mapping[str, Need], size: int, buffers_each: int) -> Beside:
    """What is not TensorFlow's, of a share of this size.

    Of models that were measured it is known, at the largest batches that fit. For the others there
    is room for a ladder of programs and for large batches (`buffers_each` bytes), but no more than
    the share bears: most of what their weights leave is TensorFlow's.
    """
    known = {name: need for name, need in needs.items() if need.measured}
    others = [need for need in needs.values() if not need.measured]
    weights = sum(need.weights for need in others)
    own = max(size - OVERHEAD, 0)
    spare = max(own - int(weights / ROOM), 0)
    programs = min(_PROGRAMS * weights, own // 4, spare // 3)
    buffers = min(len(others) * min(buffers_each, own // 8), spare // 4)
    rows = batches(known, size - programs - buffers)
    for name, need in known.items():
        gathered = need.buffers_per_row * rows[name]
        programs += need.beside(rows[name]) - gathered
        buffers += gathered
    return Beside(programs, buffers, rows)


def worker_need(needs: Mapping[str, Need], rows: Mapping[str, int]) -> int:
    """What a worker with these models takes at these batch sizes."""
    own = sum(need.weights for need in needs.values()) + max(
        (need.fixed + need.per_row * rows[name] for name, need in needs.items()), default=0
    )
    return (
        max((need.overhead for need in needs.values()), default=0)
        + sum(need.beside(rows[name]) for name, need in needs.items())
        + math.ceil(own / ROOM)
    )


@dataclass(frozen=True)
class Fit:
    """A card: each model's largest batch on it (0: no room), and how many such workers fit."""

    room: Room
    share: int  # what a worker with these batches takes
    batches: Mapping[str, int]
    replicas: int


@dataclass(frozen=True)
class MemoryPlan:
    """What fits where. `require` refuses what does not. `limit`: the setting `gpu_memory`, or 0."""

    needs: Mapping[str, Need]
    fits: tuple[Fit, ...]
    limit: int = 0

    def require(self) -> None:
        """Raise `DeviceMemoryError`, with the numbers, if a card has no room for the models."""
        short = [each for each in self.fits if not each.replicas]
        if short:
            least = worker_need(self.needs, dict.fromkeys(self.needs, 1))
            verb = "needs" if len(self.needs) == 1 else "together need"
            told = "; ".join(str(each.room) for each in short if each.room.left < least)
            if 0 < self.limit < least:
                told = f"gpu_memory is {amount(self.limit)}" + (f"; {told}" if told else "")
            raise DeviceMemoryError(
                f"{', '.join(self.needs)} {verb} {self._about()}{amount(least)} of a GPU's memory "
                f"to run one row ({self._parts()}); {told}{self._without()}"
            )

    def table(self) -> str:
        """For people: a line for each card and model."""
        lines = [
            ("card", "left", "model", "weights", "a row", "largest batch", "worker", "workers")
        ]
        for each in self.fits:
            for name, need in self.needs.items():
                rows = each.batches[name]
                lines.append(
                    (
                        each.room.card.label,
                        amount(each.room.left),
                        name,
                        amount(need.weights),
                        _fine(need.per_row + need.buffers_per_row) if need.measured else "?",
                        (f"{rows:,}" if need.measured else "?") if rows else "no room",
                        ("" if need.measured else "≥ ") + amount(each.share),
                        str(each.replicas),
                    )
                )
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                text.ljust(width) if at in (0, 2) else text.rjust(width)
                for at, (text, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def _about(self) -> str:
        return "" if all(need.measured for need in self.needs.values()) else "at least "

    def _without(self) -> str:
        """What else there is for models without weights: functions, mostly."""
        weights = any(need.weights for need in self.needs.values())
        return "" if weights else "; plain functions that need no GPU: devices='cpu'"

    def _parts(self) -> str:
        overhead = max(need.overhead for need in self.needs.values())
        models = ", ".join(
            f"{name}: weights {amount(need.weights)}, "
            + (f"in a compiled program {amount(need.program)}, " if need.program else "")
            + f"a row {_fine(need.per_row)}"
            for name, need in self.needs.items()
        )
        spare = f"{1 - ROOM:.0%} of TensorFlow's memory to spare"
        return f"CUDA and its libraries {amount(overhead)}; {models}; {spare}"


def plan(
    needs: Mapping[str, Need],
    rooms: Sequence[Room],
    most: Mapping[str, int] | None = None,
    limit: int = 0,
) -> MemoryPlan:
    """What fits on these cards, one worker with every model on each.

    `most` is the largest batch that is wanted of a model (else the largest of its ladder), `limit`
    the most that a worker may take (0: what is left of its card).
    """
    wanted = {
        name: (most or {}).get(name) or max(need.ladder, default=MOST_ROWS)
        for name, need in needs.items()
    }
    fits = tuple(_on(room, needs, wanted, limit) for room in rooms)
    return MemoryPlan(dict(needs), fits, limit)


def _on(room: Room, needs: Mapping[str, Need], wanted: Mapping[str, int], limit: int) -> Fit:
    left = min(room.left, limit or room.left)
    rows = _batches(needs, wanted, left)
    if not all(rows.values()):
        return Fit(room, worker_need(needs, dict.fromkeys(needs, 1)), rows, 0)
    share = worker_need(needs, rows)
    return Fit(room, share, rows, room.left // share if share else 1)


def _batches(needs: Mapping[str, Need], wanted: Mapping[str, int], limit: int) -> dict[str, int]:
    """The largest batches that fit together: the hungriest is halved until they do, then each
    gets what is left. All 0 where not even single rows fit."""
    rows = dict(wanted)
    while worker_need(needs, rows) > limit:
        large = [name for name in needs if rows[name] > 1]
        if not large:
            return dict.fromkeys(needs, 0)
        hungriest = max(
            large,
            key=lambda name: (needs[name].per_row + needs[name].buffers_per_row) * rows[name],
        )
        rows[hungriest] //= 2
    for name in needs:
        low, high = rows[name], wanted[name]
        while low < high:
            middle = (low + high + 1) // 2
            if worker_need(needs, {**rows, name: middle}) <= limit:
                low = middle
            else:
                high = middle - 1
        rows[name] = low
    return rows


def estimate(path: str | os.PathLike[str]) -> Need:
    """At least what a model takes that was never measured, from the weights in its file or folder.

    A file that may also hold an optimizer's state counts a third. What is no model's file, such as
    a function, counts nothing.
    """
    place = Path(path)
    weights = 0
    try:
        if place.is_dir():
            stored = sum(file.stat().st_size for file in place.glob("variables/variables.data-*"))
            weights = stored // _WITH_OPTIMIZER
        elif place.suffix == ".keras":
            weights = _in_archive(place)
        elif place.suffix in (".h5", ".hdf5"):
            weights = place.stat().st_size // _WITH_OPTIMIZER
    except DAMAGED:
        pass  # whoever loads it says what is wrong with it
    return Need(weights, measured=False)


def _in_archive(place: Path) -> int:
    with zipfile.ZipFile(place) as archive:
        stored = sum(
            entry.file_size
            for entry in archive.infolist()
            if entry.filename.endswith(".weights.h5")
        )
        names = archive.namelist()
        config = json.loads(archive.read("config.json")) if "config.json" in names else {}
    compiled = isinstance(config, dict) and bool(config.get("compile_config"))
    return stored // (_WITH_OPTIMIZER if compiled else 1)


def _fine(count: int) -> str:
    return f"{count / 2**20:.1f} MB" if count < 10 << 20 else amount(count)
