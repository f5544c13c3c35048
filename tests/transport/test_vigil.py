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


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def test_what_comes_while_one_looks_is_seen() -> None:
    looks = Looks(1, 50)
    vigil = Vigil(LONG)
    assert vigil.keep(looks) == [1]
    assert vigil.keep(looks) == [50]


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


def test_each_time_in_time_takes_back_one_in_vain() -> None:
    vigil = Vigil(1)
    assert _sleeps_after_one_more_in_vain(vigil) == 1
    assert _sleeps_after_one_more_in_vain(vigil) == 7  # two in vain were there before
    for _ in range(4):
        while not vigil.keep(Looks(1)):
            pass
    assert _sleeps_after_one_more_in_vain(vigil) == 1


def test_a_limit_that_comes_first_is_no_reason_to_sleep_the_next_time() -> None:
    vigil = Vigil(LONG)
    for _ in range(3):
        looks = Looks()
        assert vigil.keep(looks, 1000) == []
        assert looks.count


def test_a_limit_that_comes_later_does_not_keep_anybody_awake() -> None:
    assert Vigil(1000).keep(Looks(), LONG) == []


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
