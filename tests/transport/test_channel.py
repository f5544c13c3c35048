"""Channels: order, bounded waiting, and descriptors that are never lost and never leak."""

from __future__ import annotations

import array
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.transport.channel import (
    MAX_DESCRIPTORS,
    Channel,
    Closed,
    Flooded,
    Oversized,
    pair,
)
from penstock.transport.wire import MAX_MESSAGE
from tests.conditions import descriptors, opened


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = (Channel(sock, backlog=1 << 20) for sock in pair())
    yield one, other
    one.close()
    other.close()


def _drain(sender: Channel, receiver: Channel) -> list[bytes]:
    """Everything that was sent, flushing as room appears; closes what came along."""
    got: list[bytes] = []
    more = True
    while more or sender.wants_write:
        more = False
        while (received := receiver.receive()) is not None:
            more = True
            got.append(received[0])
            for descriptor in received[1]:
                os.close(descriptor)
        sender.flush()
    return got


def test_nothing_is_none_and_never_blocks(ends: tuple[Channel, Channel]) -> None:
    assert ends[0].receive() is None
    assert not ends[0].wants_write
    assert not ends[0].flush()


@given(st.lists(st.binary(min_size=1, max_size=3_000), min_size=1, max_size=600))
def test_messages_arrive_whole_and_in_order(messages: list[bytes]) -> None:
    one, other = (Channel(sock) for sock in pair())
    for message in messages:
        one.send(message)
    assert _drain(one, other) == messages
    one.close()
    other.close()


def test_what_the_socket_does_not_take_waits_in_order(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    count = 0
    while not one.wants_write:
        one.send(count.to_bytes(4, "little"))
        count += 1
    for _ in range(50):
        one.send(count.to_bytes(4, "little"))
        count += 1
    assert one.flush()
    got = [int.from_bytes(data, "little") for data in _drain(one, other)]
    assert got == list(range(count))
    assert not one.wants_write


def _floods(channel: Channel) -> bool:
    try:
        channel.send(bytes(10_000))
    except Flooded:
        return True
    return False


def test_a_peer_that_does_not_read_floods(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    sent = 0
    while not _floods(one):
        sent += 1
    assert sent > 100
    assert len(_drain(one, other)) == sent
    one.send(b"again")
    assert other.receive() == (b"again", [])


def test_the_backlog_counts_what_still_waits_only(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    for _ in range(20):
        while not one.wants_write:
            one.send(bytes(50_000))
        for _ in range(15):
            one.send(bytes(50_000))
        _drain(one, other)


def test_descriptors_arrive_open_and_close_on_exec(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    reader, writer = os.pipe()
    before = descriptors()
    one.send(b"take these", (reader, writer))
    received = other.receive()
    assert received is not None
    data, (their_reader, their_writer) = received
    assert data == b"take these"
    assert descriptors() == before + 2
    assert not os.get_inheritable(their_reader)
    os.write(their_writer, b"hello")
    assert os.read(reader, 5) == b"hello"  # still the sender's, too
    for descriptor in (reader, writer, their_reader, their_writer):
        os.close(descriptor)


def test_descriptors_that_wait_are_copies(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    while not one.wants_write:
        one.send(b"x")
    before = descriptors()
    reader, writer = os.pipe()
    os.write(writer, b"kept")
    one.send(b"last", (reader,))
    os.close(reader)
    os.close(writer)
    assert descriptors() == before + 1
    received = None
    while one.wants_write or received is None or received[0] != b"last":
        received = other.receive() or received
        one.flush()
    assert os.read(received[1][0], 4) == b"kept"
    os.close(received[1][0])
    assert descriptors() == before


def test_closing_drops_what_waits_and_its_descriptors() -> None:
    before = descriptors()
    one, other = (Channel(sock) for sock in pair())
    while not one.wants_write:
        one.send(b"x")
    reader, writer = os.pipe()
    one.send(b"never", (reader, writer))
    os.close(reader)
    os.close(writer)
    one.close()
    one.close()
    other.close()
    assert descriptors() == before
    assert not one.wants_write


@pytest.mark.parametrize("count", [1, MAX_DESCRIPTORS, MAX_DESCRIPTORS + 1, 30, 250])
def test_more_descriptors_than_allowed_are_refused_without_a_leak(
    count: int, tmp_path: Path
) -> None:
    raw, theirs = pair()
    channel = Channel(theirs)
    own = os.open(tmp_path, os.O_RDONLY)
    raw.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [own] * count))])
    if count <= MAX_DESCRIPTORS:
        received = channel.receive()
        assert received is not None
        assert len(received[1]) == count
        for descriptor in received[1]:
            os.close(descriptor)
    else:
        with pytest.raises(Oversized):
            channel.receive()
    assert opened(tmp_path) == 1
    os.close(own)
    raw.close()
    channel.close()


def test_a_descriptor_for_which_there_is_no_number_left_is_told_as_that() -> None:
    raw, theirs = pair()
    channel = Channel(theirs)
    raw.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(Oversized, match="ulimit -n"):
            channel.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    raw.close()
    channel.close()


@pytest.mark.parametrize("size", [MAX_MESSAGE + 1, MAX_MESSAGE + 2, 100_000])
def test_messages_that_are_too_long_are_refused_without_a_leak(size: int, tmp_path: Path) -> None:
    raw, theirs = pair()
    channel = Channel(theirs)
    own = os.open(tmp_path, os.O_RDONLY)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [own]))
    raw.sendmsg([bytes(size)], [rights])
    with pytest.raises(Oversized):
        channel.receive()
    assert opened(tmp_path) == 1
    raw.send(b"next")
    assert channel.receive() == (b"next", [])
    os.close(own)
    raw.close()
    channel.close()


def test_the_longest_message_passes(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.send(bytes(MAX_MESSAGE))
    received = other.receive()
    assert received is not None
    assert len(received[0]) == MAX_MESSAGE


def test_an_empty_message_is_the_end(tmp_path: Path) -> None:
    raw, theirs = pair()
    channel = Channel(theirs)
    own = os.open(tmp_path, os.O_RDONLY)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [own]))
    raw.sendmsg([b""], [rights])
    os.close(own)
    with pytest.raises(Closed):
        channel.receive()
    assert opened(tmp_path) == 0
    raw.close()
    channel.close()


def test_the_other_sides_end_is_news(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.send(b"last words")
    one.close()
    assert other.receive() == (b"last words", [])
    with pytest.raises(Closed):
        other.receive()
    with pytest.raises(Closed):
        other.send(b"anybody?")


def test_last_words_are_heard_even_if_ours_were_not_read(ends: tuple[Channel, Channel]) -> None:
    """Linux reports that ours were lost first, once; what was said is still there behind that."""
    one, other = ends
    other.send(b"hello?")
    one.send(b"go away, because")
    one.close()
    assert other.receive() == (b"go away, because", [])
    with pytest.raises(Closed):
        other.receive()


def test_the_end_is_noticed_by_flush(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    while not one.wants_write:
        one.send(b"x")
    other.close()
    with pytest.raises(Closed):
        one.flush()


def test_a_channel_that_was_closed_here_is_closed(ends: tuple[Channel, Channel]) -> None:
    one, _ = ends
    one.close()
    with pytest.raises(Closed):
        one.send(b"x")
    with pytest.raises(Closed):
        one.receive()
