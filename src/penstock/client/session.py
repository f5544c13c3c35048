"""One connection to one engine: slots, credits, and the thread that reads.

Callers' threads lease slots, write their rows and send `Submit` (`send_piece`); one thread of the
session's reads what comes back, settles pieces and frees their slots. A slot that was submitted is
free again only by its request's terminal message, whatever became of the caller meanwhile. When the
connection ends, every open call fails with `EngineClosed` and the segments are abandoned.

One lock guards everything that both sides touch; `changed` is notified when a slot, a credit or the
engine's state changes. Never held while rows are copied or answers are resolved.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from penstock.client.call import Call, Piece
from penstock.errors import (
    DeadlineExceeded,
    EngineClosed,
    InputError,
    Overloaded,
    PenstockError,
    from_message,
)
from penstock.spec import ModelSpec, Signature
from penstock.transport import messages as m
from penstock.transport import rendezvous, segment
from penstock.transport.arena import Arena, Slot, TooLarge
from penstock.transport.channel import Channel, Closed, Flooded, Oversized
from penstock.transport.layouts import LayoutNumbers
from penstock.transport.tensors import Array, BadBlock, Plan, align, answer_room, plan_of

_BACKLOG = 64 << 20
_FIRST_ROOM = 64


class WouldBlock(Exception):
    """There is no slot or credit free just now."""


class ModelInfo:
    """A model as the engine described it."""

    def __init__(self, number: int, name: str, max_batch: int, batched: bool) -> None:
        self.number = number
        self.name = name
        self.max_batch = max_batch
        self.batched = batched
        self.spec = ModelSpec()


class Session:
    """A connected client. Made by `Session.open`, ended by `close` or by the engine."""

    def __init__(self, path: Path) -> None:
        self.pid = os.getpid()
        self.path = path
        self.models: dict[int, ModelInfo] = {}
        self.workers = 1
        self.closed: PenstockError | None = None
        self.engine_pid = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._channel = Channel(rendezvous.dial(path), _BACKLOG)
        self._arena: Arena[segment.Mapping] = Arena(0, self._add_segment, self._drop_segment)
        self._credits = 0
        self._pending: dict[int, Piece] = {}
        self._numbers = itertools.count(1)
        self._layouts: LayoutNumbers[tuple[int, Signature]] = LayoutNumbers()
        self._output_layouts: dict[int, Signature] = {}
        self._rooms: OrderedDict[tuple[int, Signature], int] = OrderedDict()
        self._deadlines: list[tuple[int, int, Call]] = []
        self._asked: dict[int, tuple[list[bytes], Future[bytes]]] = {}
        self._state = (m.STATE_LOADING, 0, "")
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._reader = threading.Thread(target=self._read, name="penstock-reader", daemon=True)

    @classmethod
    def open(cls, path: Path, label: str, until: float) -> Session:
        """Connect and wait until the engine can answer. Raises `EngineClosed`, `ModelLoadError`."""
        session = cls(path)
        session._channel.send(m.encode(m.Hello(m.VERSION, session.pid, label)))
        session._reader.start()
        with session._changed:
            session._changed.wait_for(
                lambda: session._state[0] != m.STATE_LOADING or session.closed is not None,
                max(0.0, until - time.monotonic()),
            )
            state, kind, text = session._state
            failure = session.closed
        if state == m.STATE_READY and failure is None:
            return session
        session.close()
        if state == m.STATE_FAILED:
            raise _error(kind, text)
        if state == m.STATE_CLOSING:
            raise EngineClosed(f"the engine at {path} is shutting down")
        raise failure or EngineClosed(f"the engine at {path} is still loading its models")

    @property
    def usable(self) -> bool:
        """Whether calls can be made: connected, by this very process, to an engine that works."""
        return self.closed is None and self.pid == os.getpid() and self._state[0] == m.STATE_READY

    def close(self) -> None:
        """End the connection; open calls fail with `EngineClosed`."""
        self._end(EngineClosed("the client was closed"))
        if threading.current_thread() is not self._reader and self._reader.is_alive():
            self._reader.join(5)

    # ── callers' side ──────────────────────────────────────────────────────────────────────────

    def send_piece(
        self,
        call: Call,
        key: tuple[int, Signature],
        plan: Plan,
        arrays: list[Array],
        start: int,
        stop: int,
        window: int,
        block: bool = True,
    ) -> None:
        """Write these rows into a slot and submit them; waits for a slot until the deadline."""
        input_bytes = plan.size(arrays, start, stop)
        room = self._rooms.get(key, _FIRST_ROOM) * (stop - start)
        size = align(input_bytes) + align(room)
        with self._lock:
            slot = self._lease(call, size, window, block)
        if slot is None:
            return
        piece = Piece(call, start, stop - start, slot, input_bytes)
        try:
            plan.write(slot.block.memory.view, slot.offset, arrays, start, stop)
        except BaseException:
            with self._changed:
                self._arena.free(slot)
                self._changed.notify_all()
            raise
        with self._lock:
            if self.closed is not None or call.over:
                self._arena.free(slot)
                return
            number = piece.number = next(self._numbers)
            layout, new = self._layouts.number(key)
            if new:
                self._send(m.encode(m.Layout(layout, *key)))
            slot.submit()
            self._pending[number] = call.open_pieces[number] = piece
            self._send(
                b"\5"
                + m.SUBMIT_ITEM.pack(
                    number,
                    slot.block.number,
                    layout,
                    slot.offset,
                    slot.size,
                    input_bytes,
                    stop - start,
                    call.priority,
                    0,
                    call.deadline,
                )
            )

    def watch(self, call: Call) -> None:
        """Let this call fail when its deadline passes, whatever the engine does."""
        with self._lock:
            if len(self._deadlines) > 256 and len(self._deadlines) > 4 * len(self._pending):
                self._deadlines = [entry for entry in self._deadlines if not entry[2].over]
                heapq.heapify(self._deadlines)
            heapq.heappush(self._deadlines, (call.deadline, id(call), call))
            first = self._deadlines[0][2] is call
        if first:
            self._wake_reader()

    def cancel(self, call: Call) -> None:
        """Nobody waits for this call any more. Its slots come back when the engine lets go."""
        call.over = True
        with self._lock:
            numbers = list(call.open_pieces)
            if self.closed is None and numbers:
                for data in m.encode_items(m.Cancel, (n.to_bytes(8, "little") for n in numbers)):
                    self._send(data)
            self._changed.notify_all()

    def ask(self, timeout: float) -> bytes:
        """The engine's statistics, as it sends them."""
        future: Future[bytes] = Future()
        with self._lock:
            if self.closed is not None:
                raise self.closed
            token = next(self._numbers) & 0xFFFF_FFFF
            self._asked[token] = ([], future)
            self._send(m.encode(m.Ask(token)))
        return future.result(timeout)

    def stop_engine(self, drain_seconds: float) -> None:
        """Ask the engine to end."""
        with self._lock:
            if self.closed is None:
                self._send(m.encode(m.Stop(drain_seconds)))

    def _lease(
        self, call: Call, size: int, window: int, block: bool
    ) -> Slot[segment.Mapping] | None:
        """A slot, when there are one, a credit and room in the call's window; the lock is held."""
        while True:
            if self.closed is not None:
                raise self.closed
            if call.over:
                return None
            if len(self._pending) < self._credits and len(call.open_pieces) < window:
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
                    return slot
            if not block:
                raise WouldBlock
            left = (call.deadline - time.monotonic_ns()) / 1e9 if call.deadline else None
            if left is not None and left <= 0:
                raise DeadlineExceeded("no slot became free before the deadline")
            self._changed.wait(left)

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
        with contextlib.suppress(Closed):
            try:
                self._channel.send(data, (descriptor,) if descriptor >= 0 else ())
            except Flooded as error:
                raise Overloaded(f"the engine does not read: {error}") from None
            if self._channel.wants_write:
                self._wake_reader()

    def _wake_reader(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)

    # ── the reading thread ─────────────────────────────────────────────────────────────────────

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        reason = EngineClosed(f"the engine at {self.path} is gone")
        try:
            while self.closed is None:
                poll.poll(self._until_deadline())
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                if self._channel.wants_write:
                    with self._lock:
                        more = self._channel.flush()
                    wanted = select.POLLIN | select.POLLOUT if more else select.POLLIN
                    poll.modify(self._channel.fileno(), wanted)
                while (received := self._channel.receive()) is not None:
                    self._take(*received)
                self._expire()
        except Closed:
            pass
        except (m.Malformed, Oversized) as error:
            reason = EngineClosed(f"the engine at {self.path} does not speak our protocol: {error}")
        finally:
            self._end(reason)
            self._channel.close()
            os.close(self._wake)

    def _take(self, data: bytes, descriptors: list[int]) -> None:
        record = m.decode(data)
        try:
            self._handle(record, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _handle(self, record: Any, descriptors: list[int]) -> None:
        if isinstance(record, m.Done):
            self._done(record.items)
        elif isinstance(record, m.Part):
            for piece in self._pieces([record.request]):
                descriptor = descriptors.pop() if descriptors else -1
                piece.parts.append((record, descriptor))
        elif isinstance(record, m.RowFailed):
            for piece in self._pieces([record.request]):
                error = _error(record.kind, record.text)
                piece.failures.append((record.start, record.rows, error))
        elif isinstance(record, (m.Failed, m.Refused)):
            pieces = self._pieces([record.request])
            self._free(pieces)
            for piece in pieces:
                piece.call.fail(piece.start, piece.rows, _error(record.kind, record.text))
        elif isinstance(record, m.Cancelled):
            pieces = self._pieces([number for (number,) in record.items])
            for piece in pieces:
                self._close_parts(piece)
            self._free(pieces)
        elif isinstance(record, m.OutputLayout):
            self._output_layouts[record.layout] = record.tensors
        elif isinstance(record, m.Answer):
            self._answer(record)
        else:
            self._about_engine(record)

    def _about_engine(self, record: object) -> None:
        with self._changed:
            if isinstance(record, m.Welcome):
                self.engine_pid = record.engine_pid
                self.workers = record.workers
                self._arena.limit = record.memory
                self._credits = record.requests
            elif isinstance(record, m.ModelCard):
                self.models[record.model] = ModelInfo(
                    record.model, record.name, record.max_batch, bool(record.batched)
                )
            elif isinstance(record, m.CardTensors):
                spec = self.models[record.model].spec
                self.models[record.model].spec = (
                    ModelSpec(spec.inputs, record.tensors)
                    if record.side
                    else ModelSpec(record.tensors, spec.outputs)
                )
            elif isinstance(record, m.State):
                self._state = record
            elif isinstance(record, m.Rejected):
                self.closed = EngineClosed(f"the engine ended the connection: {record.text}")
            self._changed.notify_all()

    def _done(self, items: list[tuple[int, int]]) -> None:
        pieces = self._pieces([number for number, _ in items])
        answers: list[tuple[Piece, Signature, list[Array]]] = []
        for piece, (_, layout) in zip(pieces, items, strict=True):
            if layout == 0:
                self._collect_parts(piece)
            else:
                signature = self._output_layouts[layout]
                arrays = self._read_slot(piece, signature, 0, piece.rows)
                if arrays is not None:
                    answers.append((piece, signature, arrays))
        self._free(pieces)
        for piece, signature, arrays in answers:
            piece.call.put(piece.start, signature, arrays)

    def _pieces(self, numbers: list[int]) -> list[Piece]:
        """The pieces of these numbers; none when the session was closed a moment ago."""
        try:
            return [self._pending[number] for number in numbers]
        except KeyError:
            if self.closed is None:
                raise m.Malformed("an answer to a request that was not made") from None
            raise Closed from None

    def _collect_parts(self, piece: Piece) -> None:
        for part, descriptor in piece.parts:
            signature = self._output_layouts[part.layout]
            if descriptor < 0:
                arrays = self._read_slot(piece, signature, part.start, part.rows)
            else:
                arrays = self._read_segment(piece, signature, part, descriptor)
            if arrays is not None:
                piece.call.put(piece.start + part.start, signature, arrays)
        piece.parts = []
        for start, count, error in piece.failures:
            piece.call.fail(piece.start + start, count, error)

    def _read_slot(
        self, piece: Piece, signature: Signature, start: int, count: int
    ) -> list[Array] | None:
        begin, end = answer_room(
            piece.offset, piece.length, piece.input_bytes, piece.rows, start, count
        )
        return self._copy(piece, signature, piece.slot.block.memory.view, begin, end, start, count)

    def _read_segment(
        self, piece: Piece, signature: Signature, part: m.Part, descriptor: int
    ) -> list[Array] | None:
        try:
            mapping = segment.Mapping(descriptor, part.size)
        finally:
            os.close(descriptor)
        with contextlib.closing(mapping):
            self._learn_room(piece, part.size, part.rows)
            return self._copy(piece, signature, mapping.view, 0, part.size, part.start, part.rows)

    def _copy(
        self,
        piece: Piece,
        signature: Signature,
        view: memoryview,
        begin: int,
        end: int,
        start: int,
        count: int,
    ) -> list[Array] | None:
        try:
            return plan_of(signature).read(view, begin, end, count, 0, count)
        except BadBlock as error:
            broken = PenstockError(f"the answer cannot be read: {error}")
            piece.call.fail(piece.start + start, count, broken)
            return None

    def _learn_room(self, piece: Piece, size: int, rows: int) -> None:
        """Answers of this kind did not fit: leave room for them in the slots to come."""
        key = (piece.call.model, piece.call.inputs)
        needed = -(-size // max(rows, 1))
        if self._rooms.get(key, 0) < needed:
            self._rooms[key] = needed
            if len(self._rooms) > 4096:
                self._rooms.popitem(last=False)

    def _free(self, pieces: list[Piece]) -> None:
        with self._changed:
            for piece in pieces:
                self._pending.pop(piece.number, None)
                piece.call.open_pieces.pop(piece.number, None)
                self._arena.free(piece.slot)
            self._changed.notify_all()

    def _answer(self, record: m.Answer) -> None:
        with self._lock:
            chunks, future = self._asked[record.token]
            if record.last:
                del self._asked[record.token]
        chunks.append(record.data)
        if record.last:
            future.set_result(b"".join(chunks))

    def _until_deadline(self) -> int | None:
        with self._lock:
            if not self._deadlines:
                return None
            left = self._deadlines[0][0] - time.monotonic_ns()
        return max(0, left // 1_000_000 + 1)

    def _expire(self) -> None:
        now = time.monotonic_ns()
        late: list[Call] = []
        with self._lock:
            while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].over):
                late.append(heapq.heappop(self._deadlines)[2])
        for call in late:
            if not call.over:
                call.give_up(DeadlineExceeded("the deadline passed before the answer was there"))
                self.cancel(call)

    def _close_parts(self, piece: Piece) -> None:
        for _, descriptor in piece.parts:
            if descriptor >= 0:
                os.close(descriptor)
        piece.parts = []

    def _end(self, reason: PenstockError) -> None:
        with self._changed:
            if self.closed is None:
                self.closed = reason
            reason = self.closed
            if self._arena.abandoned:
                return
            for _ in self._arena.abandon():
                pass  # each mapping goes with the last slot that a caller still writes
            pieces = list(self._pending.values())
            self._pending.clear()
            asked = [future for _, future in self._asked.values()]
            self._asked.clear()
            self._changed.notify_all()
        self._wake_reader()
        for piece in pieces:
            self._close_parts(piece)
            piece.call.give_up(reason)
        for future in asked:
            future.set_exception(reason)

    def abandon_in_child(self) -> None:
        """After a fork, in the child: the connection and its memory are the parent's."""
        self.closed = EngineClosed("this connection belongs to the parent process")
        self._channel.close()
        os.close(self._wake)
        self._arena.each_memory(segment.Mapping.abandon_in_child)


def _error(kind: int, text: str) -> PenstockError:
    message, _, remote = text.partition("\0")
    return from_message(kind, message, remote)
