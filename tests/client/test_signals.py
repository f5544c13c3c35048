"""What wakes a reader: a bell that is rung, and a timer that runs out."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.signals import Bell, Timer
from tests.conditions import descriptors, until

_MILLISECOND = 1_000_000


@pytest.fixture
def bell() -> Iterator[Bell]:
    made = Bell()
    yield made
    if made.fileno() >= 0:
        made.close()


def _readable(thing: Bell | Timer) -> bool:
    poll = select.poll()
    poll.register(thing, select.POLLIN)
    return bool(poll.poll(0))


def test_a_bell_is_heard_until_it_is_cleared(bell: Bell) -> None:
    assert not _readable(bell)
    bell.ring()
    bell.ring()
    assert _readable(bell)
    bell.clear()
    assert not _readable(bell)
    bell.clear()


def test_a_timer_runs_out_once() -> None:
    timer = Timer(_MILLISECOND)
    assert not _readable(timer)
    timer.set()
    until(lambda: _readable(timer))
    timer.clear()
    assert not _readable(timer)
    timer.set()
    until(lambda: _readable(timer))
    timer.close()


def test_a_timer_that_is_stopped_does_not_run_out() -> None:
    long, short = Timer(20 * _MILLISECOND), Timer(60 * _MILLISECOND)
    long.set()
    long.stop()
    short.set()
    until(lambda: _readable(short))
    assert not _readable(long)
    long.close()
    short.close()


@pytest.mark.parametrize("kind", [Bell, lambda: Timer(_MILLISECOND)])
def test_after_the_end_nothing_happens_to_whoever_has_the_number_now(
    kind: type[Bell], tmp_path: Path
) -> None:
    before = descriptors()
    thing = kind()
    number = thing.fileno()
    thing.close()
    assert descriptors() == before
    files = [os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)]
    while number not in files and len(files) < 50:
        files.append(os.open(tmp_path / "file", os.O_RDWR))
    assert number in files
    for verb in ("ring", "set", "stop", "close_in_child"):
        getattr(thing, verb, lambda: None)()
    os.fstat(number)
    assert (tmp_path / "file").read_bytes() == b""
    for file in files:
        os.close(file)
