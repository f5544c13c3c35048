"""The future that a caller holds, and where its callbacks run.

Callbacks run in a thread of their own, never in the one that reads the connection: a callback that
calls `predict` would otherwise wait for an answer that nobody can read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any

from penstock.errors import Cancelled, EngineClosed

if TYPE_CHECKING:
    from penstock.client.call import Call
    from penstock.client.session import Session

log = logging.getLogger("penstock.client")


class Answer(Future[Any]):
    """A `concurrent.futures.Future` whose `cancel` reaches the engine."""

    def __init__(self, session: Session, call: Call, keep: Any) -> None:
        super().__init__()
        self._session = session
        self._call = call
        self._keep = keep  # the client lives at least as long as its answers

    def cancel(self) -> bool:
        """Lose interest. True unless the answer is there already; the engine drops the request."""
        was_cancelled = self.cancelled()
        if not super().cancel():
            return False
        if not was_cancelled:
            with contextlib.suppress(InvalidStateError, RuntimeError):
                self.set_running_or_notify_cancel()
            if self._session.pid == os.getpid():
                self._session.cancel(self._call)
        return True

    def result(self, timeout: float | None = None) -> Any:
        """The answer, or the error, when it is there."""
        try:
            return super().result(self._wait(timeout))
        except CancelledError:
            raise Cancelled("this call was cancelled") from None
        finally:
            del self  # an error points to this frame, and this frame would point to the error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or `None`, when the answer is there."""
        try:
            return super().exception(self._wait(timeout))
        except CancelledError:
            raise Cancelled("this call was cancelled") from None

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Call `fn(answer)` when it is done, in a thread that may call `predict` again."""
        if self.done():
            super().add_done_callback(fn)
        else:
            super().add_done_callback(lambda answer: _callbacks.run(fn, answer))
            self._waited_for()

    @property
    def over(self) -> bool:
        """Whether the answer is there, or about to be: nothing more needs to be read for it."""
        return self._call.over

    def add_quick_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Call `fn(answer)` in the thread that reads: it must not wait for anything."""
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
        with contextlib.suppress(InvalidStateError):
            if error is None:
                self.set_result(value)
            else:
                self.set_exception(error)

    def _wait(self, timeout: float | None) -> float | None:
        """Wait for the answer, reading the connection if nobody else does; returns what is left."""
        if self.done():
            return timeout
        if self._session.pid != os.getpid():
            raise EngineClosed(
                "this call was made before the process forked: its answer goes to the parent"
            )
        until = None if timeout is None else time.monotonic() + timeout
        reader = self._session.reader
        reader.wait_for(self, timeout)
        if not self.done():
            reader.follow(self)
            try:
                left = None if until is None else max(0.0, until - time.monotonic())
                with contextlib.suppress(FutureTimeoutError, CancelledError):
                    super().exception(left)
            finally:
                reader.unfollow(self)
        return None if until is None else 0.0


class _Callbacks:
    """A thread for callbacks, started when the first one comes."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[[Any], object], Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, fn: Callable[[Any], object], answer: Any) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="penstock-callbacks", daemon=True
                )
                self._thread.start()
        self._queue.put((fn, answer))

    def _work(self) -> None:
        while True:
            fn, answer = self._queue.get()
            try:
                fn(answer)
            except Exception:
                log.exception("a callback of an answer raised")
            del fn, answer


_callbacks = _Callbacks()


def renew_callbacks() -> None:
    """After a fork, in the child: the thread is gone."""
    global _callbacks
    _callbacks = _Callbacks()
