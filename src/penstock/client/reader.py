"""Who reads the connection: the caller that waits, or a thread when nobody does.

Handing an answer from one thread to another costs more than everything else that a client does, so
a caller that waits for its answer reads the connection itself (it *leads*), and settles what comes
for others on the way. A thread of the session's stands by for all other times::

    thread reads ──a waiting caller was served, no other waits──▶ callers read
         ▲                                                            │
         └── nobody led for a moment (timer), several callers wait, ──┘
             a callback or a coroutine waits, a deadline passes

`charge` is held by whoever reads. Callers that cannot lead because it is held wait for their answer
(they *follow*). The timer runs whenever an answer is on its way and nobody reads, so none stays
unread for longer than `_GRACE`.

A caller may be interrupted anywhere (Ctrl-C), the thread never is. An interrupt while the caller
waits costs that one call; one while it handles messages ends the session: the thread then tells
every open call, none is lost. While something is on its way, whoever waits looks around once a
second.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import threading
import time
from typing import TYPE_CHECKING, Protocol

from penstock.client.signals import Bell, Timer
from penstock.client.waiting import LOOK_UP
from penstock.client.whole import INTERRUPTED, interrupts_as_such
from penstock.errors import EngineClosed, PenstockError
from penstock.transport.channel import Closed, Oversized, Stripped
from penstock.transport.vigil import Vigil
from penstock.transport.wire import Malformed

if TYPE_CHECKING:
    from penstock.client.answer import Answer
    from penstock.client.session import Session

_GRACE = 5_000_000  # nanoseconds
_GATHER = 500_000
_PROMPT = 32  # times in a row
_AWAKE = 250_000
_AT_ONCE = 64
_LOOK_UP = int(LOOK_UP * 1e9)
_READ = select.POLLIN
_READ_WRITE = select.POLLIN | select.POLLOUT
_BROKEN = (Closed, Malformed, Oversized)
_NO_VIGIL = Vigil(0)

Polls = tuple[select.poll, select.poll]  # without and with room to write in the connection


class HasFileno(Protocol):
    """Anything that can be polled."""

    def fileno(self) -> int:
        """Its descriptor."""


class Reader:
    """Reads one session's connection, one way or the other."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._channel = session.channel
        self._charge = threading.RLock()
        self._torn = False  # whether an interrupt of the leader leaves something half done just now
        self._waiting: set[Answer] = set()
        self._parked = False
        self._vigil = Vigil(_AWAKE)  # the leader's
        self._prompt = 0  # how often in a row callers waited before gathered requests had to leave
        self._turns = itertools.count()
        self.thread = threading.Thread(target=self._run, name="penstock-reader", daemon=True)
        with contextlib.ExitStack() as made:  # closes what there is when this is interrupted
            self._timer = made.enter_context(contextlib.closing(Timer(_GRACE)))
            self._send_timer = made.enter_context(contextlib.closing(Timer(_GATHER)))
            self._thread_bell = made.enter_context(contextlib.closing(Bell()))
            self._leader_bell = made.enter_context(contextlib.closing(Bell()))
            self._leader_polls = _polls_on(self._channel, self._leader_bell)
            self._signals = made.pop_all()

    def start(self) -> None:
        """Start the thread, which reads first."""
        with interrupts_as_such():
            self.thread.start()

    def join(self, seconds: float) -> None:
        """The session is closed: wait until the thread has seen to everything."""
        if next(self._turns) == 0:
            self._close()  # its start was interrupted: if it begins after all, it finds itself late
        elif self.thread is not threading.current_thread() and self.thread.is_alive():
            self.thread.join(seconds)

    # ── callers ────────────────────────────────────────────────────────────────────────────────

    def wait_for(self, answer: Answer, timeout: float | None) -> None:
        """Lead until this answer is there, if nobody else reads; else let the caller follow."""
        session = self._session
        leads = False
        try:
            if self._charge.acquire(blocking=False):
                leads = self._torn = True
                self._timer.stop()
                self._prompt += self._send_timer.stop()
                session.send_outbox()
                self._lead(answer, timeout)
        except PenstockError:
            raise
        except BaseException:
            if leads and self._torn:
                session.closed = session.closed or INTERRUPTED
                session.usable = False
            raise
        finally:
            try:
                if leads and session.busy:
                    self._timer.set()  # before the charge is free: then nobody reads
            finally:
                try:  # noqa: SIM105 (another interrupt may come with the next call but this)
                    self._charge.release()
                except RuntimeError:
                    pass  # it is another's
            if self._waiting or session.closed is not None:
                self.need_thread()

    def follow(self, answer: Answer, timeout: float | None) -> None:
        """Wait for this answer, which another reads, for a moment."""
        self._session.send_outbox()
        self._waiting.add(answer)
        arrived = answer.arrived  # made before one looks whether it is needed
        try:
            if not answer.done():
                arrived.wait(timeout)
        finally:
            self._waiting.discard(answer)

    def sent(self, gathered: bool) -> None:
        """A request was made: its answer must be read soon, by whomever, and it must be sent soon
        if it was only `gathered`.

        Where callers have always come to wait in time, as in a loop, the longer timer is enough.
        """
        if gathered and (self._prompt < _PROMPT or not self._parked):
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
        """Reads at least once: who asks again and again with no time must get its answer, too."""
        until = None if timeout is None else time.monotonic_ns() + int(timeout * 1e9)
        session = self._session
        late = False
        while not (answer.over or late) and session.closed is None:
            left = self._until_deadline()
            if until is not None:
                remaining = max(until - time.monotonic_ns(), 0)
                late = remaining == 0
                left = remaining if left is None else min(left, remaining)
            self._torn = False
            self._wait(self._leader_polls, left, self._leader_bell, self._vigil)
            self._torn = True
            try:
                self._take(1)
            except _BROKEN as error:
                if session.closed is None:
                    session.closed = self._reason(error)  # the thread sees to the rest

    # ── the thread ─────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        if next(self._turns):
            return  # see `join`
        reason = self._reason(None)
        self._charge.acquire()
        reading = _polls_on(self._channel, self._thread_bell, self._send_timer)
        parking = _poll_on(self._timer, self._thread_bell, self._send_timer)
        try:
            while self._session.closed is None:
                self._session.tell_dropped()
                if self._parked:
                    self._park(parking)
                else:
                    self._read(reading)
        except _BROKEN as error:
            reason = self._reason(error)
        finally:
            self._session.end(reason)
            self.interrupt()
            if self._parked:
                self._charge.acquire()  # a leader leaves when it sees that the session has ended
            self._close()

    def _close(self) -> None:
        self._channel.end()
        self._signals.close()

    def _read(self, reading: Polls) -> None:
        self._wait(reading, self._until_deadline(), self._thread_bell)
        self._take()
        waiting = list(self._waiting)
        if waiting and all(answer.done() for answer in waiting):
            self._waiting.difference_update(waiting)
            self._parked = True
            self._charge.release()
            self._timer.set()

    def _park(self, parking: select.poll) -> None:
        left = self._until_deadline()
        ready = [fd for fd, _ in parking.poll(None if left is None else left / 1e6)]
        self._send_late(ready)
        if ready == [self._send_timer.fileno()]:
            self._timer.set()
            return
        self._timer.clear()
        self._thread_bell.clear()
        if self._charge.acquire(blocking=False):
            self._parked = False
        self._send_unawaited()  # after that: `sent` looks whether the thread is parked, then leaves

    def _send_late(self, ready: list[int]) -> None:
        if self._send_timer.fileno() in ready:
            self._send_timer.clear()
            self._send_unawaited()

    def _send_unawaited(self) -> None:
        """Nobody has come to wait for the requests that are still gathered."""
        if self._session.gathered:
            self._prompt = 0
            self._session.send_outbox()

    def _until_deadline(self) -> int | None:
        """How long one may wait without looking around, in nanoseconds."""
        left = self._session.until_deadline()
        if self._session.busy:
            return _LOOK_UP if left is None else min(left, _LOOK_UP)
        return left

    def _wait(
        self, polls: Polls, nanoseconds: int | None, bell: Bell, vigil: Vigil = _NO_VIGIL
    ) -> None:
        """Wait for the connection, the bell, or a deadline."""
        poll = polls[self._channel.wants_write].poll
        most = None if nanoseconds is None else nanoseconds / 1e6
        for descriptor, _ in vigil.keep(poll, nanoseconds) or poll(most):
            if descriptor == bell.fileno():
                bell.clear()
            elif descriptor == self._send_timer.fileno():
                self._send_late([descriptor])

    def _take(self, most: int = _AT_ONCE) -> None:
        """What has come: write what waits, handle messages, expire calls."""
        session = self._session
        if self._channel.wants_write:
            session.flush()
        while most:
            most -= 1
            try:
                received = self._channel.receive()
            except Stripped as lost:
                session.inbox.take_stripped(lost)
                continue
            if received is None:
                break
            session.inbox.take(*received)
        session.expire()

    def _reason(self, error: Exception | None) -> EngineClosed:
        """Why the connection is over."""
        if error is None or isinstance(error, Closed):
            return EngineClosed(f"the engine at {self._session.path} is gone")
        if isinstance(error, Oversized):
            return EngineClosed(f"what the engine sent cannot be received: {error}")
        return EngineClosed(f"the engine does not speak our protocol: {error}")

    def abandon_in_child(self) -> None:
        """After a fork, in the child: these are the parent's."""
        for signal in (self._timer, self._send_timer, self._thread_bell, self._leader_bell):
            signal.close_in_child()


def _polls_on(channel: HasFileno, *others: HasFileno) -> Polls:
    polls = _poll_on(channel, *others), _poll_on(channel, *others)
    polls[1].modify(channel, _READ_WRITE)
    return polls


def _poll_on(*sources: HasFileno) -> select.poll:
    poll = select.poll()
    for source in sources:
        poll.register(source, _READ)
    return poll
