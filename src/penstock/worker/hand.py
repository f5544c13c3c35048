"""One batch after the other through the stages of a device.

The usual batch is answered with a single `Ran`; what did not go the usual way (rows that raised,
answers that did not fit their slots) is told before it. A batch for which there is no memory is
treated as one that raised: perhaps there is enough for parts of it.
"""

from __future__ import annotations

import os
import time
import traceback
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from penstock.errors import DeviceMemoryError, InputError, Kind, ModelError
from penstock.spec import Signature
from penstock.transport import messages as m
from penstock.transport import wire
from penstock.transport.tensors import Array, plan_of
from penstock.worker.device import IN_SLOT, Device, Placed, RunLayout, Target, row_by_row
from penstock.worker.isolate import Answered, Outcome, Raised, outcomes
from penstock.worker.room import NoRoom

if TYPE_CHECKING:
    from penstock.worker.loop import Order, Worker

_TEXT = 12_000
_MOST_WAYS = 64
_ways: dict[tuple[tuple[str, str, int, int], ...], str] = {}

Gathered = tuple[list[Any], dict[int, str]]  # as devices do: the rows, and what is unreadable


class Rows:
    """The rows of a batch, and which of its items they are of."""

    def __init__(self, items: list[m.RunItem]) -> None:
        self.items = items

    @cached_property
    def _firsts(self) -> list[int]:
        return list(accumulate((item.rows for item in self.items[:-1]), initial=0))

    def among(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Of these rows of the batch: the item's index, its first one, from which to which."""
        firsts = self._firsts
        for index in range(bisect_right(firsts, start) - 1, len(firsts)):
            first = firsts[index]
            begin, end = max(first, start), min(first + self.items[index].rows, stop)
            if begin > end or (begin == end and start < stop):
                return
            yield index, first, begin, end


class Hand:
    """A thread's own device, and the worker that it is a hand of."""

    def __init__(self, worker: Worker, device: Device) -> None:
        self._worker = worker
        self._device = device

    def work(self) -> None:
        """Take orders until there are no more."""
        worker = self._worker
        while True:
            with worker.turn:
                order = worker.next_order()
                if order is None:
                    return
                began = time.monotonic_ns()
                gathered: Gathered | NoRoom
                try:
                    gathered = self._gather(order.layout, order.items)
                except NoRoom as error:
                    gathered = error
                alone = order.layout.alone
                if alone is not None:
                    alone.acquire()  # before others have their turn: such batches keep their order
            try:
                self._batch(order, gathered, began)
            finally:
                if alone is not None:
                    alone.release()

    def _gather(self, layout: RunLayout, items: list[m.RunItem]) -> Gathered:
        try:
            return self._device.gather(layout, items)
        except MemoryError as error:
            raise NoRoom(f"a batch of {sum(item.rows for item in items)} rows", error) from None

    def _batch(self, order: Order, whole: Gathered | NoRoom, began: int) -> None:
        number, layout, items = order
        batch = Rows(items)
        gathered = time.monotonic_ns()
        rows = sum(item.rows for item in items)
        if isinstance(whole, NoRoom):
            size, unreadable = layout.runnable.padded(rows), {}
        else:
            size, unreadable = len(whole[0][0]), whole[1]
        late: dict[int, str] = {}  # unreadable items, of the part that was gathered anew
        first_try = True

        def run(start: int, stop: int) -> tuple[Signature, list[Array]]:
            nonlocal first_try, late
            with self._worker.running:
                if first_try:
                    first_try = False
                    if isinstance(whole, NoRoom):
                        raise whole
                    return self._device.run(layout, whole[0], rows)
                arrays, late = self._gather_again(layout, batch, start, stop)
                return self._device.run(layout, arrays, stop - start)

        usual: Signature | None = None
        scatter_ns = 0
        for index in unreadable:
            error = InputError(f"the input cannot be read: {unreadable[index]}")
            self._failed(number, index, items[index].start, items[index].rows, error)
        for outcome in outcomes(run, rows, layout.runnable.batched):
            ran = time.monotonic_ns()
            if outcome.rows == rows and isinstance(outcome, Answered) and not unreadable:
                usual = self._scatter_all(number, items, outcome)
            else:
                self._scatter_part(number, batch, outcome, unreadable, late)
            scatter_ns += time.monotonic_ns() - ran
        if layout.runnable.changed:
            layout.runnable.changed = False
            self._worker.tell_facts(layout.model)
        times = (gathered - began, time.monotonic_ns() - gathered - scatter_ns, scatter_ns)
        if usual is None:
            self._worker.send(wire.encode_ran(number, 0, size, *times))
        else:
            self._worker.send_of(
                usual, lambda layout: wire.encode_ran(number, layout, size, *times)
            )

    def _gather_again(self, layout: RunLayout, batch: Rows, start: int, stop: int) -> Gathered:
        """Some rows of a batch: the model may have changed what it was given."""
        chosen: list[m.RunItem] = []
        of_item: list[int] = []
        for index, first, begin, end in batch.among(start, stop):
            item = batch.items[index]
            chosen.append(item._replace(start=item.start + begin - first, rows=end - begin))
            of_item.append(index)
        arrays, unreadable = self._gather(layout, chosen)
        return arrays, {of_item[index]: reason for index, reason in unreadable.items()}

    def _scatter_all(
        self, number: int, items: list[m.RunItem], result: Answered
    ) -> Signature | None:
        """All rows were answered at once; returns what as, or `None` if some needed a segment."""
        plan = plan_of(result.signature)
        targets: list[Target] = []
        of_item: list[int] = []
        first = 0
        for index, item in enumerate(items):
            own = row_by_row(Target(item, item.start, first, item.rows), plan)
            targets += own
            of_item += [index] * len(own)
            first += item.rows
        placed = self._device.scatter(targets, result.signature, result.arrays)
        if all(place is IN_SLOT for place in placed):
            return result.signature
        for index, target, place in zip(of_item, targets, placed, strict=True):
            self._part(number, index, target, result.signature, place)
        return None

    def _scatter_part(
        self,
        number: int,
        batch: Rows,
        outcome: Outcome,
        unreadable: dict[int, str],
        late: dict[int, str],
    ) -> None:
        """What became of some rows of the batch, item by item."""
        for index, first, begin, end in batch.among(outcome.start, outcome.start + outcome.rows):
            item = batch.items[index]
            start = item.start + begin - first
            if index in unreadable:
                continue
            if isinstance(outcome, Raised):
                self._failed(number, index, start, end - begin, outcome.error)
                continue
            if index in late:
                error = InputError(f"the input cannot be read: {late[index]}")
                self._failed(number, index, start, end - begin, error)
                continue
            whole = Target(item, start, begin - outcome.start, end - begin)
            targets = row_by_row(whole, plan_of(outcome.signature))
            placed = self._device.scatter(targets, outcome.signature, outcome.arrays)
            for target, place in zip(targets, placed, strict=True):
                self._part(number, index, target, outcome.signature, place)

    def _part(
        self, number: int, index: int, target: Target, signature: Signature, place: Placed
    ) -> None:
        if place.missing is not None:
            self._failed(number, index, target.start, target.rows, place.missing)
            return
        elsewhere = place.descriptor >= 0

        def encode(layout: int) -> bytes:
            where = (target.start, target.rows, layout, elsewhere, place.size)
            return wire.encode(m.ItemPart(number, index, *where))

        self._worker.send_of(signature, encode, place.descriptor)
        if elsewhere:
            os.close(place.descriptor)

    def _failed(
        self, number: int, index: int, start: int, count: int, error: BaseException
    ) -> None:
        record = m.ItemFailed(number, index, start, count, *describe(error))
        self._worker.send(wire.encode(record))


def describe(error: BaseException) -> tuple[int, str]:
    """An error as a message tells it: kind, text and, behind a nul character, the traceback."""
    if isinstance(error, NoRoom):
        return error.kind, str(error)
    if isinstance(error, InputError):
        return Kind.INPUT, str(error)
    if isinstance(error, ModelError):
        return Kind.MODEL, str(error)
    if isinstance(error, DeviceMemoryError):
        return Kind.DEVICE_MEMORY, str(error)
    last = "".join(traceback.format_exception_only(error)).replace("\0", "")
    full = _way_to(error) + last if _by_itself(error) else _in_full(error)
    return Kind.MODEL, f"{last.strip()[:_TEXT]}\0{full[-_TEXT:]}"


def _by_itself(error: BaseException) -> bool:
    """Whether no other error needs to be told with it."""
    shown = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return shown is None and not isinstance(error, BaseExceptionGroup)


def _in_full(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).replace("\0", "")


def _way_to(error: BaseException) -> str:
    """Its traceback, without the error. Of many rows that raise at one place it is made once:
    it takes far longer than a row."""
    places: list[tuple[str, str, int, int]] = []
    at = error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        places.append((code.co_filename, code.co_name, at.tb_lineno, at.tb_lasti))
        at = at.tb_next
    key = tuple(places)
    way = _ways.get(key)
    if way is None:
        way = "Traceback (most recent call last):\n" if places else ""
        way += "".join(traceback.format_tb(error.__traceback__)).replace("\0", "")
        if len(_ways) >= _MOST_WAYS:
            _ways.clear()
        _ways[key] = way
    return way
