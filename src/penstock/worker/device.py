"""The three stages of a batch on a device: gather, run, scatter.

*Gather* brings the rows of a batch from the clients' slots together and repeats the first one up to
the size that the model runs at, *run* calls the model on them and drops what it says of the rest,
*scatter* writes each row's answer into its client's slot, or into a segment of its own when it does
not fit there. `CpuDevice` does so with ordinary copies. What the clients' memory holds may change
while it is read: shapes and dtypes come from messages, so at worst an answer is wrong that its own
client has spoilt.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from typing import Any, NamedTuple, Protocol

import numpy as np

from penstock.model.function import Runnable
from penstock.spec import Signature
from penstock.transport import segment
from penstock.transport.messages import RunItem
from penstock.transport.tensors import (
    Array,
    BadBlock,
    Plan,
    align,
    answer_room,
    empty_aligned,
    plan_of,
    structure,
)
from penstock.worker.memory import MappedSegments
from penstock.worker.room import NoRoom

_KEPT_BUFFERS = 32
_KEPT_BYTES = 256 << 20  # of those that are not in use

Buffers = list[tuple[Array, memoryview]]  # for each tensor of fixed size, with its bytes


class RunLayout(NamedTuple):
    """What a batch's rows are, and the model that runs them."""

    model: int
    runnable: Runnable
    signature: Signature
    plan: Plan
    alone: threading.Lock | None = None  # held by the one batch of the model that may be run


class Target(NamedTuple):
    """`rows` rows of the outputs, from `first` on, are the answer to rows `start`… of the item."""

    item: RunItem
    start: int
    first: int
    rows: int


class Placed(NamedTuple):
    """Where an answer was put: in the slot (`size` 0, no descriptor), in a new segment, or nowhere,
    as there is no room."""

    size: int
    descriptor: int
    missing: NoRoom | None = None


IN_SLOT = Placed(0, -1)


class Device(Protocol):
    """What a worker's hand needs of a device. One batch at a time passes through the stages."""

    def gather(self, layout: RunLayout, items: list[RunItem]) -> tuple[list[Any], dict[int, str]]:
        """The batch's rows, in order; and the items that could not be read, with the reason.

        Unreadable items have rows all the same (of whatever was there): they are not answered. The
        arrays are as long as the size that the model runs at; rows that are missing are padded.
        """

    def run(self, layout: RunLayout, arrays: list[Any], rows: int) -> tuple[Signature, list[Array]]:
        """Run the model on what was gathered; the outputs of the first `rows` rows."""

    def scatter(
        self, targets: list[Target], signature: Signature, arrays: list[Array]
    ) -> list[Placed]:
        """Put the outputs where the items' clients find them; says where, target by target."""


