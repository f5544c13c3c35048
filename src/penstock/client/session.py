"""One connection to one engine, and what is on its way.

Callers' threads lease slots (`allowance`), write their rows and send `Submit` (`send_piece`);
`reader` and `inbox` read what comes back, settle pieces and free their slots. A slot that was
submitted is free again only by its request's terminal message, whatever became of the caller
meanwhile. When the connection ends, every open call fails with `EngineClosed` and the segments are
abandoned.

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
import itertools
import os
import threading
import time
from collections import deque
from pathlib import Path

from penstock.client.allowance import Allowance, WouldBlock
from penstock.client.answer import Answer
from penstock.client.call import Call, Piece
from penstock.client.deadlines import Deadlines
from penstock.client.inbox import Inbox, Question
from penstock.client.kinds import Kind, Kinds
from penstock.client.outbox import Outbox
from penstock.client.reader import Reader
from penstock.client.waiting import Latch
from penstock.client.whole import INTERRUPTED, whole
from penstock.errors import DeadlineExceeded, EngineClosed, Overloaded, PenstockError, again
from penstock.transport import messages as m
from penstock.transport import rendezvous, wire
from penstock.transport.arena import Slot
from penstock.transport.channel import Channel, Closed, Flooded
from penstock.transport.layouts import LayoutNumbers
from penstock.transport.tensors import Array

_BACKLOG = 64 << 20
_TOGETHER = 16
_LARGE = 1 << 20  # bytes of a request that is not gathered with others: writing it took longer
_LONGEST_WAIT = 3_600_000_000_000  # nanoseconds


class NotAdmitted(EngineClosed):
    """The engine has ended the connection, and said why: trying again does not help."""


class Session:
    """A connected client, from `begin` on. Ended by `close` or by the engine."""

    def __init__(self, path: Path) -> None:
        self.pid = os.getpid()
        self.path = path
        self.kinds = Kinds()
        self.workers = 1
        self.queue_rows = 1
        self.greeted = False  # whether the engine has said how far it is
        self.closed: PenstockError | None = None
        self.state: tuple[int, int, str] = (m.STATE_LOADING, 0, "")
        self.usable = False  # connected, and the engine is ready
        self.pending: dict[int, Piece] = {}
        self.unanswered: set[Answer] = set()  # of whom somebody may still have to be told
        self.lock = threading.Lock()
        self._allowance = Allowance(self)
        self._numbers = itertools.count(1)
        self._layouts: LayoutNumbers[Kind] = LayoutNumbers()
        self._last_kind: Kind | None = None  # and its number: the same few come again and again
        self._last_layout = 0
        self._deadlines = Deadlines()
        self._change = Latch()
        self._change_awaited = False
        self._outbox = Outbox()
        self._dropped: deque[Call] = deque()  # of which the engine has not been told
        self._likely = 0  # requests that will be made at once: as many as were answered together
        sock = rendezvous.dial(path)
        try:
            self.channel = Channel(sock, _BACKLOG)
            self.inbox = Inbox(self)
            self.reader = Reader(self)
        except BaseException:
            sock.close()
            raise

    def begin(self, label: str) -> None:
        """Say hello, and read what the engine says from now on."""
        with contextlib.suppress(Closed):
            self.channel.send(wire.encode(m.Hello(m.VERSION, self.pid, label)))
        self.reader.start()

    def welcomed(self, record: m.Welcome) -> None:
        """The engine has said what this client may do; the lock is held."""
        self.workers = record.workers
        self.queue_rows = record.queue_rows
        self.kinds.memory = record.memory
        self._allowance.grant(record.memory, record.requests)

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
                leased = self._allowance.lease(call, size, window)
                if isinstance(leased, Slot):
                    break
                torn = False
                self._allowance.wait_for(leased, call, block)
                torn = True
            else:
                return
            piece = Piece(call, start, stop - start, leased, input_bytes)
            try:
                torn = False
                kind.plan.write(leased.block.memory.view, leased.offset, arrays, start, stop)
                torn = True
            except BaseException:
                torn = True
                with self.lock:
                    self._allowance.take_back((piece,))
                    self.tell_change()
                torn = False
                raise
            self._submit(piece)
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
        with self.lock:
            if self.closed is not None or call.over:
                self._allowance.take_back((piece,))
                self.tell_change()
                if self.closed is not None:
                    raise again(self.closed)
                return
            number = piece.number = next(self._numbers)
            try:
                layout = self._last_layout if kind is self._last_kind else self._layout_of(kind)
            except Overloaded:
                self._allowance.take_back((piece,))
                raise
            piece.slot.submit()
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
            self.send(wire.encode(m.Layout(layout, kind.model, kind.signature)))
        self._last_layout = layout
        self._last_kind = kind
        return layout

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
                self.send(message)
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
            self._allowance.take_back(pieces)
            self.tell_change()

    @whole
    def cancel(self, call: Call) -> None:
        """Nobody waits for this call any more. Its slots come back when the engine lets go.

        Takes no lock of ours: the garbage collector may run this, for a `map` that was let go, in
        the middle of anything. The thread tells the engine, or whoever says something before.
        """
        call.drop()
        self._dropped.append(call)
        self.reader.interrupt()

    def tell_dropped(self) -> None:
        """Tell the engine, and whoever sends them, which calls nobody waits for any more."""
        if self._dropped:
            with self.lock:
                self._tell_dropped()

    def _tell_dropped(self) -> None:
        numbers: list[int] = []
        while self._dropped:
            numbers += list(self._dropped.popleft().open_pieces)
        if self.closed is None and numbers:
            with contextlib.suppress(Overloaded):  # then the engine finds out for itself
                self._send_outbox()
                for data in wire.encode_items(m.Cancel, (n.to_bytes(8, "little") for n in numbers)):
                    self.send(data)
        self.tell_change()

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
            self._tell_dropped()
            token = next(self._numbers) & 0xFFFF_FFFF
            self.inbox.asked[token] = question
            self.send(wire.encode(m.Ask(token, what)))
        return token

    @whole
    def stop_engine(self, drain_seconds: float) -> None:
        """Ask the engine to end."""
        with self.lock:
            if self.closed is None:
                self._send_outbox()
                self._tell_dropped()
                self.send(wire.encode(m.Stop(drain_seconds)))

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        with self.lock:
            self.channel.flush()

    def send(self, data: bytes, descriptor: int = -1) -> None:
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
            self._allowance.abandon()
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
