"""A process whose calls are interrupted, again and again: started by `test_interrupts`.

`everywhere` lets a scenario run over and over and raises `KeyboardInterrupt` in it at each point of
the client's code in turn where Python may do so: at the start of a function, after a call, where a
loop goes back (`points`). `at_random` lets a timer's real signals strike whenever they like.

After each time, everybody else's calls must have ended (answered, or with `EngineClosed`), their
callbacks must have run once, and the next call must be answered. What hangs ends the process, with
the stacks of all its threads.
"""

from __future__ import annotations

import collections
import contextlib
import dis
import faulthandler
import functools
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import CodeType, FrameType
from typing import Any

import numpy as np

import penstock
from penstock.errors import EngineClosed
from tests.conditions import until

LIMIT = 20.0
_ROOMS = ("/penstock/client/", "/penstock/transport/", "/concurrent/futures/")
_ROW = np.ones(3)
_OTHERS_ROW = np.full(2, 4.0)

Scenario = Callable[[penstock.Client], None]
Point = tuple[CodeType, int]


# ── when an interrupt strikes ──────────────────────────────────────────────────────────────────


@functools.cache
def points(code: CodeType) -> frozenset[int]:
    """The instructions before which an exception may come out of nowhere."""
    handlers = {
        offset: number
        for number, entry in enumerate(dis._parse_exception_table(code))  # type: ignore[attr-defined]
        for offset in range(entry.start, entry.end, 2)
    }
    found: set[int] = set()
    before = None
    for this in dis.get_instructions(code):
        if this.opname.startswith(("JUMP_BACKWARD", "POP_JUMP_BACKWARD")) or (
            before is not None
            and before.opname.startswith(("CALL", "RESUME"))
            and handlers.get(before.offset) == handlers.get(this.offset)
        ):
            found.add(this.offset)
        before = this
    return frozenset(found)


