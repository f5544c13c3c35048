"""The future that a caller holds, and where its callbacks run.

Callbacks run in a thread of their own, never in the one that reads the connection: a callback that
calls `predict` would otherwise wait for an answer that nobody can read.

Telling everybody takes several steps, and the caller that reads may be interrupted between them. So
an answer stays among the session's `unanswered` until all is done, and `end` makes up for the rest.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures._base import (
    CANCELLED,
    CANCELLED_AND_NOTIFIED,
    FINISHED,
    PENDING,
    RUNNING,
)
from typing import TYPE_CHECKING, Any

from penstock.client.waiting import Condition, Latch
from penstock.errors import Cancelled, EngineClosed, PenstockError

if TYPE_CHECKING:
    from penstock.client.call import Call
    from penstock.client.session import Session

log = logging.getLogger("penstock.client")

_OPEN = (PENDING, RUNNING)
_CANCELLED = (CANCELLED, CANCELLED_AND_NOTIFIED)


_deciding = threading.RLock()  # of every answer: held for the moment in which it is decided
_LATE: dict[str, Callable[[], Any]] = {
    "_condition": Condition,
    "_waiters": list,
    "_done_callbacks": list,
    "arrived": Latch,
}


class Answer(Future[Any]):
    """A `concurrent.futures.Future` whose `cancel` reaches the engine.

    Nearly all are made, waited for by the caller that reads, and thrown away. So what it takes for
    others to wait (a condition, a latch, lists of whom to tell) is made when somebody first looks
    at it. Whoever wants to be told looks at it, then at the state; whoever decides sets the state,
    then looks whether there is somebody to tell: one of them sees the other.
    """

    _result: Any = None
    _exception: BaseException | None = None

    def __init__(self, session: Session, call: Call, keep: Any) -> None:
        self._state = PENDING
        self._session = session
        self._call = call
        self._keep = keep  # the client lives at least as long as its answers

    def __getattr__(self, name: str) -> Any:
        make = _LATE.get(name)
        if make is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.__dict__.setdefault(name, make())

    def done(self) -> bool:
        """Whether the answer or the error is there, or it was cancelled."""
        return self._state not in _OPEN

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._state in _CANCELLED

    def cancel(self) -> bool:
        """Lose interest. True unless the answer is there already; the engine drops the request."""
        with _deciding:
            if self._state in (RUNNING, FINISHED):
                return False
            first = self._state == PENDING
            self._state = CANCELLED_AND_NOTIFIED
        if first:
            if "_condition" in self.__dict__:
                self._tell_others()
            if self._session.pid == os.getpid():
                self._session.cancel(self._call)
        self._told()
        return True

    def result(self, timeout: float | None = None) -> Any:
        """The answer, or the error, when it is there."""
        try:
            if self._state == PENDING:
                self._wait(timeout)
            if self._state in _CANCELLED:
                raise Cancelled("this call was cancelled")
            if self._exception is not None:
                raise self._exception
            return self._result
        finally:
            del self  # an error points to this frame, and this frame would point to the error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or `None`, when the answer is there."""
        if self._state == PENDING:
            self._wait(timeout)
        if self._state in _CANCELLED:
            raise Cancelled("this call was cancelled")
        return self._exception

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Call `fn(answer)` when it is done, in a thread that may call `predict` again."""
        if self.done():
            super().add_done_callback(fn)
        else:
            super().add_done_callback(_Once(fn))
            self._waited_for()

    @property
    def over(self) -> bool:
        """Whether the answer is there, or about to be: nothing more needs to be read for it."""
        return self._call.over

    def add_quick_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Call `fn(answer)` in the thread that reads: it must not wait for anything.

        It may be called again, when the first time was interrupted.
        """
        super().add_done_callback(fn)
        self._waited_for()

    def _waited_for(self) -> None:
        """Somebody waits who does not read."""
        if self._session.pid != os.getpid():
            return
        self._session.send_outbox()
        self._session.reader.need_thread()

    def resolve(self, value: Any, error: BaseException | None) -> None:
        """The answer or the error is there; ignored when the caller has cancelled meanwhile."""
        with _deciding:
            first = self._state == PENDING
            if first:
                self._result = value
                self._exception = error
                self._state = FINISHED
        if first and "_condition" in self.__dict__:
            self._tell_others()
        self._told()

    def _tell_others(self) -> None:
        """Those who wait by way of `concurrent.futures`, and callbacks."""
        with self._condition:
            for waiter in self._waiters:
                if self._state in _CANCELLED:
                    waiter.add_cancelled(self)
                elif self._exception is not None:
                    waiter.add_exception(self)
                else:
                    waiter.add_result(self)
            self._condition.notify_all()
        self._invoke_callbacks()

    def _told(self) -> None:
        """Everybody who should know has been told."""
        if "arrived" in self.__dict__:
            self.arrived.open()
        self._session.unanswered.discard(self)

    def end(self, error: PenstockError) -> None:
        """The connection is over: this fails unless it is done, and everybody is told.

        Runs in the session's thread, which nobody interrupts.
        """
        self._call.give_up(error)
        if self not in self._session.unanswered:
            return
        if not self.done():
            self.resolve(None, error)
            return
        with self._condition:  # it was being told when the one who told it was interrupted
            for waiter in self._waiters:
                if self not in waiter.finished_futures:
                    waiter.finished_futures.append(self)
                waiter.event.set()
            self._condition.notify_all()
        self._invoke_callbacks()
        self._told()

    def _wait(self, timeout: float | None) -> None:
        """Wait for the answer, reading the connection if nobody does. Raises `TimeoutError`."""
        if self._session.pid != os.getpid():
            raise EngineClosed(
                "this call was made before the process forked: its answer goes to the parent"
            )
        until = None if timeout is None else time.monotonic() + timeout
        reader = self._session.reader
        while not self.done():
            reader.wait_for(self, timeout)
            if self.done():
                return
            if until is not None:
                timeout = until - time.monotonic()
                if timeout <= 0:
                    raise FutureTimeoutError
            reader.follow(self, timeout)


class _Once:
    """A callback that is put in line when its answer is there; it runs once, even if put twice."""

    def __init__(self, fn: Callable[[Future[Any]], object]) -> None:
        self._left = [fn]

    def __call__(self, answer: Future[Any]) -> None:
        _callbacks.put(self, answer)

    def run(self, answer: Future[Any]) -> None:
        if self._left:
            self._left.pop()(answer)


class _Callbacks:
    """A thread for callbacks, started when the first one comes."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[_Once, Future[Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, callback: _Once, answer: Future[Any]) -> None:
        self._queue.put((callback, answer))
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._work, name="penstock-callbacks", daemon=True
                )
                self._thread.start()

    def _work(self) -> None:
        while True:
            callback, answer = self._queue.get()
            try:
                callback.run(answer)
            except BaseException:  # others wait in line, whatever this one meant to end
                log.exception("a callback of an answer raised")
            del callback, answer


_callbacks = _Callbacks()


def renew_callbacks() -> None:
    """After a fork, in the child: the thread is gone, and another may have held the lock."""
    global _callbacks, _deciding
    _callbacks = _Callbacks()
    _deciding = threading.RLock()
