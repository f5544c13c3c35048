"""Waiting for many descriptors at once."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from functools import partial

import pytest

from penstock.engine.poller import READ, WRITE, Poller


@pytest.fixture
def poller() -> Iterator[Poller]:
    made = Poller()
    yield made
    made.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    yield one, other
    one.close()
    other.close()


@pytest.mark.parametrize("seconds", [0, 0.0001, 0.01, 0.05])
def test_nothing_happens_without_events(poller: Poller, seconds: float) -> None:
    assert poller.wait(seconds) == 0


@pytest.mark.parametrize("seconds", [0, 0.001, 5, 0.015])
def test_handlers_are_called_with_what_can_be_done(
    poller: Poller, ends: tuple[socket.socket, socket.socket], seconds: float
) -> None:
    seen: list[int] = []
    poller.add(ends[0].fileno(), seen.append)
    ends[1].send(b"x")
    assert poller.wait(seconds) == 1
    assert seen == [READ]
    poller.watch_write(ends[0].fileno(), True)
    poller.wait(seconds)
    assert seen[-1] == READ | WRITE
    poller.watch_write(ends[0].fileno(), False)
    poller.wait(seconds)
    assert seen[-1] == READ


def test_one_that_is_removed_in_the_same_round_is_not_called(poller: Poller) -> None:
    pairs = [socket.socketpair() for _ in range(4)]
    numbers = [one.fileno() for one, _ in pairs]
    called: list[int] = []

    def take(number: int) -> None:
        called.append(number)
        for other in numbers:
            if other != number:
                poller.remove(other)

    for one, other in pairs:
        poller.add(one.fileno(), partial(lambda number, _: take(number), one.fileno()))
        other.send(b"x")
    poller.wait(1)
    assert len(called) == 1
    for one, other in pairs:
        one.close()
        other.close()


def test_what_is_not_there_any_more_is_nothing_to_do(
    poller: Poller, ends: tuple[socket.socket, socket.socket]
) -> None:
    """Messages may wait for a peer whose end was seen a moment ago."""
    number = ends[0].fileno()
    poller.add(number, lambda _: None)
    poller.remove(number)
    poller.remove(number)
    poller.watch_write(number, True)
    assert poller.wait(0) == 0


def test_an_end_is_an_event(poller: Poller) -> None:
    reader, writer = os.pipe()
    seen: list[int] = []
    poller.add(reader, seen.append)
    os.close(writer)
    assert poller.wait(5) == 1
    assert seen
    poller.remove(reader)
    os.close(reader)
