"""Who reads the connection: the caller that waits, or a thread when nobody does.

Handing an answer from one thread to another costs more than everything else that a client does, so
a caller that waits for its answer reads the connection itself (it *leads*), and settles what comes
for others on the way. A thread of the session's stands by for all other times::

    thread reads ──a waiting caller was served, no other waits──▶ callers read
         ▲                                                            │
         └── nobody led for a moment (timer), several callers wait, ──┘
             a callback or a coroutine waits, a deadline passes

`charge` is held by whoever reads. Callers that cannot lead because it is held wait for their future
in the ordinary way. The timer runs whenever an answer is on its way and nobody reads, so none stays
unread for longer than `_GRACE`.

An exception that is raised into the leading thread (Ctrl-C) while it handles messages ends the
session: every open call is told, none is lost.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import TYPE_CHECKING, Protocol

from penstock.client.signals import Bell, Timer
from penstock.errors import EngineClosed
from penstock.transport.channel import Closed, Oversized
from penstock.transport.messages import Malformed

if TYPE_CHECKING:
    from penstock.client.answer import Answer
    from penstock.client.session import Session

_GRACE = 5_000_000  # nanoseconds
_GATHER = 500_000
_AWAKE = 250_000
_MOST_SLEEPS = 127
_AT_ONCE = 64
_READ = select.POLLIN
_READ_WRITE = select.POLLIN | select.POLLOUT


class HasFileno(Protocol):
    """Anything that can be polled."""

    def fileno(self) -> int:
        """Its descriptor."""


class Reader:
    """Reads one session's connection, one way or the other."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._channel = session.channel
        self._charge = threading.Lock()
        self._waiting: set[Answer] = set()
        self._timer = Timer(_GRACE)
        self._send_timer = Timer(_GATHER)
        self._thread_bell = Bell()
        self._leader_bell = Bell()
        self._signals = (self._thread_bell, self._leader_bell, self._timer, self._send_timer)
        self._parked = False
        self._sleeps = 0  # how often to sleep at once before staying awake is tried again
        self._vain = 0
        self._leader_poll = _poll_on(self._channel, self._leader_bell)
        self.thread = threading.Thread(target=self._run, name="penstock-reader", daemon=True)

    def start(self) -> None:
        """Start the thread, which reads first."""
        self._charge.acquire()
        self.thread.start()

    # ── callers ────────────────────────────────────────────────────────────────────────────────

    def wait_for(self, answer: Answer, timeout: float | None) -> None:
        """Lead until this answer is there, if nobody else reads; else let the caller wait."""
        if not self._charge.acquire(blocking=False):
            return
        try:
            self._timer.stop()
            self._send_timer.stop()
            self._session.send_outbox()
            self._lead(answer, timeout)
        finally:
            self._charge.release()
            if self._waiting or self._session.closed is not None:
                self.need_thread()
            elif self._session.busy:
                self._timer.set()

    def follow(self, answer: Answer) -> None:
        """A caller waits for this answer in the ordinary way."""
        self._session.send_outbox()
        self._waiting.add(answer)

    def unfollow(self, answer: Answer) -> None:
        """It does not any more."""
        self._waiting.discard(answer)

    def sent(self, gathered: bool) -> None:
        """A request was made: its answer must be read soon, by whomever, and it must be sent soon
        if it was only `gathered`."""
        if gathered:
            self._send_timer.set()
        elif self._parked:
            self._timer.set()

    def need_thread(self) -> None:
        """Somebody waits who cannot read: let the thread do it from now on."""
        if self._parked:
            self._thread_bell.ring()

    def interrupt(self) -> None:
        """Whoever reads shall look around: there is something to write, or to give up."""
        self._leader_bell.ring()
        self._thread_bell.ring()

    def _lead(self, answer: Answer, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic_ns() + int(timeout * 1e9)
        session = self._session
        while not answer.over and session.closed is None:
            left = session.until_deadline()
            if until is not None:
                remaining = until - time.monotonic_ns()
                if remaining <= 0:
                    return
                left = remaining if left is None else min(left, remaining)
            self._stay_awake()
            self._wait(self._leader_poll, left, self._leader_bell)
            self._take_guarded()

    def _stay_awake(self) -> None:
        """Look for the answer for a moment before going to sleep, if that has helped lately.

        Waking a sleeping core costs more than most of the way of a request. Others that want the
        core get it.
        """
        if self._sleeps:
            self._sleeps -= 1
            return
        until = time.monotonic_ns() + _AWAKE
        while not self._leader_poll.poll(0):
            if time.monotonic_ns() > until:
                self._vain = min(2 * self._vain + 1, _MOST_SLEEPS)
                self._sleeps = self._vain
                return
            os.sched_yield()
        self._vain = 0

    def _take_guarded(self) -> None:
        try:
            self._take(1)
        except BaseException as error:
            if isinstance(error, Closed):
                self._session.end(self._gone())
                return
            text = f"the connection was given up: {type(error).__name__} while it was read"
            self._session.end(EngineClosed(text))
            raise

    # ── the thread ─────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        reason = self._gone()
        reading = _poll_on(self._channel, self._thread_bell, self._send_timer)
        parking = _poll_on(self._timer, self._thread_bell, self._send_timer)
        try:
            while self._session.closed is None:
                if self._parked:
                    self._park(parking)
                else:
                    self._read(reading)
        except Closed:
            pass
        except (Malformed, Oversized) as error:
            reason = EngineClosed(f"the engine does not speak our protocol: {error}")
        finally:
            self._session.end(reason)
            self.interrupt()
            if self._parked:
                self._charge.acquire()  # a leader leaves when it sees that the session has ended
            self._channel.end()
            for signal in self._signals:
                signal.close()

    def _read(self, reading: select.poll) -> None:
        self._wait(reading, self._session.until_deadline(), self._thread_bell)
        self._take()
        waiting = list(self._waiting)
        if waiting and all(answer.done() for answer in waiting):
            self._parked = True
            self._charge.release()
            self._timer.set()

    def _park(self, parking: select.poll) -> None:
        left = self._session.until_deadline()
        ready = [fd for fd, _ in parking.poll(None if left is None else left / 1e6)]
        self._send_late(ready)
        if ready == [self._send_timer.fileno()]:
            self._timer.set()
            return
        self._timer.clear()
        self._thread_bell.clear()
        if self._charge.acquire(blocking=False):
            self._parked = False

    def _send_late(self, ready: list[int]) -> None:
        if self._send_timer.fileno() in ready:
            self._send_timer.clear()
            self._session.send_outbox()

    def _wait(self, poll: select.poll, nanoseconds: int | None, bell: Bell) -> None:
        """Wait for the connection, the bell, or a deadline."""
        writing = self._channel.wants_write
        if writing:
            poll.modify(self._channel, _READ_WRITE)
        ready = poll.poll(None if nanoseconds is None else nanoseconds / 1e6)
        if writing:
            poll.modify(self._channel, _READ)
        for descriptor, _ in ready:
            if descriptor == bell.fileno():
                bell.clear()
            elif descriptor == self._send_timer.fileno():
                self._send_late([descriptor])

    def _take(self, most: int = _AT_ONCE) -> None:
        """What has come: write what waits, handle messages, expire calls."""
        session = self._session
        if self._channel.wants_write:
            session.flush()
        while most and (received := self._channel.receive()) is not None:
            session.inbox.take(*received)
            most -= 1
        session.expire()

    def _gone(self) -> EngineClosed:
        return EngineClosed(f"the engine at {self._session.path} is gone")

    def abandon_in_child(self) -> None:
        """After a fork, in the child: these are the parent's."""
        for signal in self._signals:
            signal.close_in_child()


def _poll_on(*sources: HasFileno) -> select.poll:
    poll = select.poll()
    for source in sources:
        poll.register(source, _READ)
    return poll
