"""A client's memory as a worker sees it: real segments, with requests written into slots."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from penstock.spec import ModelSpec, Signature
from penstock.transport import segment
from penstock.transport.messages import RunItem
from penstock.transport.tensors import align, answer_room, collect, plan_of
from penstock.worker.device import Placed


class ClientMemory:
    """One client's segment, cut into slots one after the other."""

    def __init__(self, client: int = 1, number: int = 1, size: int = 1 << 20) -> None:
        self.client = client
        self.number = number
        self.size = size
        self.descriptor = segment.create(size)
        self.mapping = segment.Mapping(self.descriptor, size)
        self._end = 0

    def write(self, x: Any, room: int = 4096) -> tuple[Signature, RunItem]:
        """A request with these rows, and that much room for its answer."""
        signature, arrays, rows = collect(x, ModelSpec())
        plan = plan_of(signature)
        input_bytes = plan.size(arrays, 0, rows)
        offset = self._end
        length = align(input_bytes) + room
        self._end = align(offset + length)
        assert self._end <= self.size
        plan.write(self.mapping.view, offset, arrays, 0, rows)
        item = RunItem(self.client, self.number, offset, length, input_bytes, rows, 0, rows)
        return signature, item

    def series(self, rows: list[Any], room: int = 4096) -> tuple[Signature, RunItem, list[RunItem]]:
        """Requests of one row each as a series, and as the items that each would be by itself."""
        written = [self.write(row, room) for row in rows]
        alone = [item for _, item in written]
        first = alone[0]
        places = [first.offset + number * first.length for number in range(len(rows))]
        assert [item.offset for item in alone] == places
        return written[0][0], first._replace(total=len(rows), rows=len(rows), series=1), alone

    def read(self, item: RunItem, signature: Signature, start: int, rows: int) -> list[Any]:
        """The answer of these rows, from the slot."""
        begin, end = answer_room(
            item.offset, item.length, item.input_bytes, item.total, start, rows
        )
        return plan_of(signature).read(self.mapping.view, begin, end, rows, 0, rows)

    def close(self) -> None:
        """Let go of it."""
        self.mapping.close()
        os.close(self.descriptor)


def read_apart(placed: Placed, signature: Signature, rows: int) -> list[np.ndarray[Any, Any]]:
    """The answer of so many rows, from a segment of its own, which is closed."""
    segment.verify(placed.descriptor, placed.size)
    mapping = segment.Mapping(placed.descriptor, placed.size)
    os.close(placed.descriptor)
    try:
        return plan_of(signature).read(mapping.view, 0, placed.size, rows, 0, rows)
    finally:
        mapping.close()
