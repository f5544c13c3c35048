"""A job's loop: hand out parts, record those that are written, watch, until all are done."""

from __future__ import annotations

import json
import os
import queue
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from penstock.data.source import Source
from penstock.errors import InputError
from penstock.offline.crew import Crew, Events, ThreadCrew
from penstock.offline.cut import Cut
from penstock.offline.feed import Feed
from penstock.offline.forms import check_forms
from penstock.offline.labour import Broken, Finished, Labour
from penstock.offline.loaders import LoaderCrew
from penstock.offline.monitor import Monitor, Progress, cores
from penstock.offline.parts import Content, Facts, PartStore, count, forms_in
from penstock.offline.selection import Selection
from penstock.offline.setting_up import Served
from penstock.offline.settings import JobSettings
from penstock.offline.shelves import run_of
from penstock.offline.stages import Stages, total
from penstock.offline.window import Shaping, Window

_TICK = 0.2
_AHEAD = 6  # batches on their way, for each device: as many as a client's own window has
_AHEAD_OF_LARGE = 3  # where a batch of the engine's takes several requests
_AHEAD_OF_LOADERS = 3
_AHEAD_OF_LONG = 4  # where they are so large that the first ones take a while to be made
_LONG_BYTES = 64 << 20
_AHEAD_BYTES = 1 << 30  # on their way, at most: as much as a client may hold

Tell = Callable[[Progress], None]


class Store(Protocol):
    """Where parts are put."""

    def write(self, part: int, content: Content, piece: int = 0) -> Facts:
        """The first phase of a piece of a part."""

    def publish(self, part: int, facts: Facts) -> None:
        """The second."""


@dataclass(frozen=True)
class Work:
    """All that is to be done, and with what. `sink`: how a loader opens the store's."""

    source: Source
    selection: Selection
    cut: Cut
    feed: Feed
    settings: JobSettings
    served: Served
    store: Store
    sink: dict[str, Any] | None = None
    lock: int = -1
    row_bytes: int = 0

    @property
    def shaping(self) -> Shaping:
        """What becomes of outputs."""
        return Shaping(tuple(self.settings.outputs), str(self.settings.map))

    @property
    def fill(self) -> int:
        """The size that batches are filled up to; 0: they are not."""
        return self.cut.batch if self.served.compiled else 0


class Todo(Iterator[int]):
    """The parts that are not done, in order; `end` may become known later."""

    def __init__(self, done: dict[int, Any], end: int | None) -> None:
        self._done, self.end, self._at = done, end, 0

    def __next__(self) -> int:
        while self._at in self._done:
            self._at += 1
        if self.end is not None and self._at >= self.end:
            raise StopIteration
        self._at += 1
        return self._at - 1