class Interruption:
    """While this lasts, an interrupt strikes when the point is passed; it knows what was passed."""

    def __init__(self, point: Point | None = None) -> None:
        self.passed: dict[Point, None] = {}
        self._point = point

    def __enter__(self) -> Interruption:
        sys.settrace(self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _begin(self, frame: FrameType, event: str, _: object) -> Any:
        if not any(room in frame.f_code.co_filename for room in _ROOMS) and not _below(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._go_on

    def _go_on(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode" and frame.f_lasti in points(frame.f_code):
            point = (frame.f_code, frame.f_lasti)
            self.passed[point] = None
            if point == self._point:
                raise KeyboardInterrupt
        return self._go_on

    def __str__(self) -> str:
        if self._point is None:
            return "not interrupted"
        code, offset = self._point
        line = [line for start, line in dis.findlinestarts(code) if start <= offset][-1]
        return f"interrupted in {code.co_qualname}, {code.co_filename}:{line}, byte {offset}"


def _below(frame: FrameType) -> bool:
    """Whether this is a condition's code, called by code that is interrupted here."""
    caller = frame.f_back
    return (
        frame.f_code.co_filename == threading.__file__
        and not frame.f_code.co_qualname.startswith("Thread.")
        and caller is not None
        and caller.f_trace is not None
    )


class Signals:
    """While this lasts, a timer's signals interrupt this thread, the first within `seconds`.

    Often others follow at once, as when a terminal and a parent process both pass a Ctrl-C on.
    """

    def __init__(self, seconds: float, chance: random.Random) -> None:
        self._seconds = seconds
        self._chance = chance

    def __enter__(self) -> Signals:
        signal.signal(signal.SIGALRM, self._strike)
        signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(1e-6, self._seconds))
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _strike(self, _: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not _struck.__code__:
            frame = frame.f_back
        if frame is not None:
            if self._chance.random() < 0.5:
                signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(1e-6, 3e-4))
            raise KeyboardInterrupt


def _struck(scenario: Scenario, client: penstock.Client) -> None:
    """What signals may interrupt."""
    scenario(client)


# ── what is interrupted ────────────────────────────────────────────────────────────────────────


def predict(client: penstock.Client) -> None:
    assert client.predict(_ROW).tolist() == [2.0] * 3


def submit(client: penstock.Client) -> None:
    answers = [client.submit(_ROW + number) for number in range(4)]
    answers[3].cancel()
    for number in range(3):
        assert answers[number].result(LIMIT).tolist() == [2.0 + 2 * number] * 3


def large(client: penstock.Client) -> None:
    x = np.arange(600.0)
    assert client.predict(x, deadline=60).tolist() == (x + x).tolist()


def callback(client: penstock.Client) -> None:
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client.submit(_ROW).add_done_callback(done.put)
    assert done.get(timeout=LIMIT).done()


def stream(client: penstock.Client) -> None:
    assert list(client.map(_ROW, ordered=False, window=2)) == [2.0] * 3


def statistics(client: penstock.Client) -> None:
    assert client.statistics().healthy


def reconnect(client: penstock.Client) -> None:
    client._session().close()
    assert client.predict(_ROW).tolist() == [2.0] * 3


SCENARIOS = (predict, submit, large, callback, stream, statistics, reconnect)


class Company:
    """Another thread that uses the same client, and callbacks that wait for their answers."""

    def __init__(self, client: penstock.Client) -> None:
        self._client = client
        self._errors: list[BaseException] = []
        self._called: collections.Counter[int] = collections.Counter()
        self._answers: list[Any] = []
        for number in range(3):
            answer = client.submit(_OTHERS_ROW)
            answer.add_done_callback(lambda _, number=number: self._called.update([number]))
            self._answers.append(answer)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            for _ in range(3):
                with contextlib.suppress(EngineClosed):
                    assert self._client.predict(_OTHERS_ROW).tolist() == [8.0, 8.0]
        except BaseException as error:
            self._errors.append(error)

    def check(self) -> None:
        """All has ended, and was told once."""
        self._thread.join()
        assert not self._errors, self._errors
        for answer in self._answers:
            with contextlib.suppress(EngineClosed):
                assert answer.result().tolist() == [8.0, 8.0]
        while len(self._called) < len(self._answers):
            time.sleep(0.001)
        assert set(self._called.values()) == {1}, self._called


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Nothing in here may hang."""
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def once(
    client: penstock.Client,
    scenario: Scenario,
    alone: bool,
    strike: AbstractContextManager[object],
) -> bool:
    """Let it be interrupted once; returns whether it was."""
    interrupted = False
    with _limited():
        company = None if alone else Company(client)
        try:
            with strike:
                _struck(scenario, client)
        except KeyboardInterrupt:
            interrupted = True
        except RuntimeError as error:
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            interrupted = True  # Python itself makes this of it, if it comes as a thread starts
        except EngineClosed:
            assert not alone, "only an interrupt ends a connection"
        if company is not None:
            company.check()
        for last in (False, True):
            try:
                predict(client)
                break
            except EngineClosed:
                assert not last, "the connection is not made anew"
    return interrupted


def everywhere(client: penstock.Client, scenario: Scenario, share: int) -> int:
    """Interrupt it at every point, or one in `share` of them; returns how many those were."""
    tried: set[tuple[bool, Point]] = set()
    interrupted = 0
    for alone in (True, False):
        passed = Interruption()
        for _ in range(3):
            once(client, scenario, alone, passed)
        todo = collections.deque(list(passed.passed)[::share])
        while todo:
            point = todo.popleft()
            if (alone, point) in tried:
                continue
            tried.add((alone, point))
            strike = Interruption(point)
            try:
                interrupted += once(client, scenario, alone, strike)
            except BaseException as error:
                error.add_note(str(strike))
                raise
            if share == 1:
                todo.extend(strike.passed)  # it may have gone another way
    return interrupted


def at_random(client: penstock.Client, seconds: float) -> int:
    """Interrupt all scenarios by signals that come at any time; returns how often that was."""
    chance = random.Random(7)
    until = time.monotonic() + seconds
    interrupted = 0
    while time.monotonic() < until:
        strike = Signals(chance.choice((3e-4, 3e-3)), chance)
        interrupted += once(client, chance.choice(SCENARIOS), chance.random() < 0.5, strike)
    return interrupted


def main(address: str, how: str, much: str) -> None:
    """Print how often there was an interrupt."""
    with penstock.connect(address, wait=LIMIT) as client:
        if how == "at_random":
            print(at_random(client, float(much)))
        else:
            (scenario,) = [one for one in SCENARIOS if one.__name__ == how]
            print(everywhere(client, scenario, int(much)))
    staying = {"MainThread", "penstock-callbacks"}
    until(lambda: {thread.name for thread in threading.enumerate()} <= staying)  # some begin late


if __name__ == "__main__":
    main(*sys.argv[1:])
