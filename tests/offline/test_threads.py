"""Threads whose start a Ctrl-C may hit: whoever tidies up can join them all the same."""

from __future__ import annotations

import queue
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.offline.threads import Thread

_STARTS = 400
_LONGEST = 400e-6  # seconds; a start takes about 100 µs


@pytest.fixture
def alarms() -> Iterator[None]:
    """An alarm is an interrupt."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarms")
def test_an_interrupt_at_any_moment_of_the_start() -> None:
    chance, began, interrupted = random.Random(1), 0, 0
    for _ in range(_STARTS):
        orders: queue.SimpleQueue[None] = queue.SimpleQueue()
        thread = Thread(orders.get, "test")
        starting = False
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, _LONGEST))
            starting = True
            thread.start()
            starting = False
            time.sleep(1)
        except KeyboardInterrupt:
            interrupted += starting
        orders.put(None)
        thread.join()
        began += orders.empty()
    assert interrupted > 10
    assert began > 10


def test_one_that_was_not_interrupted_is_waited_for() -> None:
    done = threading.Event()
    seen: list[int] = []

    def work(number: int) -> None:
        done.wait(10)
        seen.append(number)

    thread = Thread(work, "test", 7)
    thread.start()
    threading.Timer(0.05, done.set).start()
    thread.join()
    assert seen == [7]