class Job:
    """Parts and what came of them. `record` makes a part's facts last."""

    def __init__(
        self, work: Work, parts: dict[int, Facts], record: Callable[[int, Facts], None]
    ) -> None:
        self.work = work
        self.parts = dict(parts)
        self.written = count(parts.values(), "written")
        self.failed = count(parts.values(), "failed")
        self._record = record
        rows = None if work.selection.endless else len(work.selection)
        self._todo = Todo(self.parts, None if rows is None else work.cut.parts(rows))
        self._total = rows or 0
        self._known = self._shown = self.rows
        self._forms = next(forms_in(parts.values()), [])  # as written by earlier runs, and by this
        self.loaders = 0
        self.spent: dict[str, float] = {}

    @property
    def rows(self) -> int:
        """That are done, and recorded."""
        return self.written + self.failed

    def run(self, monitor: Monitor, tell: Tell) -> None:
        """Until all parts are recorded. Raises what stops it; what is recorded stays."""
        self._check_errors()  # those of earlier runs
        crew = _crew(self.work)
        try:
            while crew.fill(self._todo):
                try:
                    event = crew.events.get(timeout=_TICK)
                except queue.Empty:
                    event = None
                if isinstance(event, Broken):
                    raise event.error
                if isinstance(event, Finished):
                    self._finished(event, crew)
                self._look(crew, monitor, tell)
            self._look(crew, monitor, tell, force=True)
        finally:
            crew.close()

    def _finished(self, event: Finished, crew: Crew) -> None:
        if self.work.selection.endless and event.rows < self.work.cut.part:
            end = event.part + bool(event.rows)
            self._todo.end = end if self._todo.end is None else min(end, self._todo.end)
        for forms in forms_in([event.facts]):
            self._forms = self._forms or forms
            check_forms(self._forms, forms)
        if event.rows:
            self.work.store.publish(event.part, event.facts)
            self._record(event.part, event.facts)
            self.parts[event.part] = event.facts
            self.written += count([event.facts], "written")
            self.failed += count([event.facts], "failed")
        crew.recorded(event.part)
        self._check_errors()

    def _check_errors(self) -> None:
        most = self.work.settings.max_errors
        if 0 <= most < self.failed:
            raise InputError(
                f"stopped: {self.failed:,} rows have failed, of {self.rows:,} so far, and "
                f"max_errors is {most:,}; with a larger one the job goes on from here"
            )

    def _look(self, crew: Crew, monitor: Monitor, tell: Tell, force: bool = False) -> None:
        self.spent = total(crew.stages())
        self.loaders = max(self.loaders, crew.count if isinstance(crew, LoaderCrew) else 0)
        rows = self.rows if force else self._far(crew)
        if not monitor.look(rows, self.spent, crew.count, force):
            return
        crew.adapt(monitor.device)
        rate = (rows - self._known) / max(monitor.seconds, 1e-9)
        left = (self._total - rows) / rate if rate and self._total else 0.0
        tell(Progress(rows, self._total, self.failed, rate, left, monitor.device, monitor.limit))

    def _far(self, crew: Crew) -> int:
        """Rows that are done, also in parts that are not; never fewer than were told before, though
        a loader that dies takes some with it."""
        rows = self.rows + crew.answered()
        self._shown = max(self._shown, min(rows, self._total) if self._total else rows)
        return self._shown


def _crew(work: Work) -> Crew:
    """Loaders where decoding keeps cores busy and a process can open the source anew."""
    events: Events = queue.SimpleQueue()
    source, most = work.source, work.settings.loaders or cores()
    apart = source.decodes and source.seekable and source.description is not None
    if apart and work.sink is not None:
        parts = None if work.selection.endless else work.cut.parts(len(work.selection))
        run = run_of(source.together, work.cut.part, parts, most)
        return LoaderCrew(_loader_settings(work), work.lock, most, events, parts, run)
    stages = Stages()
    served = work.served
    window = Window(
        served.client,
        served.model,
        work.feed,
        work.shaping,
        stages,
        size=_ahead(work),
        rows=work.fill,
    )
    labour = Labour(
        source, work.selection, work.cut, work.feed, window, work.store, stages, events.put
    )
    return ThreadCrew(labour, stages, events)


def _ahead(work: Work) -> int:
    """Batches of the job's on their way, of which several may be one for a device."""
    pieces = -(-work.served.max_batch // work.cut.batch)
    size = max(work.row_bytes * work.cut.batch, 1)
    wanted = _AHEAD if size < _LONG_BYTES else _AHEAD_OF_LONG
    wanted = wanted if pieces == 1 else _AHEAD_OF_LARGE * pieces
    most = _AHEAD_BYTES // size
    return max(min(wanted * max(len(work.served.devices), 1), most), 2)


def _loader_settings(work: Work) -> str:
    assert isinstance(work.store, PartStore)
    assert work.sink is not None
    folder = work.store.folder
    return json.dumps(
        {
            "source": work.source.hand_over(folder / "names"),
            "fingerprint": work.source.fingerprint(),
            "selection": work.selection.save(folder),
            "cut": work.cut.to_json(),
            "feed": asdict(work.feed),
            "shaping": asdict(work.shaping),
            "address": str(work.served.client.address),
            "model": work.served.model,
            "window": _AHEAD_OF_LOADERS * max(len(work.served.devices), 1),
            "fill": work.fill,
            "store": {"folder": str(folder), **work.sink},
            "sys_path": [
                str(Path(place).resolve()) if place else os.getcwd() for place in sys.path
            ],
        }
    )