class CpuDevice:
    """A device that is the machine's own memory and cores."""

    def __init__(self, memory: MappedSegments) -> None:
        self._memory = memory
        self._buffers: OrderedDict[Signature, Buffers] = OrderedDict()  # the last one is in use

    def gather(self, layout: RunLayout, items: list[RunItem]) -> tuple[list[Any], dict[int, str]]:
        """Copy every item's rows into a buffer that the worker keeps for this signature."""
        rows = sum(item.rows for item in items)
        plan = layout.plan
        if plan.strings:
            return self._gather_strings(layout, items)
        size = layout.runnable.padded(rows)
        buffers = self._buffers_for(layout, size)
        view_of = self._memory.view
        unreadable: dict[int, str] = {}
        done = 0
        for number, item in enumerate(items):
            view = view_of(item.client, item.segment)
            try:
                if item.series:
                    _gather_series(plan, item, view, buffers, done)
                else:
                    _gather_rows(plan, item, view, buffers, done)
            except (ValueError, TypeError):
                unreadable[number] = "its memory could not be mapped"
            done += item.rows
        if size > rows:
            for array, _ in buffers:
                array[rows:size] = array[:1]
        return [array[:size] for array, _ in buffers], unreadable

    def run(self, layout: RunLayout, arrays: list[Any], rows: int) -> tuple[Signature, list[Array]]:
        """Call the function with the rows as it expects them."""
        size = len(arrays[0])
        signature, outputs = layout.runnable(structure(layout.signature, arrays), size)
        return signature, outputs if size == rows else [output[:rows] for output in outputs]

    def scatter(
        self, targets: list[Target], signature: Signature, arrays: list[Array]
    ) -> list[Placed]:
        """Write into the part of each slot that is meant for these rows, if they fit."""
        plan = plan_of(signature)
        if plan.single:
            return self._scatter_single(targets, plan, arrays)
        placed: list[Placed] = []
        for item, start, first, rows in targets:
            begin, end = _room(item, start, rows)
            size = plan.size(arrays, first, first + rows)
            if begin + size > end:
                placed.append(self._scatter_apart(plan, arrays, first, rows, max(size, 1)))
                continue
            view = self._memory.view(item.client, item.segment)
            try:
                plan.write(view, begin, arrays, first, first + rows)
            except MemoryError as error:  # strings are joined before
                placed.append(_nowhere(size, error))
            else:
                placed.append(IN_SLOT)
        return placed

    def _scatter_single(
        self, targets: list[Target], plan: Plan, arrays: list[Array]
    ) -> list[Placed]:
        """One tensor of a fixed size: slots at equal distances are written by one copy.

        That copy is numpy's, which lets the worker's other hands go on meanwhile.
        """
        each = plan.row_bytes
        answers = _bytes_of(arrays[0])
        placed: list[Placed] = []
        run_item: RunItem | None = None  # the first of those that are written together
        run_begin = run_first = distance = run_rows = 0
        for item, start, first, rows in targets:
            begin, end = _room(item, start, rows)
            size = plan.fixed_bytes(rows)
            if item.series and rows > 1:  # it fits: see `row_by_row`
                self._write(item, begin, item.length, answers, first, rows, each)
                placed.append(IN_SLOT)
                continue
            if begin + size > end:
                placed.append(self._scatter_apart(plan, arrays, first, rows, max(size, 1)))
                continue
            placed.append(IN_SLOT)
            if (
                run_item is not None
                and rows == 1
                and item.segment == run_item.segment
                and item.client == run_item.client
                and first == run_first + run_rows
                and (
                    begin == run_begin + run_rows * distance
                    if run_rows > 1
                    else begin >= run_begin + each
                )
            ):
                if run_rows == 1:
                    distance = begin - run_begin
                run_rows += 1
                continue
            if run_item is not None:
                self._write(run_item, run_begin, distance, answers, run_first, run_rows, each)
                run_item = None
            if rows == 1:
                run_item, run_begin, run_first, run_rows = item, begin, first, 1
            else:
                view = self._memory.view(item.client, item.segment)
                view[begin : begin + rows * each] = answers[first * each : (first + rows) * each]
        if run_item is not None:
            self._write(run_item, run_begin, distance, answers, run_first, run_rows, each)
        return placed

    def _write(
        self,
        item: RunItem,
        begin: int,
        distance: int,
        answers: memoryview,
        first: int,
        rows: int,
        each: int,
    ) -> None:
        """Answers, one after the other, to slots from that of `item` on."""
        view = self._memory.view(item.client, item.segment)
        source = answers[first * each : (first + rows) * each]
        if rows == 1 or not each:
            view[begin : begin + each] = source
            return
        _bytes_at(view, begin, rows, each, distance)[...] = _bytes_at(source, 0, rows, each, each)

    def _scatter_apart(
        self, plan: Plan, arrays: list[Array], first: int, rows: int, size: int
    ) -> Placed:
        try:
            descriptor = segment.create(size)
        except OSError as error:
            return _nowhere(size, error)
        try:
            with contextlib.closing(segment.Mapping(descriptor, size)) as mapping:
                plan.write(mapping.view, 0, arrays, first, first + rows)
        except (OSError, MemoryError) as error:
            os.close(descriptor)
            return _nowhere(size, error)
        return Placed(size, descriptor)

    def _buffers_for(self, layout: RunLayout, size: int) -> Buffers:
        kept = self._buffers.get(layout.signature)
        if kept is not None and len(kept[0][0]) >= size:
            self._buffers.move_to_end(layout.signature)
            return kept
        capacity = size if not layout.runnable.batched else min(layout.runnable.max_batch, size * 2)
        buffers: Buffers = []
        for _, dtype, shape, _ in layout.plan.fixed:
            array = empty_aligned((max(capacity, size), *shape), dtype)
            buffers.append((array, _bytes_of(array)))
        self._buffers[layout.signature] = buffers
        self._buffers.move_to_end(layout.signature)
        self._let_go()
        return buffers

    def _let_go(self) -> None:
        """Of buffers that were not used for the longest time, as far as there are too many."""
        unused = sum(map(_size, self._buffers.values())) - _size(
            next(reversed(self._buffers.values()))
        )
        while len(self._buffers) > 1 and (
            len(self._buffers) > _KEPT_BUFFERS or unused > _KEPT_BYTES
        ):
            _, oldest = self._buffers.popitem(last=False)
            unused -= _size(oldest)

    def _gather_strings(
        self, layout: RunLayout, items: list[RunItem]
    ) -> tuple[list[Array], dict[int, str]]:
        parts: list[list[Array]] = []
        unreadable: dict[int, str] = {}
        for number, item in enumerate(items):
            view = self._memory.view(item.client, item.segment)
            end = item.offset + item.input_bytes
            try:
                parts.append(
                    layout.plan.read(
                        view, item.offset, end, item.total, item.start, item.start + item.rows
                    )
                )
            except (BadBlock, TypeError) as error:
                unreadable[number] = str(error)
                parts.append(_blank(layout.plan, item.rows))
        rows = sum(item.rows for item in items)
        missing = layout.runnable.padded(rows) - rows
        if missing:
            parts.append([np.repeat(array[:1], missing, axis=0) for array in _first(parts)])
        return [_joined(list(arrays)) for arrays in zip(*parts, strict=True)], unreadable


