"""How a client cuts its segments into slots.

A slot holds one request's input and the room for its answer. Sizes are rounded up to classes (four
to a doubling, so at most a quarter is wasted); each segment holds slots of one class, and segments
are added as they are needed, each with more slots than the last, up to the client's limit. At the
limit, segments of other classes that are wholly free are given back first.

Of the free slots the lowest is leased. So the same few stay in use and warm, and requests that are
made one after another lie one after another: a GPU's copy engine takes them in one go, however many
were freed at once and in whichever order.

A slot's life::

    FREE ──lease──▶ LEASED ──submit──▶ SUBMITTED ──free──▶ FREE
                      └──────────────free────────────────────▲
    any of them ──abandon──▶ ABANDONED   (the engine is gone: never used again)

Pure bookkeeping: `add_segment` and `drop_segment` do what must be done outside. Not thread-safe;
the session holds its lock around every call.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

SMALLEST = 512
_SEGMENT_BYTES = 1 << 20
_FEW = 8  # slots, unless one alone is larger than that: requests that lie side by side cost less
_MOST_SEGMENT_BYTES = 64 << 20

Memory = TypeVar("Memory")


class SlotState(enum.Enum):
    """Who a slot belongs to."""

    FREE = "nobody"
    LEASED = "the caller"
    SUBMITTED = "the engine"
    ABANDONED = "nobody, for good"


_FREE, _LEASED, _SUBMITTED = SlotState.FREE, SlotState.LEASED, SlotState.SUBMITTED


class Slot(Generic[Memory]):
    """A piece of a segment. Changes hands only by its three verbs."""

    __slots__ = ("block", "offset", "place", "size", "state")

    def __init__(self, block: Block[Memory], offset: int, size: int) -> None:
        self.block = block
        self.offset = offset
        self.place = (block.number << 48) + offset  # in the order of all slots
        self.size = size
        self.state = _FREE

    def lease(self) -> None:
        """The caller may write."""
        assert self.state is _FREE, f"leased while it belongs to {self.state.value}"
        self.state = _LEASED

    def submit(self) -> None:
        """From now on the engine's, until the request's terminal message."""
        assert self.state is _LEASED, f"sent while it belongs to {self.state.value}"
        self.state = _SUBMITTED


class Block(Generic[Memory]):
    """One segment: its number, its memory, and its slots."""

    def __init__(self, number: int, memory: Memory, size: int, slot_size: int) -> None:
        self.number = number
        self.memory = memory
        self.size = size
        self.slot_size = slot_size
        self.slots = [Slot(self, at, slot_size) for at in range(0, size, slot_size)]
        self.free = len(self.slots)


class TooLarge(Exception):
    """One slot alone would be larger than all the memory that the client may hold."""


def size_class(size: int) -> int:
    """The smallest slot size that holds `size` bytes: four classes to each doubling."""
    if size <= SMALLEST:
        return SMALLEST
    step = 1 << max((size - 1).bit_length() - 3, 6)
    return -(-size // step) * step


class Arena(Generic[Memory]):
    """Leases slots out of segments, within `limit` bytes."""

    def __init__(
        self,
        limit: int,
        add_segment: Callable[[int, int], Memory],
        drop_segment: Callable[[int, Memory], None],
    ) -> None:
        self.limit = limit
        self.held = 0
        self._add_segment = add_segment
        self._drop_segment = drop_segment
        self._blocks: dict[int, Block[Memory]] = {}
        self._free: dict[int, list[tuple[int, Slot[Memory]]]] = {}  # heaps, by size
        self._numbers = iter(range(1, 1 << 32))
        self.abandoned = False

    def lease(self, size: int) -> Slot[Memory] | None:
        """A slot of at least `size` bytes, or `None` while everything is in use."""
        assert not self.abandoned
        free = self._free.get(size)
        if not free:
            slot_size = size_class(size)
            if slot_size > self.limit:
                raise TooLarge
            free = self._free.get(slot_size) or self._grow(slot_size)
            if not free:
                return None
        slot = heapq.heappop(free)[1]
        slot.lease()
        slot.block.free -= 1
        return slot

    def free(self, slot: Slot[Memory]) -> None:
        """A slot comes back: unused (leased), or with its request ended (submitted)."""
        state = slot.state
        if state is not _SUBMITTED and state is not _LEASED:
            assert state is SlotState.ABANDONED, state
            return
        slot.state = _FREE
        slot.block.free += 1
        heapq.heappush(self._free[slot.size], (slot.place, slot))

    def abandon(self) -> None:
        """The engine is gone: no slot is used again.

        The memory is only let go of: a caller may just now be writing to a slot it has leased.
        """
        self.abandoned = True
        for block in self._blocks.values():
            for slot in block.slots:
                slot.state = SlotState.ABANDONED
            block.slots = []  # slots and blocks point to each other: do not wait for a collection
        self._blocks.clear()
        self._free.clear()
        self.held = 0

    def _grow(self, slot_size: int) -> list[tuple[int, Slot[Memory]]]:
        same = sum(len(b.slots) for b in self._blocks.values() if b.slot_size == slot_size)
        fewest = _FEW if slot_size <= _SEGMENT_BYTES else 1
        wanted = max(_SEGMENT_BYTES // slot_size, same, fewest)
        wanted = min(wanted, max(_MOST_SEGMENT_BYTES // slot_size, 1))
        if self.held + wanted * slot_size > self.limit:
            self._give_back(wanted * slot_size, slot_size)
        wanted = min(wanted, (self.limit - self.held) // slot_size)
        if wanted < 1:
            return []
        size = wanted * slot_size
        number = next(self._numbers)
        block = Block(number, self._add_segment(number, size), size, slot_size)
        self._blocks[number] = block
        self.held += size
        free = self._free.setdefault(slot_size, [])
        free.extend((slot.place, slot) for slot in block.slots)  # the highest number: still a heap
        return free

    def _give_back(self, room: int, slot_size: int) -> None:
        for block in list(self._blocks.values()):
            if self.held + room <= self.limit:
                return
            if block.free == len(block.slots) and block.slot_size != slot_size:
                left = [
                    entry for entry in self._free[block.slot_size] if entry[1].block is not block
                ]
                heapq.heapify(left)
                self._free[block.slot_size] = left
                for slot in block.slots:
                    slot.state = SlotState.ABANDONED
                del self._blocks[block.number]
                self.held -= block.size
                self._drop_segment(block.number, block.memory)
