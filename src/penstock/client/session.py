"""One connection to one engine: slots, credits, and what is on its way.

Callers' threads lease slots, write their rows and send `Submit` (`send_piece`); `reader` and
`inbox` read what comes back, settle pieces and free their slots. A slot that was submitted is free
again only by its request's terminal message, whatever became of the caller meanwhile. When the
connection ends, every open call fails with `EngineClosed` and the segments are abandoned.

Requests that are made while others are on their way are gathered and sent together: when the caller
waits for an answer, when there are enough of them, or after half a millisecond.

One lock guards everything that both sides touch; `changed` is notified when a slot, a credit or the
engine's state changes. Never held while rows are copied or answers are resolved.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

from penstock.client.call import Call, Piece
from penstock.client.inbox import Inbox, error_of
from penstock.client.kinds import Kind, Kinds
from penstock.client.reader import Reader
from penstock.errors import (
    DeadlineExceeded,
    EngineClosed,
    InputError,
    Overloaded,
    PenstockError,
    again,
)
from penstock.transport import messages as m
from penstock.transport import rendezvous, segment
from penstock.transport.arena import Arena, Slot, TooLarge
from penstock.transport.channel import Channel, Closed, Flooded
from penstock.transport.layouts import LayoutNumbers
from penstock.transport.tensors import Array

_BACKLOG = 64 << 20
_SUBMIT = b"\5"
_TOGETHER = 16
_LONGEST_WAIT = 3_600_000_000_000  # nanoseconds


class NotAdmitted(EngineClosed):
    """The engine has ended the connection, and said why: trying again does not help."""


class WouldBlock(Exception):
    """There is no slot or credit free just now."""


class Session:
    """A connected client. Made by `Session.open`, ended by `close` or by the engine."""

    def __init__(self, path: Path) -> None:
        self.pid = os.getpid()
        self.path = path
        self.kinds = Kinds()
        self.workers = 1
        self.closed: PenstockError | None = None
        self.state: tuple[int, int, str] = (m.STATE_LOADING, 0, "")
        self.usable = False  # connected, and the engine is ready
        self.pending: dict[int, Piece] = {}
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.channel = Channel(rendezvous.dial(path), _BACKLOG)
        self.inbox = Inbox(self)
        self.reader = Reader(self)
        self._arena: Arena[segment.Mapping] = Arena(0, self._add_segment, self._drop_segment)
        self._credits = 0
        self._numbers = itertools.count(1)
        self._layouts: LayoutNumbers[Kind] = LayoutNumbers()
        self._deadlines: list[tuple[int, int, Call]] = []
        self._waiters = 0
        self._writing = 0  # slots that callers are writing just now
        self._outbox: list[bytes] = []  # requests to be sent together

    @classmethod
    def open(cls, path: Path, label: str, until: float) -> Session:
        """Connect and wait until the engine can answer. Raises `EngineClosed`, `ModelLoadError`."""
        session = cls(path)
        with contextlib.suppress(Closed):
            session.channel.send(m.encode(m.Hello(m.VERSION, session.pid, label)))
        session.reader.start()
        with session.changed:
            session.changed.wait_for(
                lambda: session.state[0] != m.STATE_LOADING or session.closed is not None,
                max(0.0, until - time.monotonic()),
            )
            state, kind, text = session.state
            failure = session.closed
        if state == m.STATE_READY and failure is None:
            return session
        session.close()
        if state == m.STATE_FAILED:
            raise error_of(kind, text)
        if state == m.STATE_CLOSING:
            raise EngineClosed(f"the engine at {path} is shutting down")
        raise (
            again(failure)
            if failure
            else EngineClosed(f"the engine at {path} is still loading its models")
        )

    def welcomed(self, record: m.Welcome) -> None:
        """The engine has said what this client may do; the lock is held."""
        self.workers = record.workers
        self._arena.limit = self.kinds.memory = record.memory
        self._credits = record.requests

    def rejected(self, reason: str) -> None:
        """The engine's last word; the lock is held."""
        self.usable = False
        self.closed = NotAdmitted(f"the engine ended the connection: {reason}")

    @property
    def busy(self) -> bool:
        """Whether an answer is on its way."""
        return bool(self.pending)

    def close(self) -> None:
        """End the connection; open calls fail with `EngineClosed`."""
        self.end(EngineClosed("the client was closed"))
        thread = self.reader.thread
        if thread is not threading.current_thread() and thread.is_alive():
            thread.join(5)

    def close_soon(self) -> None:
        """End the connection, from wherever the garbage collector runs: takes no lock of ours."""
        if self.closed is None:
            self.closed = EngineClosed("the client was let go")
        self.usable = False
        self.reader.interrupt()

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
        rows = stop - start
        plan = kind.plan
        input_bytes, size = kind.slot_sizes(arrays, start, stop)
        with self.lock:
            slot = self._lease(call, size, window, block)
        if slot is None:
            return
        try:
            plan.write(slot.block.memory.view, slot.offset, arrays, start, stop)
        except BaseException:
            with self.changed:
                self._writing -= 1
                self._arena.free(slot)
                self.changed.notify_all()
            raise
        piece = Piece(call, start, rows, slot, input_bytes)
        with self.lock:
            self._writing -= 1
            if self.closed is not None or call.over:
                self._arena.free(slot)
                if self.closed is not None:
                    raise again(self.closed)
                return
            number = piece.number = next(self._numbers)
            layout, new = self._layouts.number(kind)
            if new:
                self._send_outbox()  # what is gathered may use the number's old meaning
                self._send(m.encode(m.Layout(layout, kind.model, kind.signature)))
            slot.submit()
            self.pending[number] = call.open_pieces[number] = piece
            self._outbox.append(
                m.SUBMIT_ITEM.pack(
                    number,
                    slot.block.number,
                    layout,
                    slot.offset,
                    slot.size,
                    input_bytes,
                    rows,
                    call.priority,
                    0,
                    call.deadline,
                )
            )
            if len(self.pending) == len(self._outbox) or len(self._outbox) >= _TOGETHER:
                self._send_outbox()
        self.reader.sent(bool(self._outbox))

    def send_outbox(self) -> None:
        """Send the requests that were gathered: somebody waits for them, or has waited."""
        if self._outbox:
            with self.lock:
                self._send_outbox()

    def _send_outbox(self) -> None:
        if self._outbox:
            data = _SUBMIT + b"".join(self._outbox)
            self._outbox.clear()
            self._send(data)

    def free(self, pieces: list[Piece]) -> None:
        """The requests of these pieces have ended: their slots may be used again."""
        with self.lock:
            for piece in pieces:
                self.pending.pop(piece.number, None)
                piece.call.open_pieces.pop(piece.number, None)
                self._arena.free(piece.slot)
            if self._waiters:
                self.changed.notify_all()

    def cancel(self, call: Call) -> None:
        """Nobody waits for this call any more. Its slots come back when the engine lets go."""
        call.drop()
        with self.changed:
            numbers = list(call.open_pieces)
            if self.closed is None and numbers:
                self._send_outbox()
                for data in m.encode_items(m.Cancel, (n.to_bytes(8, "little") for n in numbers)):
                    self._send(data)
            self.changed.notify_all()
        self.reader.interrupt()

    def ask(self, timeout: float) -> bytes:
        """The engine's statistics, as it sends them."""
        future: Future[bytes] = Future()
        with self.lock:
            if self.closed is not None:
                raise again(self.closed)
            token = next(self._numbers) & 0xFFFF_FFFF
            self.inbox.asked[token] = ([], future)
            self._send(m.encode(m.Ask(token)))
        self.reader.need_thread()
        try:
            return future.result(timeout)
        except FutureTimeoutError:
            self.inbox.asked.pop(token, None)
            raise DeadlineExceeded(f"the engine did not answer within {timeout:g} s") from None

    def stop_engine(self, drain_seconds: float) -> None:
        """Ask the engine to end."""
        with self.lock:
            if self.closed is None:
                self._send_outbox()
                self._send(m.encode(m.Stop(drain_seconds)))

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        with self.lock:
            self.channel.flush()

    def _lease(
        self, call: Call, size: int, window: int, block: bool
    ) -> Slot[segment.Mapping] | None:
        """A slot, when there are one, a credit and room in the call's window; the lock is held."""
        while True:
            if self.closed is not None:
                raise again(self.closed)
            if call.over:
                return None
            if len(self.pending) + self._writing < self._credits and len(call.open_pieces) < window:
                try:
                    slot = self._arena.lease(size)
                except TooLarge:
                    raise InputError(
                        f"these rows need {size} bytes of shared memory with their answer; "
                        f"the engine lets a client hold {self._arena.limit} (client_memory)"
                    ) from None
                except OSError as error:
                    raise Overloaded(f"no shared memory for {size} bytes: {error}") from None
                if slot is not None:
                    self._writing += 1
                    return slot
            if not block:
                raise WouldBlock
            left = (call.deadline - time.monotonic_ns()) / 1e9 if call.deadline else None
            if left is not None and left <= 0:
                raise DeadlineExceeded("no slot became free before the deadline")
            self._send_outbox()
            self.reader.need_thread()
            self._waiters += 1
            try:
                self.changed.wait(left)
            finally:
                self._waiters -= 1

    def _add_segment(self, number: int, size: int) -> segment.Mapping:
        descriptor = segment.create(size)
        try:
            mapping = segment.Mapping(descriptor, size)
            self._send(m.encode(m.AddSegment(number, size)), descriptor)
        finally:
            os.close(descriptor)
        return mapping

    def _drop_segment(self, number: int, mapping: segment.Mapping) -> None:
        self._send(m.encode(m.DropSegment(number)))
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
            if len(self._deadlines) > 256 and len(self._deadlines) > 4 * len(self.pending):
                self._deadlines = [entry for entry in self._deadlines if not entry[2].over]
                heapq.heapify(self._deadlines)
            heapq.heappush(self._deadlines, (call.deadline, id(call), call))
            first = self._deadlines[0][2] is call
        if first:
            self.reader.interrupt()

    def until_deadline(self) -> int | None:
        """Nanoseconds until the next call expires."""
        if not self._deadlines:
            return None
        with self.lock:
            if not self._deadlines:
                return None
            left = self._deadlines[0][0] - time.monotonic_ns() + 1_000_000
        return min(max(0, left), _LONGEST_WAIT)

    def expire(self) -> None:
        """Fail the calls whose deadline has passed."""
        if not self._deadlines:
            return
        now = time.monotonic_ns()
        late: list[Call] = []
        with self.lock:
            while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].over):
                late.append(heapq.heappop(self._deadlines)[2])
        for call in late:
            if not call.over:
                call.give_up(DeadlineExceeded("the deadline passed before the answer was there"))
                self.cancel(call)

    def end(self, reason: PenstockError) -> None:
        """The connection is over: tell everybody who waits, and never use the memory again."""
        with self.changed:
            if self.closed is None:
                self.closed = reason
            if self._arena.abandoned:
                return
            reason = self.closed
            self._arena.abandon()
            self.usable = False
            pieces = list(self.pending.values())
            self.pending.clear()
            asked = [future for _, future in self.inbox.asked.values()]
            self.inbox.asked.clear()
            self.changed.notify_all()
        self.reader.interrupt()
        for piece in pieces:
            piece.close_parts()
            piece.call.open_pieces.clear()  # the memory goes, however long the answer is kept
            piece.call.give_up(again(reason))
        for future in asked:
            future.set_exception(again(reason))

    def abandon_in_child(self) -> None:
        """After a fork, in the child: the connection and its memory are the parent's."""
        self.closed = EngineClosed("this connection belongs to the parent process")
        self.usable = False
        self.channel.close()
        self.reader.abandon_in_child()
