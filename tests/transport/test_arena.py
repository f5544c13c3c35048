"""Slots: never two on the same bytes, never more memory than allowed, little of it wasted."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from penstock.transport.arena import SMALLEST, Arena, Slot, SlotState, TooLarge, size_class


@given(st.integers(0, 1 << 40))
def test_a_class_holds_its_size_and_wastes_a_quarter_at_most(size: int) -> None:
    got = size_class(size)
    assert got >= size
    assert got == SMALLEST or got <= max(size * 1.25, size + 64)
    assert got % 64 == 0
    assert size_class(got) == got


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 20))
def test_classes_rise_with_their_size(size: int, more: int) -> None:
    assert size_class(size) <= size_class(size + more)


class _Outside:
    """What the arena asks for outside: segments, by number."""

    def __init__(self) -> None:
        self.segments: dict[int, int] = {}
        self.used_numbers: set[int] = set()

    def add(self, number: int, size: int) -> str:
        assert number not in self.used_numbers, "a segment's number was used before"
        self.used_numbers.add(number)
        self.segments[number] = size
        return f"memory {number}"

    def drop(self, number: int, memory: str) -> None:
        assert memory == f"memory {number}"
        del self.segments[number]


class ArenaMachine(RuleBasedStateMachine):
    """Leases, submits and frees in every order, against what is known to be leased."""

    slots = Bundle("slots")

    def __init__(self) -> None:
        super().__init__()
        self.outside = _Outside()
        self.limit = 6 << 20
        self.arena: Arena[str] = Arena(self.limit, self.outside.add, self.outside.drop)
        self.leased: dict[int, Slot[str]] = {}
        self.sizes: dict[int, int] = {}

    @rule(target=slots, size=st.integers(0, 3 << 20) | st.integers(0, 5_000), submit=st.booleans())
    def lease(self, size: int, submit: bool) -> Slot[str] | None:
        if self.arena.abandoned:
            return None
        slot = self.arena.lease(size)
        if slot is None:
            used = sum(other.size for other in self.leased.values())
            free = self.limit - used
            # Refused only while others hold memory; segments of one slot or wholly in use
            # cannot be cut anew, so at worst each holds back what is left of it.
            assert self.leased
            assert free < self.limit
            return None
        assert slot.size >= size
        assert slot.size <= max(SMALLEST, size * 1.25, size + 64)
        assert slot.offset + slot.size <= self.outside.segments[slot.block.number]
        assert slot.offset % 64 == 0
        for other in self.leased.values():
            assert (
                other.block.number != slot.block.number
                or other.offset + other.size <= slot.offset
                or slot.offset + slot.size <= other.offset
            ), "two leased slots share bytes"
        if submit:
            slot.submit()
        self.leased[id(slot)] = slot
        return slot

    @rule(slot=consumes(slots))
    def free(self, slot: Slot[str] | None) -> None:
        if slot is None:
            return
        self.arena.free(slot)
        self.leased.pop(id(slot), None)
        assert slot.state in (SlotState.FREE, SlotState.ABANDONED)

    @rule(size=st.integers((6 << 20) + 1, 1 << 34))
    def lease_too_much(self, size: int) -> None:
        if not self.arena.abandoned:
            with pytest.raises(TooLarge):
                self.arena.lease(size)

    @rule(chance=st.integers(0, 19))
    def abandon(self, chance: int) -> None:
        if chance or self.arena.abandoned:
            return
        self.arena.abandon()
        assert all(slot.state is SlotState.ABANDONED for slot in self.leased.values())
        self.outside.segments.clear()
        self.leased.clear()

    @invariant()
    def holds_what_it_says(self) -> None:
        assert self.arena.held == sum(self.outside.segments.values())
        assert self.arena.held <= self.limit

    @invariant()
    def leased_slots_are_in_living_segments(self) -> None:
        for slot in self.leased.values():
            assert slot.block.number in self.outside.segments


TestArena = ArenaMachine.TestCase
TestArena.settings = settings(max_examples=60, stateful_step_count=50)


def _arena(limit: int) -> tuple[Arena[str], _Outside]:
    outside = _Outside()
    return Arena(limit, outside.add, outside.drop), outside


def test_small_slots_share_a_segment() -> None:
    arena, outside = _arena(64 << 20)
    slots = [arena.lease(1_000) for _ in range(100)]
    assert len(outside.segments) == 1
    assert len({slot.offset for slot in slots if slot}) == 100


def test_slots_are_used_again() -> None:
    arena, outside = _arena(64 << 20)
    for _ in range(1_000):
        slot = arena.lease(100_000)
        assert slot is not None
        arena.free(slot)
    assert len(outside.segments) == 1


def test_slots_that_were_freed_in_any_order_are_leased_in_theirs() -> None:
    arena, _ = _arena(64 << 20)
    slots = [arena.lease(100_000) for _ in range(40)]
    first = [slot.offset for slot in slots if slot and slot.block.number == 1]
    assert first == sorted(first)
    for at in (7, 3, 5, 0, 39, 12, 4):
        slot = slots[at]
        assert slot is not None
        arena.free(slot)
    for at in (0, 3, 4, 5, 7, 12, 39):
        assert arena.lease(100_000) is slots[at]


def test_segments_of_other_sizes_are_given_back_when_they_are_free() -> None:
    arena, outside = _arena(4 << 20)
    small = [arena.lease(500_000) for _ in range(8)]
    assert all(small)
    assert arena.lease(3 << 20) is None
    for slot in small:
        assert slot is not None
        arena.free(slot)
    large = arena.lease(3 << 20)
    assert large is not None
    assert outside.segments[large.block.number] == 3 << 20
    assert arena.held <= 4 << 20


def test_a_segment_with_a_slot_in_use_is_not_given_back() -> None:
    arena, outside = _arena(2 << 20)
    kept = arena.lease(700)
    assert kept is not None
    assert arena.lease(2 << 20) is None
    assert kept.block.number in outside.segments
    arena.free(kept)
    assert arena.lease(2 << 20) is not None
    assert kept.block.number not in outside.segments


def test_a_slot_that_was_given_back_does_not_come_again() -> None:
    arena, _ = _arena(2 << 20)
    old = arena.lease(700)
    assert old is not None
    arena.free(old)
    large = arena.lease(2 << 20)
    assert large is not None
    assert old.state is SlotState.ABANDONED
    arena.free(large)
    again = arena.lease(700)
    assert again is not None
    assert again is not old
    assert again.block.number != old.block.number


def test_the_whole_limit_can_be_one_slot() -> None:
    arena, _ = _arena(1 << 20)
    assert arena.lease(1 << 20) is not None
    with pytest.raises(TooLarge):
        arena.lease((1 << 20) + 1)


def test_segments_grow_with_their_number_but_not_without_bound() -> None:
    arena, outside = _arena(1 << 30)
    while arena.held < 400 << 20:
        assert arena.lease(60_000) is not None
    sizes = list(outside.segments.values())
    assert sizes == sorted(sizes)
    assert sizes[-1] > 32 << 20
    assert max(sizes) <= 64 << 20


@pytest.mark.parametrize("size", [150_528, 600_000, 1 << 20])
def test_a_few_requests_at_a_time_lie_next_to_each_other(size: int) -> None:
    arena, outside = _arena(64 << 20)
    slots = [arena.lease(size) for _ in range(8)]
    assert len(outside.segments) == 1
    places = [slot.place for slot in slots if slot]
    assert {later - earlier for earlier, later in itertools.pairwise(places)} == {size_class(size)}


def test_slots_that_are_large_are_made_one_by_one() -> None:
    arena, outside = _arena(64 << 20)
    assert arena.lease(3 << 20)
    assert list(outside.segments.values()) == [3 << 20]


def test_a_slot_changes_hands_only_by_its_verbs() -> None:
    arena, _ = _arena(1 << 20)
    slot = arena.lease(10)
    assert slot is not None
    with pytest.raises(AssertionError):
        slot.lease()
    slot.submit()
    with pytest.raises(AssertionError):
        slot.submit()
    arena.free(slot)
    with pytest.raises(AssertionError):
        arena.free(slot)


def test_a_segment_that_cannot_be_made_changes_nothing() -> None:
    outside = _Outside()

    def fail(number: int, size: int) -> str:
        raise OSError("no memory")

    arena: Arena[str] = Arena(1 << 20, fail, outside.drop)
    with pytest.raises(OSError, match="no memory"):
        arena.lease(100)
    assert arena.held == 0
