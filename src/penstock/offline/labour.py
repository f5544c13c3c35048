"""One labour: a part after another is read, predicted and written. Three threads, bounded between.

    parts ─▶ reader ──blocks──▶ sender: window of batches ──contents──▶ writer ─▶ events

A reader decodes while the sender waits for answers and the writer waits for the disk. What goes
wrong in any of them is an event, too, and ends all three. What a source, or a library below it,
raises of its own is told as an error of the input.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from penstock.data.arrays import awaited, brought
from penstock.data.chunk import Array, Chunk
from penstock.data.source import Source
from penstock.errors import InputError, PenstockError
from penstock.offline.cut import Cut
from penstock.offline.deaths import Care
from penstock.offline.failures import failure_of
from penstock.offline.feed import Feed
from penstock.offline.forms import Forms, check_forms, concatenated, forms_of
from penstock.offline.parts import Content, Facts, count, together
from penstock.offline.selection import Selection, left_out, put_together
from penstock.offline.stages import DECODING, FULL, READING, STARVED, WRITING, Stages
from penstock.offline.threads import Thread
from penstock.offline.window import Batch, Window

_LOOK = 0.1  # seconds between looks at whether to stop
_BLOCKS_AHEAD = 2
_LARGE = 1 << 20  # bytes of a batch
_PIECE_BYTES = 128 << 20  # of outputs: when so many were gathered they are written


class Store(Protocol):
    """Where a labour puts parts."""

    def write(self, part: int, content: Content, piece: int = 0) -> Facts:
        """The first phase of a piece of a part."""


@dataclass(frozen=True)
class Finished:
    """A part is written, under temporary names. `rows`: how many it had."""

    part: int
    rows: int
    facts: Facts


@dataclass(frozen=True)
class Broken:
    """It cannot go on."""

    error: BaseException


@dataclass(frozen=True)
class Reading:
    """A row is about to be read alone, in a part that is done with care; `None`: none is."""

    part: int
    row: int | None


Event = Finished | Broken | Reading
_Item = tuple[int, bool, Chunk, Array]  # part, whether it ends here, rows, their numbers


class _Stopped(Exception):
    """Told to stop."""


class Labour:
    """Works off the parts it is given, until it is told that there are no more."""

    def __init__(
        self,
        source: Source,
        selection: Selection,
        cut: Cut,
        feed: Feed,
        window: Window,
        store: Store,
        stages: Stages,
        tell: Callable[[Event], None],
    ) -> None:
        self._source, self._selection, self._cut, self._feed = source, selection, cut, feed
        self._window, self._store, self._stages, self._tell = window, store, stages, tell
        self._parts: queue.SimpleQueue[tuple[int, Care | None] | None] = queue.SimpleQueue()
        self._blocks: queue.Queue[_Item | None] = queue.Queue(_BLOCKS_AHEAD)
        self._contents: queue.Queue[tuple[int, bool, list[Content]] | None] = queue.Queue(1)
        self._forms: Forms = []  # of the first rows that it wrote
        self._gathered = 0  # bytes that have their answers, and are not with the writer yet
        self._stopping = threading.Event()
        self._threads = [
            Thread(self._guarded, name, work, what)
            for name, work, what in (
                ("reader", self._read, "rows cannot be read"),
                ("sender", self._send, "rows cannot be sent, or their outputs shaped"),
                ("writer", self._write, "outputs cannot be written"),
            )
        ]

    def start(self) -> None:
        """Begin to wait for parts."""
        for thread in self._threads:
            thread.start()

    def assign(self, part: int | None, care: Care | None = None) -> None:
        """One more part, perhaps to be done with care; `None`: there are no more."""
        self._parts.put(None if part is None else (part, care))

    def stop(self) -> None:
        """Leave everything as it is. Whoever waits for an answer ends when its engine does."""
        self._stopping.set()
        self._parts.put(None)

    def join(self) -> None:
        """Wait for the end."""
        for thread in self._threads:
            thread.join()

    def _guarded(self, work: Callable[[], None], what: str) -> None:
        try:
            work()
        except _Stopped:
            pass
        except BaseException as error:
            if not self._stopping.is_set():
                self._stopping.set()
                self._tell(Broken(_told(error, what)))

    # ── reading ────────────────────────────────────────────────────────────────────────────────

    def _read(self) -> None:
        stage = DECODING if self._source.decodes else READING
        while (order := self._parts.get()) is not None and not self._stopping.is_set():
            part, care = order
            blocks = list(self._cut.blocks(part, len(self._selection)))
            for start, stop in self._runs(blocks or [(0, 0)]):
                with self._stages.timed(stage):
                    chunk, rows = self._rows(part, start, stop, care)
                    columns = {
                        name: self._brought(name, column) for name, column in chunk.columns.items()
                    }
                    chunk = replace(chunk, columns=columns, keys=brought(chunk.keys))
                short = len(chunk) < stop - start
                if short and not self._selection.endless:
                    raise InputError(
                        f"the source ended early: expected rows {start} to {stop}, "
                        f"got {len(chunk)} of them; was it changed?"
                    )
                last = short or stop == blocks[-1][1] if blocks else True
                self._put(self._blocks, (part, last, chunk, rows))
                if last:
                    break
        self._put(self._blocks, None)

    def _brought(self, name: str, column: Array) -> Array:
        """In memory; but mapped rows of large batches, at which nobody looks, stay in their file:
        they are read into slots."""
        large = column[: self._cut.batch].nbytes >= _LARGE
        return (
            column if large and self._feed.only_sends(name) and awaited(column) else brought(column)
        )

    def _runs(self, blocks: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Blocks, in several where their rows turn out to be large."""
        for start, stop in blocks:
            yield from self._selection.runs(self._source, start, stop, self._cut.batch)

    def _rows(self, part: int, start: int, stop: int, care: Care | None) -> tuple[Chunk, Array]:
        """The rows at these positions; with care, one after the other."""
        if care is None:
            return self._selection.read(self._source, start, stop)
        chunks: list[Chunk] = []
        for at in range(start, stop):
            row = int(self._selection.rows[at])
            if row in care:
                chunks.append(left_out(self._source, row, care[row]))
                continue
            self._tell(Reading(part, row))
            chunks.append(self._selection.read(self._source, at, at + 1)[0])
        self._tell(Reading(part, None))
        return put_together(chunks), np.asarray(self._selection.rows[start:stop], np.int64)

    # ── sending and gathering ──────────────────────────────────────────────────────────────────

    def _send(self) -> None:
        gathered: list[Content] = []
        while (item := self._next_block(gathered)) is not None:
            part, ends, chunk, rows = item
            starts = range(0, len(chunk), self._cut.batch) or [0]
            for start in starts:
                if self._window.full:
                    self._gather(gathered)
                last = ends and start == starts[-1]
                self._window.send(self._batch(part, last, chunk, rows, start))
        while len(self._window):
            self._gather(gathered)
        self._put(self._contents, None)

    def _next_block(self, gathered: list[Content]) -> _Item | None:
        """What the reader has; meanwhile answers are gathered, as they may be what it waits for."""
        while True:
            try:
                return self._blocks.get_nowait()
            except queue.Empty:
                if len(self._window):
                    self._gather(gathered)
                    continue
            with self._stages.timed(STARVED):
                item: _Item | None = self._get(self._blocks)
            return item

    def _batch(self, part: int, last: bool, chunk: Chunk, rows: Array, start: int) -> Batch:
        stop = min(start + self._cut.batch, len(chunk))
        numbers = rows[start:stop]
        some = Chunk(
            start,
            {name: column[start:stop] for name, column in chunk.columns.items()},
            chunk.keys[start:stop],
        )
        failed = {failure.row: failure for failure in chunk.failures}
        good = np.ones(stop - start, bool)
        failures = []
        for at, row in enumerate(numbers.tolist() if failed else ()):
            if row in failed:
                good[at] = False
                failures.append(failed[row])
        for at, why in self._feed.misfits(some).items():
            if good[at]:
                good[at] = False
                failures.append(
                    failure_of(int(numbers[at]), some.keys[at], ValueError(why), "type")
                )
        kept = {name: some.columns[name] for name in self._feed.keep}
        inputs = self._feed.inputs(some)
        return Batch(part, last, inputs, some.keys, numbers, good, failures, kept)

    def _gather(self, gathered: list[Content]) -> None:
        if self._stopping.is_set():
            raise _Stopped
        batch, content = self._window.gather()
        gathered.append(content)
        self._stages.gathered += len(batch.keys)
        self._gathered += content.size
        if batch.last or self._gathered >= _PIECE_BYTES:
            with self._stages.timed(FULL):
                self._put(self._contents, (batch.part, batch.last, list(gathered)))
            gathered.clear()
            self._gathered = 0

    # ── writing ────────────────────────────────────────────────────────────────────────────────

    def _write(self) -> None:
        pieces: list[Facts] = []
        while (item := self._get(self._contents)) is not None:
            part, ends, contents = item
            with self._stages.timed(WRITING):
                content = self._together(contents)
                pieces.append(self._store.write(part, content, len(pieces)))
            del item, contents, content
            if ends:
                facts = together(pieces)
                if count([facts], "written"):
                    facts = {**facts, "forms": self._forms}
                rows = count([facts], "written") + count([facts], "failed")
                pieces.clear()
                self._stages.finished += rows
                self._tell(Finished(part, rows, facts))

    def _together(self, contents: list[Content]) -> Content:
        full = [content for content in contents if len(content.keys)]
        failures = [failure for content in contents for failure in content.failures]
        if not full:
            return Content({}, np.empty(0, np.int64), np.empty(0, np.int64), failures)
        for content in full:
            found = forms_of(content.columns)
            self._forms = self._forms or found
            check_forms(self._forms, found)
        columns = {name: concatenated([c.columns[name] for c in full]) for name in full[0].columns}
        keys = np.concatenate([content.keys for content in full])
        return Content(columns, keys, np.concatenate([c.rows for c in full]), failures)

    def _put(self, to: queue.Queue[Any], item: Any) -> None:
        while not self._stopping.is_set():
            try:
                return to.put(item, timeout=_LOOK)
            except queue.Full:
                continue
        raise _Stopped

    def _get(self, source: queue.Queue[Any]) -> Any:
        while not self._stopping.is_set():
            try:
                return source.get(timeout=_LOOK)
            except queue.Empty:
                continue
        raise _Stopped


def _told(error: BaseException, what: str) -> BaseException:
    known = isinstance(error, (PenstockError, OSError, MemoryError))
    if known or not isinstance(error, Exception):
        return error
    told = InputError(f"{what}: {type(error).__name__}: {error}")
    told.__cause__ = error
    return told
