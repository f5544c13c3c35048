"""A GPU's stages: rows are gathered by its copy engine, straight from the clients' memory.

Rows of a batch go into a buffer on the device, which TensorFlow sees through DLPack: no byte passes
through the CPU if its segment is pinned (`pinning`). Neighbouring slots of one client are copied by
one call. The copies are done before the model is called, and the answers are back on the host when
the call returns (`model.modes`), so nothing here depends on the order of TensorFlow's streams. The
buffers belong to one hand (`loop`): they are filled again only after its batch was answered.

What TensorFlow keeps on the host in any case goes the way of the CPU's device: strings, 32-bit
integers, and everything for a model that is not TensorFlow's. So does a batch for whose buffer the
card, or this worker's share of it, has no memory left.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.errors import DeviceMemoryError
from penstock.model.function import Runnable
from penstock.model.pace import HANDS
from penstock.spec import Signature
from penstock.transport.messages import RunItem
from penstock.transport.tensors import ALIGNMENT, align
from penstock.worker.cuda import Cuda
from penstock.worker.device import CpuDevice, Device, RunLayout
from penstock.worker.memory import MappedSegments
from penstock.worker.pinning import PinnedSegments

_log = logging.getLogger(__name__)
_WORTH_JOINING = 3  # rows; describing a joined copy takes as long as two single ones
_KINDS = 4  # of rows that have buffers, for each model
_FARTHEST = (1 << 31) - 1  # bytes between the rows of a joined copy: CUDA takes no more


class Buffer(NamedTuple):
    """Device memory for one input of a batch, and the tensors that lie in it, by size."""

    pointer: int
    capacity: int  # rows
    row_bytes: int
    tensors: dict[int, Any]


class GpuDevice(CpuDevice):
    """One hand's part of the GPU that this worker has.

    At most `most` kinds of rows have buffers at a time, of `room` bytes in all (0: any).
    """

    def __init__(
        self, memory: MappedSegments, cuda: Cuda, most: int = _KINDS, room: int = 0
    ) -> None:
        super().__init__(memory)
        self._cuda = cuda
        self._most = most
        self._room = room
        self._stream = cuda.stream()
        self._resident: OrderedDict[Signature, list[Buffer]] = OrderedDict()
        self._too_large: dict[Signature, int] = {}  # rows for which there was no memory

    def gather(self, layout: RunLayout, items: list[RunItem]) -> tuple[list[Any], dict[int, str]]:
        """Let the copy engine bring the rows together; returns when they are all there."""
        rows = sum(item.rows for item in items)
        if rows == 0 or not resident(layout):
            return super().gather(layout, items)
        size = layout.runnable.padded(rows)
        if size < self._too_large.get(layout.signature, size + 1):
            try:
                return self._gather_there(layout, items, rows, size)
            except DeviceMemoryError as error:
                _log.warning("batches of %d rows and more pass through the CPU: %s", size, error)
                self._too_large[layout.signature] = size
        return super().gather(layout, items)

    def _gather_there(
        self, layout: RunLayout, items: list[RunItem], rows: int, size: int
    ) -> tuple[list[Any], dict[int, str]]:
        self._cuda.enter()
        buffers = self._resident_for(layout, size)
        unreadable: dict[int, str] = {}
        try:
            for number, buffer in enumerate(buffers):
                self._upload(layout, items, number, buffer, unreadable)
                self._repeat_first(buffer, rows, size)
        finally:
            # Also when a copy could not be begun: those that were still read the clients' memory.
            self._cuda.wait(self._stream)
        return [
            self._tensor(layout, n, buffer, size) for n, buffer in enumerate(buffers)
        ], unreadable

    def _upload(
        self,
        layout: RunLayout,
        items: list[RunItem],
        number: int,
        buffer: Buffer,
        unreadable: dict[int, str],
    ) -> None:
        """One input of every item; runs of single rows at equal distances by one copy."""
        each = buffer.row_bytes
        before = [row_bytes for *_, row_bytes in layout.plan.fixed[:number]]
        target = buffer.pointer
        address_of = self._memory.address
        run_source = run_target = run_pitch = run_rows = 0
        last = -1
        for index, item in enumerate(items):
            address = address_of(item.client, item.segment)
            length = item.rows * each
            if not address:
                unreadable[index] = "its memory could not be mapped"
                target += length
                last = -1  # what comes after this gap is joined to nothing before it
                continue
            at = item.offset + item.start * (item.length if item.series else each)
            for row_bytes in before:
                at += align(row_bytes if item.series else item.total * row_bytes)
            source = address + at
            segment = item.client << 32 | item.segment
            apart = item.rows == 1 or item.series  # each row lies in a slot of its own
            if apart and segment == last and run_rows:
                pitch = source - run_source - (run_rows - 1) * run_pitch
                fits = pitch == run_pitch if run_rows > 1 else each <= pitch <= _FARTHEST
                if fits and (item.rows == 1 or pitch == item.length):
                    run_pitch = pitch
                    run_rows += item.rows
                    target += length
                    continue
            if run_rows:
                self._copy_run(run_target, run_source, run_pitch, each, run_rows)
                run_rows = 0
            if apart:
                run_source, run_target, run_pitch = source, target, item.length
                run_rows, last = item.rows, segment
            elif length:
                self._cuda.upload(target, source, length, self._stream)
            target += length
        if run_rows:
            self._copy_run(run_target, run_source, run_pitch, each, run_rows)

    def _copy_run(self, target: int, source: int, pitch: int, each: int, rows: int) -> None:
        if rows >= _WORTH_JOINING:
            self._cuda.upload_rows(target, source, pitch, each, rows, self._stream)
            return
        for row in range(rows):
            self._cuda.upload(target + row * each, source + row * pitch, each, self._stream)

    def _repeat_first(self, buffer: Buffer, rows: int, size: int) -> None:
        """Fill up to `size` with the first row, doubling what there is of it."""
        each, begin = buffer.row_bytes, buffer.pointer + rows * buffer.row_bytes
        done, missing = 0, size - rows
        while done < missing:
            count = min(max(done, 1), missing - done)
            source = begin if done else buffer.pointer
            self._cuda.duplicate(begin + done * each, source, count * each, self._stream)
            done += count

    def _resident_for(self, layout: RunLayout, size: int) -> list[Buffer]:
        kept = self._resident.get(layout.signature)
        if kept is not None and kept[0].capacity >= size:
            self._resident.move_to_end(layout.signature)
            return kept
        each_row = sum(max(each, 1) for *_, each in layout.plan.fixed)
        if self._room and size * each_row > self._room:
            raise DeviceMemoryError(
                f"{size * each_row} bytes; a hand has {self._room} of its worker's share"
            )
        if kept is not None:
            self._free(self._resident.pop(layout.signature))
        capacity = max(size, min(layout.runnable.max_batch, 2 * size))
        if self._room:
            capacity = max(size, min(capacity, self._room // each_row))
        while self._resident and not self._has_room(capacity * each_row):
            self._free(self._resident.popitem(last=False)[1])
        buffers: list[Buffer] = []
        try:
            for *_, each in layout.plan.fixed:
                pointer = self._cuda.allocate(max(capacity * each, ALIGNMENT))
                buffers.append(Buffer(pointer, capacity, each, {}))
        except DeviceMemoryError:
            self._free(buffers)
            raise
        self._resident[layout.signature] = buffers
        return buffers

    def _has_room(self, wanted: int) -> bool:
        """Whether one more kind of rows may have buffers, of so many bytes."""
        if len(self._resident) >= self._most:
            return False
        kept = (buffer for buffers in self._resident.values() for buffer in buffers)
        held = sum(buffer.capacity * buffer.row_bytes for buffer in kept)
        return not self._room or held + wanted <= self._room

    def _free(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            buffer.tensors.clear()
            self._cuda.free(buffer.pointer)

    def _tensor(self, layout: RunLayout, number: int, buffer: Buffer, size: int) -> Any:
        tensor = buffer.tensors.get(size)
        if tensor is None:
            from penstock.model.handover import on_device

            _, dtype, shape, _ = layout.plan.fixed[number]
            tensor = buffer.tensors[size] = on_device(buffer.pointer, (size, *shape), dtype)
        return tensor


def resident(layout: RunLayout) -> bool:
    """Whether a batch of these rows is gathered on the device."""
    if layout.runnable.device != "GPU" or layout.plan.strings:
        return False
    from penstock.model.handover import stays_on_device

    return all(each > 0 and stays_on_device(dtype) for _, dtype, _, each in layout.plan.fixed)


def _most(runnables: Sequence[Runnable]) -> int:
    """How many kinds of rows have buffers at a time: more for a model that takes several shapes.

    Of all models together: were it less, models that take turns would free each other's.
    """
    shapes = [[tensor.shape for tensor in each.spec.inputs or ()] for each in runnables]
    is_open = [any(None in shape for shape in of_one) for of_one in shapes]
    return sum(2 * _KINDS if several else _KINDS for several in is_open)


def devices_for(
    runnables: Sequence[Runnable], pinned_memory: int, buffers: int = 0
) -> tuple[MappedSegments, list[Device]]:
    """Where a worker with these models keeps clients' memory, and a device for each hand.

    `buffers`: the bytes of the device that batches may be gathered into; 0: any number.
    """
    if all(runnable.device != "GPU" for runnable in runnables):
        memory = MappedSegments()
        return memory, [CpuDevice(memory)]
    try:
        cuda = Cuda()
    except ImportError:
        _log.warning(
            "cuda-bindings is not installed: rows pass through the CPU on their way to the GPU. "
            "pip install 'penstock[gpu]'"
        )
        memory = MappedSegments()
        return memory, [CpuDevice(memory) for _ in range(HANDS)]
    memory = PinnedSegments(cuda, pinned_memory)
    most, room = _most(runnables), buffers // HANDS
    return memory, [GpuDevice(memory, cuda, most, room) for _ in range(HANDS)]
