"""A worker's loop: receive, gather, run, scatter, reply.

One batch at a time, in the order of the engine's messages, so that a segment is never unmapped
under a batch that reads it. The usual batch is answered with a single `Ran`; what did not go the
usual way (rows that raised, answers that did not fit their slots) is told before it. Between
batches the loop passes on what warming up has found (`warmup`).
"""

from __future__ import annotations

import os
import select
import time
import traceback
from typing import Any

from penstock.errors import InputError, Kind, ModelError
from penstock.spec import Signature
from penstock.transport import messages as m
from penstock.transport.channel import Channel, Closed
from penstock.transport.layouts import LayoutNumbers
from penstock.transport.tensors import Array, plan_of
from penstock.worker.device import IN_SLOT, CpuDevice, Device, Placed, RunLayout, Target
from penstock.worker.isolate import Answered, Outcome, Raised, outcomes
from penstock.worker.memory import MappedSegments
from penstock.worker.warmup import Ready, WarmUp

_TEXT = 12_000
_PATIENCE = 1.0


class Worker:
    """Runs batches until the engine ends, or says so."""

    def __init__(self, channel: Channel, models: list[Ready]) -> None:
        self._channel = channel
        self._models = models
        self._memory = MappedSegments()
        self._device: Device = CpuDevice(self._memory)
        self._layouts: dict[int, RunLayout] = {}
        self._output_layouts: LayoutNumbers[Signature] = LayoutNumbers()
        self._items: list[m.RunItem] = []
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._room = select.poll()
        self._room.register(channel, select.POLLOUT)

    def run(self) -> bool:
        """Until `Stop`, or until the engine is gone.

        Returns whether nothing goes on any more in this process: no model is being warmed up.
        """
        warm_up = WarmUp(self._models)
        self._poll.register(warm_up, select.POLLIN)
        try:
            self._serve(warm_up)
        finally:
            self._poll.unregister(warm_up)
            finished = warm_up.close(_PATIENCE)
        return finished

    def _serve(self, warm_up: WarmUp) -> None:
        while True:
            data, descriptors = self._receive(warm_up)
            if data[0] == m.RUN:
                batch, layout, last, items = m.decode_run(data)
                self._items += items
                if last:
                    items, self._items = self._items, []
                    self._batch(batch, self._layouts[layout], items)
                continue
            record = m.decode(data)
            if isinstance(record, m.MapSegment):
                self._memory.map(record.client, record.segment, record.size, descriptors.pop())
            elif isinstance(record, m.UnmapSegment):
                self._memory.unmap(record.client, record.segment)
            elif isinstance(record, m.RunLayout):
                self._layouts[record.layout] = RunLayout(
                    record.model,
                    self._models[record.model].runnable,
                    record.tensors,
                    plan_of(record.tensors),
                )
            elif isinstance(record, m.Stop):
                return

    def _receive(self, warm_up: WarmUp) -> tuple[bytes, list[int]]:
        while True:
            for ready, _ in self._poll.poll():
                if ready == warm_up.fileno():
                    for message in warm_up.news():
                        self._send(message)
            received = self._channel.receive()
            if received is not None:
                return received

    def _send(self, data: bytes, descriptor: int = -1) -> None:
        """Send; the engine reads whatever happens, so waiting for room is safe here."""
        self._channel.send(data, (descriptor,) if descriptor >= 0 else ())
        while self._channel.wants_write:
            self._room.poll()
            self._channel.flush()

    def _batch(self, number: int, layout: RunLayout, items: list[m.RunItem]) -> None:
        began = time.monotonic_ns()
        arrays, unreadable = self._device.gather(layout, items)
        gathered = time.monotonic_ns()
        rows = sum(item.rows for item in items)
        first_try = True

        def run(start: int, stop: int) -> tuple[Signature, list[Array]]:
            nonlocal first_try
            if first_try:
                first_try = False
                return self._device.run(layout, arrays, rows)
            return self._run_again(layout, items, start, stop)

        usual = scatter_ns = 0
        for index in unreadable:
            error = InputError(f"the input cannot be read: {unreadable[index]}")
            self._failed(number, index, items[index].start, items[index].rows, error)
        for outcome in outcomes(run, rows, layout.runnable.batched):
            ran = time.monotonic_ns()
            if outcome.rows == rows and isinstance(outcome, Answered) and not unreadable:
                usual = self._scatter_all(number, items, outcome)
            else:
                self._scatter_part(number, items, outcome, unreadable)
            scatter_ns += time.monotonic_ns() - ran
        times = (gathered - began, time.monotonic_ns() - gathered - scatter_ns, scatter_ns)
        self._send(m.encode_ran(number, usual, len(arrays[0]), *times))

    def _run_again(
        self, layout: RunLayout, items: list[m.RunItem], start: int, stop: int
    ) -> tuple[Signature, list[Array]]:
        """Run some rows of a batch, gathered anew: the model may have changed what it was given."""
        chosen: list[m.RunItem] = []
        first = 0
        for item in items:
            begin, end = max(first, start), min(first + item.rows, stop)
            if begin < end:
                chosen.append(item._replace(start=item.start + begin - first, rows=end - begin))
            first += item.rows
        arrays, _ = self._device.gather(layout, chosen)
        return self._device.run(layout, arrays, stop - start)

    def _scatter_all(self, number: int, items: list[m.RunItem], result: Answered) -> int:
        """All rows were answered at once; returns the layout, or 0 if some needed a segment."""
        layout = self._layout(result.signature)
        targets: list[Target] = []
        first = 0
        for item in items:
            targets.append(Target(item, item.start, first, item.rows))
            first += item.rows
        placed = self._device.scatter(targets, result.signature, result.arrays)
        if all(place is IN_SLOT for place in placed):
            return layout
        for index, (item, place) in enumerate(zip(items, placed, strict=True)):
            self._part(number, index, item.start, item.rows, layout, place)
        return 0

    def _scatter_part(
        self,
        number: int,
        items: list[m.RunItem],
        outcome: Outcome,
        unreadable: dict[int, str],
    ) -> None:
        """What became of some rows of the batch, item by item."""
        first = 0
        for index, item in enumerate(items):
            begin = max(first, outcome.start)
            end = min(first + item.rows, outcome.start + outcome.rows)
            start = item.start + begin - first
            first += item.rows
            if index in unreadable or (begin >= end and item.rows):
                continue
            if isinstance(outcome, Raised):
                self._failed(number, index, start, end - begin, outcome.error)
                continue
            layout = self._layout(outcome.signature)
            target = Target(item, start, begin - outcome.start, end - begin)
            placed = self._device.scatter([target], outcome.signature, outcome.arrays)
            self._part(number, index, start, end - begin, layout, placed[0])

    def _part(
        self, number: int, index: int, start: int, count: int, layout: int, place: Placed
    ) -> None:
        elsewhere = place.descriptor >= 0
        record = m.ItemPart(number, index, start, count, layout, elsewhere, place.size)
        self._send(m.encode(record), place.descriptor)
        if elsewhere:
            os.close(place.descriptor)

    def _failed(self, number: int, index: int, start: int, count: int, error: Exception) -> None:
        self._send(m.encode(m.ItemFailed(number, index, start, count, *describe(error))))

    def _layout(self, signature: Signature) -> int:
        layout, new = self._output_layouts.number(signature)
        if new:
            self._send(m.encode(m.OutputLayout(layout, signature)))
        return layout


def describe(error: Exception) -> tuple[int, str]:
    """An error as a message tells it: kind, text and, behind a nul character, the traceback."""
    if isinstance(error, InputError):
        return Kind.INPUT, str(error)
    if isinstance(error, ModelError):
        return Kind.MODEL, str(error)
    last = "".join(traceback.format_exception_only(error)).strip().replace("\0", "")
    full = "".join(traceback.format_exception(error)).replace("\0", "")
    return Kind.MODEL, f"{last[:_TEXT]}\0{full[-_TEXT:]}"


def tell_failure(channel: Channel, error: Any) -> None:
    """A model could not be loaded: say why, before this process exits."""
    try:
        channel.send(m.encode(m.LoadFailed(Kind.MODEL_LOAD, str(error))))
    except Closed:
        return
