"""The session that a client has just now, and how it comes to the next one.

Whoever finds none that is usable connects, again and again, until the engine is there and ready or
the time is up. Others who come meanwhile wait for that, as long as their deadlines let them; then
they use the same session, or fail as that attempt did.

A session is in a list from its first moment on, and in there it is found by whoever is left with
one: the next attempt after an interrupted one, `close`, a forked child, and the finalizer of a
client that was let go.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from penstock.client.inbox import error_of
from penstock.client.session import NotAdmitted, Session
from penstock.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineClosed,
    InputError,
    Overloaded,
    PenstockError,
    again,
)
from penstock.transport import messages as m

_RETRY_SECONDS = 0.02
_GREETING = 0.5  # seconds in which an engine that is there says how far it is


def _always() -> bool:
    return True


class Unanswered(EngineClosed):
    """Nobody has said anything in time: it tells less than what was said before."""


class Link:
    """What a client has of an engine: its address, and one session at a time."""

    def __init__(self, address: Path, wait: float, label: str) -> None:
        if wait != wait:
            raise InputError(f"wait: expected seconds, got {wait!r}")
        self.address = address
        self.wait = wait
        self.label = label
        self.current: Session | None = None  # it may have ended: look whether it is `usable`
        self._sessions: list[Session] = []  # the same, for the finalizer
        self._lock = threading.RLock()
        self._closed = False
        self._attempts = 0
        self._failure: PenstockError | None = None
        weakref.finalize(self, _let_go, self._sessions)

    def close(self) -> None:
        """End the session, if there is one, and make no other."""
        self._closed = True
        for session in list(self._sessions):  # somebody may just be waiting for it to be ready
            session.close_soon("the client was closed")
        with self._lock:
            _close_all(self._sessions)

    def session(self, deadline: int = 0, wanted: Callable[[], bool] = _always) -> Session:
        """The one that there is, or a new one, as long as that is wanted.

        Raises `EngineClosed`, `ModelLoadError`.
        """
        session = self.current
        if session is not None and session.usable:
            return session
        attempts = self._attempts
        patience = max(0, deadline - time.monotonic_ns()) / 1e9 if deadline else -1
        try:
            if not self._lock.acquire(timeout=patience):
                raise DeadlineExceeded("the deadline passed while another thread was connecting")
            return self._connected(attempts, deadline, wanted)
        finally:
            try:  # noqa: SIM105 (as in `Reader.wait_for`)
                self._lock.release()
            except RuntimeError:
                pass  # it is another's

    def _connected(self, attempts: int, deadline: int, wanted: Callable[[], bool]) -> Session:
        """The session that there is by now, or a new one; the lock is held."""
        session = self.current
        if session is not None and session.usable:
            return session
        if self._closed:
            raise EngineClosed("this client was closed")
        if sys.is_finalizing():  # a thread that is started now never runs
            raise EngineClosed("this process is ending: it cannot connect any more")
        if attempts != self._attempts and self._failure is not None:
            raise again(self._failure)  # another thread has tried while this one waited
        if session is not None and session.closed is None and session.busy:
            raise EngineClosed(f"the engine at {self.address} is shutting down")
        _close_all(self._sessions)
        try:
            session = self._open(deadline, wanted)
        except (DeadlineExceeded, Cancelled):
            raise  # that was this call's own: others may have more time
        except PenstockError as error:
            self._failure = again(error)
            self._attempts += 1
            raise
        self._failure = None
        self._attempts += 1
        self.current = session
        return session

    def _open(self, deadline: int, wanted: Callable[[], bool]) -> Session:
        """Connect, trying again until the engine is there and ready or the time is up."""
        patience = time.monotonic() + self.wait
        until = min(patience, deadline / 1e9) if deadline else patience
        greeted_by = time.monotonic() + _GREETING
        greeted_by = min(greeted_by, deadline / 1e9) if deadline else greeted_by
        told: tuple[str, BaseException | None] | None = None
        while True:
            if not wanted():
                raise Cancelled("this call was cancelled")
            try:
                return self._attempt(until, greeted_by, wanted)
            except NotAdmitted:
                raise
            except EngineClosed as error:
                # The last attempt may have had too little time for an answer.
                if told is None or not isinstance(error, Unanswered):
                    told = str(error), error.__cause__
                text, cause = told
                late = time.monotonic() + _RETRY_SECONDS >= until
                if late and until < patience:
                    text = f"the deadline passed before there was a connection: {text}"
                    raise DeadlineExceeded(text) from None
                if late or self._closed:
                    raise EngineClosed(text) from cause
                time.sleep(_RETRY_SECONDS)

    def _attempt(self, until: float, greeted_by: float, wanted: Callable[[], bool]) -> Session:
        """Connect and wait until the engine can answer; closed again when that fails."""
        label = self.label or f"pid {os.getpid()}"
        try:
            session = Session(self.address)
        except OSError as error:
            raise _too_many(error, "files", "-n") from None
        self._sessions.append(session)
        try:
            if self._closed:
                raise EngineClosed("this client was closed")
            try:
                session.begin(label)
            except RuntimeError as error:
                raise _too_many(error, "threads", "-u") from None
            _wait_until_ready(session, until, greeted_by, wanted)
        except BaseException:
            session.close()
            self._sessions.remove(session)
            raise
        return session

    def abandon_in_child(self) -> None:
        """After a fork, in the child: the session is the parent's; whoever asks gets another."""
        self._lock = threading.RLock()
        for session in self._sessions:
            session.abandon_in_child()
        self._sessions.clear()
        self.current = None


def _too_many(error: Exception, what: str, option: str) -> Overloaded:
    return Overloaded(
        f"this process cannot connect: {error} (may it have more {what}: ulimit {option}?)"
    )


def _wait_until_ready(
    session: Session, until: float, greeted_by: float, wanted: Callable[[], bool]
) -> None:
    """Wait for what the engine says of itself. Raises `EngineClosed`, `ModelLoadError`."""
    while True:
        with session.lock:
            state, kind, text = session.state
            failure = session.closed
            change = session.await_change()
        left = (until if session.greeted else max(until, greeted_by)) - time.monotonic()
        if state != m.STATE_LOADING or failure is not None or left <= 0 or not wanted():
            break
        change.wait(left)
    if state == m.STATE_READY and failure is None:
        return
    if state == m.STATE_FAILED:
        raise error_of(kind, text)
    if state == m.STATE_CLOSING:
        raise EngineClosed(f"the engine at {session.path} is shutting down")
    if failure is not None:
        raise again(failure)
    if not session.greeted:
        raise Unanswered(f"the engine at {session.path} does not answer")
    raise EngineClosed(f"the engine at {session.path} is still loading its models")


def _close_all(sessions: list[Session]) -> None:
    while sessions:
        sessions[-1].close()
        sessions.pop()


def _let_go(sessions: list[Session]) -> None:
    for session in sessions:
        session.close_soon("the client was let go")
