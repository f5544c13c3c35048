"""Answers by themselves: whoever wants to be told while one is decided is told, once.

Two threads do something to an answer; one is stopped before each of its instructions in turn, and
the other goes as far as it can meanwhile.
"""

from __future__ import annotations

import concurrent.futures
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from penstock.client.answer import Answer
from penstock.errors import Cancelled

_BLOCKED = 0.01  # seconds: whoever has not come back by then waits for a lock
_LIMIT = 20.0
_CODE = ("/penstock/client/", "/concurrent/futures/")

Deed = Callable[[Any], Any]


class NoSession:
    """As much of a session as an answer looks at."""

    pid = -1  # another process's: nothing is sent to an engine

    def __init__(self) -> None:
        self.unanswered: set[Any] = set()


def answer() -> Any:
    session: Any = NoSession()
    made = Answer(session, None, None)  # type: ignore[arg-type]
    session.unanswered.add(made)
    return made


class Stopped:
    """Runs a deed and calls `meanwhile` before its instruction number `at`."""

    def __init__(self, at: int, meanwhile: Callable[[], None]) -> None:
        self._left = at
        self._meanwhile = meanwhile

    def run(self, deed: Callable[[], Any]) -> Any:
        sys.settrace(self._begin)
        try:
            return deed()
        finally:
            sys.settrace(None)

    @property
    def came_so_far(self) -> bool:
        return self._left < 0

    def _begin(self, frame: FrameType, event: str, _: object) -> Any:
        if not any(room in frame.f_code.co_filename for room in _CODE):
            return None
        frame.f_trace_opcodes = True
        return self._go_on

    def _go_on(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode":
            self._left -= 1
            if self._left == -1:
                self._meanwhile()
        return self._go_on


def interleaved(stopped: Deed, other: Deed) -> Iterator[tuple[Any, Any, Any]]:
    """Each time a new answer, and what both deeds came to."""
    at = 0
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        while True:
            made = answer()
            begun: list[concurrent.futures.Future[Any]] = []

            def meanwhile(made: Any = made, begun: list[Any] = begun) -> None:
                begun.append(pool.submit(other, made))
                concurrent.futures.wait(begun, _BLOCKED)

            way = Stopped(at, meanwhile)
            outcome = way.run(lambda made=made: stopped(made))
            if not way.came_so_far:
                break
            yield made, outcome, begun[0].result(_LIMIT)
            at += 1
    assert at > 5, "nothing was interleaved"


def resolve(made: Any) -> None:
    made.resolve("value", None)


def call_back(made: Any) -> list[Any]:
    told: list[Any] = []
    concurrent.futures.Future.add_done_callback(made, told.append)
    return told


def wait(made: Any) -> bool:
    return bool(concurrent.futures.wait([made], timeout=_LIMIT / 2).done)


def wait_at_the_latch(made: Any) -> bool:
    arrived = made.arrived
    return bool(made.done()) or bool(arrived._lock.acquire(timeout=_LIMIT / 2))


def test_a_callback_runs_once() -> None:
    for made, _, told in interleaved(resolve, call_back):
        assert told == [made]
    for made, told, _ in interleaved(call_back, resolve):
        assert told == [made]


def test_nobody_waits_in_vain() -> None:
    for waiting in (wait, wait_at_the_latch):
        for made, _, in_time in interleaved(resolve, waiting):
            assert in_time
            assert not made._session.unanswered


def test_it_is_answered_or_cancelled_never_both() -> None:
    def check(made: Any, cancelled: bool) -> None:
        assert made.cancelled() == cancelled
        if cancelled:
            with pytest.raises(Cancelled):
                made.result()
        else:
            assert made.result() == "value"

    for made, _, cancelled in interleaved(resolve, lambda made: made.cancel()):
        check(made, cancelled)
    for made, cancelled, _ in interleaved(lambda made: made.cancel(), resolve):
        check(made, cancelled)


def test_all_of_several_are_waited_for() -> None:
    made = [answer() for _ in range(3)]
    waiting = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        all_of_them = pool.submit(
            lambda: (waiting.set(), concurrent.futures.wait(made, _LIMIT))[1].done
        )
        assert waiting.wait(_LIMIT)
        made[0].resolve(1, None)
        made[1].resolve(None, ValueError("no"))
        assert concurrent.futures.wait(made, 0.05).done == set(made[:2])
        assert not all_of_them.done()
        made[2].cancel()
        assert all_of_them.result(_LIMIT) == set(made)


def test_there_is_no_other_attribute() -> None:
    with pytest.raises(AttributeError, match="'Answer' object has no attribute 'outcome'"):
        answer().outcome  # noqa: B018
