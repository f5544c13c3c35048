from __future__ import annotations

import threading

import pytest

from penstock.testing import ManualClock
from penstock.testing.clock import SystemClock


def test_stands_still_until_it_is_moved():
    clock = ManualClock(start=5.0)
    assert clock.now() == 5.0
    clock.advance(0.25)
    assert clock.now() == 5.25
    clock.sleep(1)
    assert clock.now_ns() == 6_250_000_000


def test_does_not_go_back():
    with pytest.raises(ValueError, match="go back"):
        ManualClock().advance(-1)


def test_what_is_due_happens_in_order_at_its_time():
    clock = ManualClock()
    seen = []
    for seconds in (3, 1, 2, 9):
        clock.call_at(seconds * 10**9, lambda s=seconds: seen.append((s, clock.now())))
    clock.advance(3)
    assert seen == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert clock.now() == 3.0


def test_what_was_called_off_does_not_happen():
    clock = ManualClock()
    seen = []
    call_off = clock.call_at(10**9, lambda: seen.append(1))
    clock.call_at(10**9, lambda: seen.append(2))
    call_off()
    call_off()
    clock.advance(2)
    assert seen == [2]


def test_an_alarm_may_set_another():
    clock = ManualClock()
    seen = []
    clock.call_at(10**9, lambda: clock.call_at(2 * 10**9, lambda: seen.append(clock.now())))
    clock.advance(5)
    assert seen == [2.0]


def test_the_system_clock_calls_back():
    clock = SystemClock()
    there = threading.Event()
    clock.call_at(clock.now_ns() + 1_000_000, there.set)
    clock.call_at(clock.now_ns() + 10**12, lambda: None)()
    assert there.wait(10)
