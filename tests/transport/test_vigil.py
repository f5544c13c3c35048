"""Staying awake, while that helps."""

from __future__ import annotations

import itertools
import os
import threading
import time

import pytest

from penstock.transport.vigil import Vigil

LONG = 60_000_000_000  # nanoseconds: whoever stays awake for that long hangs


class Looks:
    """Sees something at the looks that are told; counts them."""

    def __init__(self, *seeing: int) -> None:
        self.seeing = seeing
        self.count = 0

    def __call__(self, timeout: int) -> list[int]:
        assert timeout == 0, "a look never sleeps"
        self.count += 1
        return [self.count] if self.count in self.seeing else []


class Clock:
    """Goes on by a microsecond with each reading, and by `away` while others have the core."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.away = 1000

    def monotonic_ns(self) -> int:
        self.now += 1000
        return self.now

    def sched_yield(self) -> None:
        self.now += self.away


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("penstock.transport.vigil.time", clock)
    monkeypatch.setattr(os, "sched_yield", clock.sched_yield)
    return clock


@pytest.mark.usefixtures("clock")
def test_what_comes_while_one_looks_is_seen() -> None:
    looks = Looks(1, 50)
    vigil = Vigil(LONG)
    assert vigil.keep(looks) == [1]
    assert vigil.keep(looks) == [50]


@pytest.mark.usefixtures("clock")
def test_after_staying_awake_in_vain_one_sleeps_at_once_ever_more_often() -> None:
    looks = Looks()
    vigil = Vigil(1)
    awake = []
    for _ in range(400):
        before = looks.count
        assert vigil.keep(looks) == []
        awake.append(looks.count > before)
    stayed = [number for number, was in enumerate(awake) if was]
    slept = [later - earlier - 1 for earlier, later in itertools.pairwise(stayed)]
    assert stayed[0] == 0
    assert slept == [1, 3, 7, 15, 31, 63, 127, 127]


def _sleeps_after_one_more_in_vain(vigil: Vigil) -> int:
    looks = Looks()
    while not looks.count:
        vigil.keep(looks)
    seen = looks.count
    return next(n for n in itertools.count() if vigil.keep(looks) or looks.count > seen)


@pytest.mark.usefixtures("clock")
def test_each_time_in_time_takes_back_one_in_vain() -> None:
    vigil = Vigil(1)
    assert _sleeps_after_one_more_in_vain(vigil) == 1
    assert _sleeps_after_one_more_in_vain(vigil) == 7  # two in vain were there before
    for _ in range(4):
        while not vigil.keep(Looks(1)):
            pass
    assert _sleeps_after_one_more_in_vain(vigil) == 1


@pytest.mark.usefixtures("clock")
def test_a_limit_that_comes_first_is_no_reason_to_sleep_the_next_time() -> None:
    vigil = Vigil(LONG)
    for _ in range(3):
        looks = Looks()
        assert vigil.keep(looks, 1000) == []
        assert looks.count


@pytest.mark.usefixtures("clock")
def test_a_limit_that_comes_later_does_not_keep_anybody_awake() -> None:
    assert Vigil(1000).keep(Looks(), LONG) == []


def _tries(vigil: Vigil, times: int) -> int:
    """How often it looks at all when so many are to keep it, and see what comes at once."""
    looks = Looks(*range(1, times + 1))
    for _ in range(times):
        vigil.keep(looks)
    return looks.count


def test_who_gets_the_core_back_late_sleeps_for_long_though_something_came(clock: Clock) -> None:
    vigil = Vigil(500_000)
    clock.away = 2_000_000  # somebody computes
    assert vigil.keep(Looks(2)) == [2], "what was seen is not lost"
    clock.away = 1000
    assert _tries(vigil, 127) == 0
    assert _tries(vigil, 10) == 10


def test_who_gets_the_core_back_soon_stays_awake(clock: Clock) -> None:
    vigil = Vigil(500_000)
    clock.away = 400_000  # somebody did a little, and is about to send
    for _ in range(10):
        assert vigil.keep(Looks(3)) == [3]
    assert _tries(vigil, 10) == 10


@pytest.mark.parametrize("cores", [{0}, {5}])
def test_nobody_stays_awake_on_the_only_core(
    cores: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    looks = Looks(1)
    assert Vigil(LONG).keep(looks) == []
    assert looks.count == 0


def test_other_threads_run_meanwhile() -> None:
    done = threading.Event()

    def work() -> None:
        until = time.monotonic() + 0.01
        while time.monotonic() < until:
            pass
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert Vigil(LONG).keep(lambda _: [done.is_set()] * done.is_set()) == [True]
    thread.join()
