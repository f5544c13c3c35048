"""Waiting for another thread, however it ends."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.client.waiting import LOOK_UP, Condition, Latch


def test_a_latch_opens_for_everybody_and_stays_open() -> None:
    latch = Latch()
    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(latch.wait, None) for _ in range(5)]
        latch.open()
        for one in waiting:
            one.result(20)
    latch.open()
    began = time.monotonic()
    for _ in range(5):
        latch.wait(20)
    assert time.monotonic() - began < LOOK_UP


@pytest.mark.parametrize("seconds", [-1, 0, 0.001])
def test_a_latch_that_stays_shut_is_waited_for_only_so_long(seconds: float) -> None:
    began = time.monotonic()
    Latch().wait(seconds)
    assert time.monotonic() - began < LOOK_UP


@pytest.mark.parametrize("seconds", [None, 1000])
def test_whoever_waits_looks_up_now_and_then(seconds: float | None) -> None:
    began = time.monotonic()
    Latch().wait(seconds)
    assert time.monotonic() - began >= LOOK_UP


def test_who_left_before_letting_the_next_through_shuts_nobody_out() -> None:
    """As one does that is interrupted at the wrong moment."""
    latch = Latch()
    latch.open()
    latch._lock.acquire()
    latch.wait(0)
    latch.open()
    began = time.monotonic()
    latch.wait(None)
    assert time.monotonic() - began < LOOK_UP


def test_a_condition_is_one_of_pythons() -> None:
    condition = Condition()
    assert isinstance(condition, threading.Condition)
    told: list[bool] = []

    def wait() -> None:
        with condition:
            told.append(condition.wait_for(lambda: told, 20))

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        while not waiting.done():
            with condition:
                told.append(True)
                condition.notify_all()
        waiting.result()
    assert all(told)
    with pytest.raises(RuntimeError):
        condition.notify()


def test_taking_a_conditions_lock_runs_no_python() -> None:
    """In which an interrupt could strike."""
    assert type(Condition().__enter__) is type(threading.RLock().__enter__)
    assert type(Condition().__exit__) is type(threading.RLock().__exit__)


def test_futures_work_with_it() -> None:
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    future._condition.__class__ = Condition
    with ThreadPoolExecutor(3) as pool:
        results = [pool.submit(future.result, 20) for _ in range(2)]
        both = pool.submit(concurrent.futures.wait, [future], 20)
        future.set_result(3)
        assert [one.result(20) for one in results] == [3, 3]
        assert both.result(20).done == {future}
