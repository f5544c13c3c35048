"""Pinned segments: in a thread, within the limit, and never under somebody who uses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.transport import segment
from penstock.worker.pinning import PinnedSegments
from tests.conditions import descriptors, until
from tests.worker.fake_cuda import FakeCuda

SIZE = 1 << 20


def _map(pinned: PinnedSegments, number: int, size: int = SIZE) -> int:
    """A client's new segment is mapped; returns where."""
    pinned.map(1, number, size, segment.create(size))
    return pinned.address(1, number)


def _mapped_here() -> int:
    """How many segments this process has mapped."""
    return Path("/proc/self/maps").read_text().count("memfd:penstock")


def test_pinned_beside_a_loop_that_goes_on() -> None:
    cuda = FakeCuda()
    cuda.may_pin.clear()
    pinned = PinnedSegments(cuda, 1 << 30)
    address = _map(pinned, 1)
    pinned.view(1, 1)[:3] = b"abc"  # usable at once
    assert not cuda.pinned
    cuda.may_pin.set()
    until(lambda: pinned.pinned_bytes == SIZE)
    assert cuda.pinned == {address: SIZE}
    assert bytes(pinned.view(1, 1)[:3]) == b"abc"
    pinned.unmap(1, 1)
    until(lambda: not cuda.pinned)


def test_no_more_than_the_limit() -> None:
    cuda = FakeCuda()
    pinned = PinnedSegments(cuda, 3 * SIZE)
    addresses = [_map(pinned, 1, 2 * SIZE), _map(pinned, 2, 2 * SIZE), _map(pinned, 3)]
    until(lambda: pinned.pinned_bytes == 3 * SIZE)
    assert set(cuda.pinned) == {addresses[0], addresses[2]}
    pinned.view(1, 2)[:3] = b"abc"  # the same, only slower
    for number in (2, 1, 3):
        pinned.unmap(1, number)
    until(lambda: not cuda.pinned)
    latest = _map(pinned, 4, 3 * SIZE)
    until(lambda: cuda.pinned == {latest: 3 * SIZE})
    pinned.unmap(1, 4)
    until(lambda: not cuda.pinned)


def test_what_was_beyond_the_limit_is_pinned_when_others_have_gone() -> None:
    before = descriptors(), _mapped_here()
    cuda = FakeCuda()
    pinned = PinnedSegments(cuda, 3 * SIZE)
    first, *later = (_map(pinned, number, 2 * SIZE) for number in (1, 2, 3, 4))
    until(lambda: cuda.pinned == {first: 2 * SIZE})
    pinned.unmap(1, 2)  # which waits, and goes before it is its turn
    pinned.unmap(1, 1)
    until(lambda: cuda.pinned == {later[1]: 2 * SIZE})
    pinned.unmap(1, 3)
    until(lambda: cuda.pinned == {later[2]: 2 * SIZE})
    pinned.unmap(1, 4)
    until(lambda: (descriptors(), _mapped_here()) == before)
    assert not cuda.pinned


def test_unpinned_in_the_order_of_the_engines_messages_and_only_then_unmapped() -> None:
    """`FakeCuda` touches what it pins and unpins: if that were unmapped, it would crash."""
    before = descriptors(), _mapped_here()
    cuda = FakeCuda()
    cuda.may_pin.clear()
    pinned = PinnedSegments(cuda, 1 << 30)
    first, second = _map(pinned, 1), _map(pinned, 2)
    pinned.unmap(1, 1)  # before it could be pinned
    third = _map(pinned, 1)  # the number is used again: it is another segment
    pinned.unmap(1, 2)
    assert len(pinned) == 1
    assert _mapped_here() == before[1] + 3
    cuda.may_pin.set()
    until(lambda: len(cuda.log) == 5)
    assert [(what, address) for what, address, _ in cuda.log] == [
        ("pin", first),
        ("pin", second),
        ("unpin", first),
        ("pin", third),
        ("unpin", second),
    ]
    pinned.unmap(1, 1)
    until(lambda: (descriptors(), _mapped_here()) == before)
    assert not cuda.pinned


def test_what_cannot_be_pinned_is_used_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    before = _mapped_here()
    cuda = FakeCuda()
    cuda.pin_error = "CUDA_ERROR_OUT_OF_MEMORY"
    pinned = PinnedSegments(cuda, 1 << 30)
    _map(pinned, 1)
    until(lambda: "could not be pinned: CUDA_ERROR_OUT_OF_MEMORY" in caplog.text)
    pinned.view(1, 1)[:3] = b"abc"
    pinned.unmap(1, 1)
    until(lambda: _mapped_here() == before)
    cuda.pin_error = ""
    address = _map(pinned, 2)
    until(lambda: cuda.pinned == {address: SIZE})  # it goes on
    assert [what for what, _, _ in cuda.log] == ["pin"]
    pinned.unmap(1, 2)
    until(lambda: _mapped_here() == before)
