"""One connection to one engine: slots, credits, and what is on its way.

Callers' threads lease slots, write their rows and send `Submit` (`send_piece`); `reader` and
`inbox` read what comes back, settle pieces and free their slots. A slot that was submitted is free
again only by its request's terminal message, whatever became of the caller meanwhile. When the
connection ends, every open call fails with `EngineClosed` and the segments are abandoned.

Requests that are made while others are on their way, or after several answers came together, are
gathered and sent together: when the caller waits for an answer, when there are enough of them, or
after half a millisecond (five, where callers have always waited before that).

One lock guards everything that both sides touch. Whoever waits for a slot, a credit or the engine's
state is told of each change. It is never held while rows are copied or answers are resolved.

A caller may be interrupted anywhere (Ctrl-C). While it waits or copies rows, that costs its own
call only; in the middle of the bookkeeping it ends the session, as if the engine had gone.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
import time
from pathlib import Path

from penstock.client.answer import Answer
from penstock.client.call import Call, Piece
from penstock.client.deadlines import Deadlines
from penstock.client.inbox import Inbox, Question, error_of
from penstock.client.kinds import Kind, Kinds
from penstock.client.outbox import Outbox
from penstock.client.reader import Reader
from penstock.client.waiting import Latch
from penstock.client.whole import INTERRUPTED, whole
from penstock.errors import (
    ConfigError,
    DeadlineExceeded,
    EngineClosed,
    InputError,
    Overloaded,
    PenstockError,
    again,
)
from penstock.transport import messages as m
from penstock.transport import rendezvous, segment, wire
from penstock.transport.arena import Arena, Slot, TooLarge
from penstock.transport.channel import Channel, Closed, Flooded
from penstock.transport.layouts import LayoutNumbers
from penstock.transport.tensors import Array

_BACKLOG = 64 << 20
_TOGETHER = 16
_LARGE = 1 << 20  # bytes of a request that is not gathered with others: writing it took longer
_LONGEST_WAIT = 3_600_000_000_000  # nanoseconds


class NotAdmitted(EngineClosed):
    """The engine has ended the connection, and said why: trying again does not help."""


class WouldBlock(Exception):
    """There is no slot or credit free just now."""


class Unanswered(EngineClosed):
    """Nobody has said anything in time: it tells less than what was said before."""


class Session:
    """A connected client. Made by `Session.open`, ended by `close` or by the engine."""

    def __init__(self, path: Path) -> None:
        self.pid = os.getpid()
        self.path = path
        self.kinds = Kinds()
        self.workers = 1
        self._greeted = False
        self.closed: PenstockError | None = None
        self.state: tuple[int, int, str] = (m.STATE_LOADING, 0, "")
        self.usable = False  # connected, and the engine is ready
        self.pending: dict[int, Piece] = {}
        self.unanswered: set[Answer] = set()  # of whom somebody may still have to be told
        self.lock = threading.Lock()
        self._arena: Arena[segment.Mapping] = Arena(0, self._add_segment, self._drop_segment)
        self._credits = 0
        self._numbers = itertools.count(1)
        self._layouts: LayoutNumbers[Kind] = LayoutNumbers()
        self._last_kind: Kind | None = None  # and its number: the same few come again and again
        self._last_layout = 0
        self._deadlines = Deadlines()
        self._change = Latch()
        self._change_awaited = False
        self._writing = 0  # slots that callers are writing just now
        self._outbox = Outbox()
        self._likely = 0  # requests that will be made at once: as many as were answered together
        sock = rendezvous.dial(path)
        try:
            self.channel = Channel(sock, _BACKLOG)
            self.inbox = Inbox(self)
            self.reader = Reader(self)
        except BaseException:
            sock.close()
            raise

    @classmethod
    def open(cls, path: Path, label: str, until: float, sessions: list[Session]) -> Session:
        """Connect and wait until the engine can answer. Raises `EngineClosed`, `ModelLoadError`.

        The new one is among `sessions` from its first moment on, to be closed by whoever is left
        with it when this is interrupted.
        """
        session = cls(path)
        sessions.append(session)
        try:
            session._begin(label, until)
        except BaseException:
            session.close()
            sessions.remove(session)
            raise
        return session

    def _begin(self, label: str, until: float) -> None:
        with contextlib.suppress(Closed):
            self.channel.send(wire.encode(m.Hello(m.VERSION, self.pid, label)))
        self.reader.start()
        while True:
            with self.lock:
                state, kind, text = self.state
                failure = self.closed
                change = self.await_change()
            left = until - time.monotonic()
            if state != m.STATE_LOADING or failure is not None or left <= 0:
                break
            change.wait(left)
        if state == m.STATE_READY and failure is None:
            return
        if state == m.STATE_FAILED:
            raise error_of(kind, text)
        if state == m.STATE_CLOSING:
            raise EngineClosed(f"the engine at {self.path} is shutting down")
        if failure is not None:
            raise again(failure)
        if not self._greeted:
            raise Unanswered(f"the engine at {self.path} does not answer")
        raise EngineClosed(f"the engine at {self.path} is still loading its models")

    def welcomed(self, record: m.Welcome) -> None:
        """The engine has said what this client may do; the lock is held."""
        self._greeted = True
        self.workers = record.workers
        self._arena.limit = self.kinds.memory = record.memory
        self._credits = record.requests

    def rejected(self, reason: str) -> None:
        """The engine's last word; the lock is held."""
        self.usable = False
        self.closed = NotAdmitted(f"the engine ended the connection: {reason}")

    @property
    def gathered(self) -> int:
        """Requests that were made and not sent yet."""
        return self._outbox.requests

    @property
    def busy(self) -> bool:
        """Whether an answer is on its way."""
        return bool(self.pending)

    def close(self) -> None:
        """End the connection; open calls fail with `EngineClosed`."""
        self.close_soon("the client was closed")
        self.reader.join(5)

    def close_soon(self, reason: str) -> None:
        """End the connection, from wherever the garbage collector runs: takes no lock of ours."""
        if self.closed is None:
            self.closed = EngineClosed(reason)
        self.usable = False
        self.reader.interrupt()

    def await_change(self) -> Latch:
        """Opens at the next change; the lock is held."""
        self._change_awaited = True
        return self._change

    def tell_change(self) -> None:
        """Tell whoever waits for a slot, a credit or the engine's state; the lock is held."""
        if self._change_awaited:
            change, self._change, self._change_awaited = self._change, Latch(), False
            change.open()

    # ── sending ────────────────────────────────────────────────────────────────────────────────

    def send_piece(
        self,
        call: Call,
        arrays: list[Array],
        start: int,
        stop: int,
        window: int,
        block: bool = True,
    ) -> None:
        """Write these rows into a slot and submit them; waits for a slot until the deadline."""
        kind = call.kind
        input_bytes, size = kind.slot_sizes(arrays, start, stop)
        torn = True  # whether an interrupt, just now, leaves something half done
        try:
            while not call.over:
                slot, change = self._lease(call, size, window)
                if slot is not None:
                    break
                torn = False
                self._wait_for_change(call, change, block)
                torn = True
            else:
                return
            try:
                torn = False
                kind.plan.write(slot.block.memory.view, slot.offset, arrays, start, stop)
                torn = True
            except BaseException:
                torn = True
                self._take_back(slot)
                torn = False
                raise
            self._submit(Piece(call, start, stop - start, slot, input_bytes))
        except (PenstockError, WouldBlock):
            raise
        except BaseException:
            if torn:
                self.closed = self.closed or INTERRUPTED
                self.usable = False
                self.reader.interrupt()
            raise
        self.reader.sent(self._outbox.requests > 0)

    def _submit(self, piece: Piece) -> None:
        call = piece.call
        kind = call.kind
        slot = piece.slot
        with self.lock:
            self._writing -= 1
            if self.closed is not None or call.over:
                self._arena.free(slot)
                if self.closed is not None:
                    raise again(self.closed)
                return
            number = piece.number = next(self._numbers)
            layout = self._last_layout if kind is self._last_kind else self._layout_of(kind)
            slot.submit()
            self.pending[number] = call.open_pieces[number] = piece
            self._outbox.add(piece, layout)
            self._likely -= 1
            gathered = self._outbox.requests
            alone = gathered == len(self.pending) and self._likely <= 0
            if alone or gathered >= _TOGETHER or piece.input_bytes >= _LARGE:
                self._send_outbox()

    def _layout_of(self, kind: Kind) -> int:
        """The number under which the engine knows this kind; the lock is held."""
        layout, new = self._layouts.number(kind)
        if new:
            self._last_kind = None
            self._send_outbox()  # what is gathered may use the number's old meaning
            self._send(wire.encode(m.Layout(layout, kind.model, kind.signature)))
        self._last_layout = layout
        self._last_kind = kind
        return layout

    def _take_back(self, slot: Slot[segment.Mapping]) -> None:
        """A slot that was leased is not needed after all."""
        with self.lock:
            self._writing -= 1
            self._arena.free(slot)
            self.tell_change()

    def send_outbox(self) -> None:
        """Send the requests that were gathered: somebody waits for them, or has waited."""
        if self._outbox.requests:
            self._send_gathered()

    @whole
    def _send_gathered(self) -> None:
        with self.lock:
            if self.closed is None:
                self._send_outbox()

    def _send_outbox(self) -> None:
        """Send what was gathered; the lock is held. Never twice, wherever this is interrupted."""
        if self._outbox.requests:
            message, requests = self._outbox.take()
            try:
                self._send(message)
            except Overloaded:
                self._outbox.give_back(message, requests)
                raise

    def free(self, pieces: list[Piece]) -> None:
        """The requests of these pieces have ended: their slots may be used again."""
        with self.lock:
            self._likely = len(pieces)
            for piece in pieces:
                self.pending.pop(piece.number, None)
                piece.call.open_pieces.pop(piece.number, None)
                self._arena.free(piece.slot)
            self.tell_change()

    @whole
    def cancel(self, call: Call) -> None:
        """Nobody waits for this call any more. Its slots come back when the engine lets go."""
        call.drop()
        with self.lock:
            numbers = list(call.open_pieces)
            if self.closed is None and numbers:
                with contextlib.suppress(Overloaded):  # then the engine finds out for itself
                    self._send_outbox()
                    for data in wire.encode_items(
                        m.Cancel, (n.to_bytes(8, "little") for n in numbers)
                    ):
                        self._send(data)
            self.tell_change()
        self.reader.interrupt()

    def ask(self, timeout: float, what: int = m.ASK_STATISTICS) -> bytes:
        """What the engine tells of itself, as it sends it."""
        until = time.monotonic() + timeout
        question = Question()
        token = self._ask(question, what)
        try:
            while question.answer is None:
                left = until - time.monotonic()
                if self.closed is not None:
                    raise again(self.closed)
                if left <= 0:
                    raise DeadlineExceeded(f"the engine did not answer within {timeout:g} s")
                self.reader.need_thread()
                question.arrived.wait(left)
        finally:
            self.inbox.asked.pop(token, None)
        return question.answer

    @whole
    def _ask(self, question: Question, what: int) -> int:
        with self.lock:
            if self.closed is not None:
                raise again(self.closed)
            token = next(self._numbers) & 0xFFFF_FFFF
            self.inbox.asked[token] = question
            self._send(wire.encode(m.Ask(token, what)))
        return token

    @whole
    def stop_engine(self, drain_seconds: float) -> None:
        """Ask the engine to end."""
        with self.lock:
            if self.closed is None:
                self._send_outbox()
                self._send(wire.encode(m.Stop(drain_seconds)))

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        with self.lock:
            self.channel.flush()

    def _lease(
        self, call: Call, size: int, window: int
    ) -> tuple[Slot[segment.Mapping] | None, Latch]:
        """A slot, if there are one, a credit and room in the call's window; else what to await."""
        with self.lock:
            if self.closed is not None:
                raise again(self.closed)
            slot = None
            if len(self.pending) + self._writing < self._credits and len(call.open_pieces) < window:
                try:
                    slot = self._arena.lease(size)
                except TooLarge:
                    raise InputError(
                        f"these rows need {size} bytes of shared memory with their answer; "
                        f"the engine lets a client hold {self._arena.limit} (client_memory)"
                    ) from None
                except OSError as error:
                    raise _no_memory(size, error) from None
            if slot is None:
                return None, self.await_change()
            self._writing += 1
            return slot, self._change

    def _wait_for_change(self, call: Call, change: Latch, block: bool) -> None:
        """There is no slot for this call: wait until there may be one."""
        if not block:
            raise WouldBlock
        left = (call.deadline - time.monotonic_ns()) / 1e9 if call.deadline else None
        if left is not None and left <= 0:
            raise DeadlineExceeded("no slot became free before the deadline")
        self.send_outbox()
        self.reader.need_thread()
        change.wait(left)

    def _add_segment(self, number: int, size: int) -> segment.Mapping:
        descriptor = segment.create(size)
        try:
            mapping = segment.Mapping(descriptor, size)
            self._send(wire.encode(m.AddSegment(number, size)), descriptor)
        finally:
            os.close(descriptor)
        return mapping

    def _drop_segment(self, number: int, mapping: segment.Mapping) -> None:
        self._send(wire.encode(m.DropSegment(number)))
        mapping.close()

    def _send(self, data: bytes, descriptor: int = -1) -> None:
        """Send or keep for later; the lock is held. A broken connection is the reader's news."""
        try:
            self.channel.send(data, (descriptor,) if descriptor >= 0 else ())
        except Closed:
            return
        except Flooded as error:
            raise Overloaded(f"the engine does not read: {error}") from None
        if self.channel.wants_write:
            self.reader.interrupt()

    # ── deadlines and the end ──────────────────────────────────────────────────────────────────

    def watch(self, call: Call) -> None:
        """Let this call fail when its deadline passes, whatever the engine does."""
        with self.lock:
            first = self._deadlines.add(call, len(self.pending))
        if first:
            self.reader.interrupt()

    def until_deadline(self) -> int | None:
        """Nanoseconds until the next call expires."""
        if not self._deadlines:
            return None
        with self.lock:
            first = self._deadlines.first()
        if first is None:
            return None
        return min(max(0, first - time.monotonic_ns() + 1_000_000), _LONGEST_WAIT)

    def expire(self) -> None:
        """Fail the calls whose deadline has passed."""
        if not self._deadlines:
            return
        with self.lock:
            late = self._deadlines.pop_late(time.monotonic_ns())
        for call in late:
            if not call.over:
                call.give_up(DeadlineExceeded("the deadline passed before the answer was there"))
                self.cancel(call)

    def end(self, reason: PenstockError) -> None:
        """The connection is over: tell everybody who waits, and never use the memory again.

        Runs in the reader's thread, which nobody interrupts.
        """
        with self.lock:
            reason = self.closed = self.closed or reason
            self.usable = False
            self._arena.abandon()
            pieces = list(self.pending.values())
            self.pending.clear()
            self.tell_change()
        for piece in pieces:
            piece.call.open_pieces.clear()  # the memory goes, however long the answer is kept
        for answer in list(self.unanswered):
            answer.end(again(reason))
        for question in list(self.inbox.asked.values()):
            question.arrived.open()

    def abandon_in_child(self) -> None:
        """After a fork, in the child: the connection and its memory are the parent's."""
        self.closed = EngineClosed("this connection belongs to the parent process")
        self.usable = False
        self.channel.close()
        self.reader.abandon_in_child()


def _no_memory(size: int, error: OSError) -> PenstockError:
    if error.errno == errno.EFBIG:  # waiting does not help
        return ConfigError(
            f"no shared memory for {size} bytes: this process may make no files of that size, "
            "and memory that is shared counts as one; raise its limit (ulimit -f)"
        )
    return Overloaded(f"no shared memory for {size} bytes: {error}")