def _size(buffers: Buffers) -> int:
    return sum(array.nbytes for array, _ in buffers)


def _nowhere(size: int, error: OSError | MemoryError) -> Placed:
    return Placed(0, -1, NoRoom(f"an answer of {size} bytes", error))


def row_by_row(target: Target, plan: Plan) -> list[Target]:
    """The target; but each row for itself where it is a series' and the answers may not fit."""
    item = target.item
    fits = plan.single and plan.fixed_bytes(1) <= item.length - align(item.input_bytes)
    if not item.series or fits:
        return [target]
    return [Target(item, target.start + n, target.first + n, 1) for n in range(target.rows)]


def _room(item: RunItem, start: int, rows: int) -> tuple[int, int]:
    """Where the answer of these rows may lie; of a series, that of the first of them."""
    if item.series:
        offset = item.offset + start * item.length
        return answer_room(offset, item.length, item.input_bytes, 1, 0, 1)
    return answer_room(item.offset, item.length, item.input_bytes, item.total, start, rows)


def _gather_rows(plan: Plan, item: RunItem, view: memoryview, buffers: Buffers, done: int) -> None:
    """The rows of one slot, to those from `done` on."""
    at = item.offset
    for (_, _, _, each), (_, target) in zip(plan.fixed, buffers, strict=True):
        begin = at + item.start * each
        length = item.rows * each
        target[done * each : done * each + length] = view[begin : begin + length]
        at += align(item.total * each)


def _gather_series(
    plan: Plan, item: RunItem, view: memoryview, buffers: Buffers, done: int
) -> None:
    """One row of each of several slots at equal distances."""
    at = item.offset + item.start * item.length
    rows = item.rows
    for (_, _, _, each), (_, target) in zip(plan.fixed, buffers, strict=True):
        if each:
            source = _bytes_at(view, at, rows, each, item.length)
            _bytes_at(target, done * each, rows, each, each)[...] = source
        at += align(each)


def _bytes_at(view: memoryview, at: int, rows: int, each: int, distance: int) -> Array:
    """Rows of `each` bytes, so far from each other."""
    return np.ndarray((rows, each), np.uint8, view, at, (distance, 1))


def _first(parts: list[list[Array]]) -> list[Array]:
    """The first item that has rows."""
    return next(arrays for arrays in parts if len(arrays[0]))


def _joined(arrays: list[Array]) -> Array:
    """One after the other, where a device likes it."""
    dtype = arrays[0].dtype
    if dtype.kind == "O":
        return np.concatenate(arrays)
    shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
    return np.concatenate(arrays, out=empty_aligned(shape, dtype))


def _bytes_of(array: Array) -> memoryview:
    """A contiguous array's bytes."""
    if array.size == 0:
        return memoryview(bytearray())
    return array.reshape(-1).view(np.uint8).data


def _blank(plan: Plan, rows: int) -> list[Array]:
    blank: list[Any] = [None] * len(plan.signature)
    for index, dtype, shape, _ in plan.fixed:
        blank[index] = np.zeros((rows, *shape), dtype)
    for index, shape, _ in plan.strings:
        empty: Array = np.empty((rows, *shape), object)
        empty[...] = b""
        blank[index] = empty
    return blank
