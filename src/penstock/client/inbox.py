"""What the engine sends, and what follows from it for a session's calls.

Runs in whichever thread reads (see `reader`), one message at a time. Answers are copied out of
their slots first, then the slots are freed, then the callers are told.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from typing import TYPE_CHECKING, Any

from penstock.client.call import Call, Piece, unreadable
from penstock.client.kinds import ModelInfo
from penstock.client.waiting import Latch
from penstock.errors import Overloaded, PenstockError, from_message
from penstock.spec import ModelSpec, Signature, pads_of
from penstock.transport import messages as m
from penstock.transport import segment, wire
from penstock.transport.channel import Closed, Stripped
from penstock.transport.tensors import Array, BadBlock, Plan, align, answer_room, plan_of

if TYPE_CHECKING:
    from penstock.client.session import Session

_DONE = 27


class Question:
    """What somebody asked the engine, and the answer as far as it is there."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.answer: bytes | None = None
        self.arrived = Latch()


class Inbox:
    """Handles the engine's messages."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pending = session.pending
        self._layouts: dict[int, Plan] = {}
        self.asked: dict[int, Question] = {}

    def take(self, data: bytes, descriptors: list[int]) -> None:
        """One message. Raises `Malformed` for what an engine does not send."""
        try:
            if data[0] == _DONE:
                self._done(list(m.DONE_ITEM.iter_unpack(memoryview(data)[1:])))
            else:
                self._handle(wire.decode(data), descriptors)
        except (KeyError, struct.error) as error:
            raise wire.Malformed(f"a message that does not fit: {error!r}") from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def take_stripped(self, lost: Stripped) -> None:
        """A message whose descriptor this process could not take: that answer is lost, no other."""
        record = wire.decode(lost.data)
        if not isinstance(record, m.Part):
            raise lost
        error = Overloaded(f"the answer is lost, it cannot be taken just now: {lost}")
        piece = self._piece(record.request)
        piece.call.kind.learn_room(record.size, record.rows)  # the next one needs no descriptor
        piece.failures.append((record.start, record.rows, error))

    def _handle(self, record: Any, descriptors: list[int]) -> None:
        if isinstance(record, m.Part):
            self._part(self._piece(record.request), record, descriptors)
        elif isinstance(record, m.RowFailed):
            error = error_of(record.kind, record.text)
            self._piece(record.request).failures.append((record.start, record.rows, error))
        elif isinstance(record, (m.Failed, m.Refused)):
            piece = self._piece(record.request)
            self._session.free([piece])
            piece.call.fail(piece.start, piece.rows, error_of(record.kind, record.text))
        elif isinstance(record, m.Cancelled):
            self._session.free([self._piece(number) for (number,) in record.items])
        elif isinstance(record, m.OutputLayout):
            self._layouts[record.layout] = plan_of(record.tensors)
        elif isinstance(record, m.Answer):
            self._answer(record)
        else:
            self._about_engine(record)

    def _piece(self, number: int) -> Piece:
        piece = self._pending.get(number)
        if piece is None:
            if self._session.closed is not None:
                raise Closed("the session was closed a moment ago")
            raise wire.Malformed(f"an answer to request {number}, which was not made")
        return piece

    def _done(self, items: list[tuple[int, int]]) -> None:
        pieces: list[Piece] = []
        values: list[tuple[Call, Array]] = []  # of calls that are answered as a whole: the usual
        answers: list[tuple[Piece, int, Signature, list[Array]]] = []
        failures: list[tuple[Piece, int, int, PenstockError]] = []
        for number, layout in items:
            piece = self._pending.get(number) or self._piece(number)
            pieces.append(piece)
            if layout == 0:
                answers += [(piece, *part) for part in piece.parts]
                failures += [(piece, *failure) for failure in piece.failures]
                continue
            plan = self._layouts[layout]
            call = piece.call
            if plan.bare and piece.rows == call.rows and not call.trims:
                try:
                    values.append((call, _single(piece, plan)))
                    continue
                except (BadBlock, MemoryError):
                    pass  # told below
            arrays = self._read_slot(piece, plan, 0, piece.rows)
            if arrays is not None:
                answers.append((piece, 0, plan.signature, arrays))
        self._session.free(pieces)
        for call, value in values:
            call.put_whole(value)
        for piece, start, signature, arrays in answers:
            piece.call.put(piece.start + start, signature, arrays)
        for piece, start, rows, error in failures:
            piece.call.fail(piece.start + start, rows, error)

    def _part(self, piece: Piece, part: m.Part, descriptors: list[int]) -> None:
        """Rows that were answered otherwise: read now, told with their request's end.

        By then the layout's number may mean something else, and a process may have no more
        descriptors open than so many.
        """
        plan = self._layouts[part.layout]
        if descriptors:
            arrays = self._read_segment(piece, plan, part, descriptors.pop())
        else:
            arrays = self._read_slot(piece, plan, part.start, part.rows)
        if arrays is not None:
            piece.parts.append((part.start, plan.signature, arrays))

    def _read_slot(self, piece: Piece, plan: Plan, start: int, rows: int) -> list[Array] | None:
        begin, end = answer_room(
            piece.offset, piece.length, piece.input_bytes, piece.rows, start, rows
        )
        return self._copy(piece, plan, piece.slot.block.memory.view, begin, end, start, rows)

    def _read_segment(
        self, piece: Piece, plan: Plan, part: m.Part, descriptor: int
    ) -> list[Array] | None:
        try:
            mapping = segment.Mapping(descriptor, part.size)
        except OSError as error:
            piece.call.fail(piece.start + part.start, part.rows, unreadable(error))
            return None
        finally:
            os.close(descriptor)
        with contextlib.closing(mapping):
            piece.call.kind.learn_room(part.size, part.rows)
            return self._copy(piece, plan, mapping.view, 0, part.size, part.start, part.rows)

    def _copy(
        self,
        piece: Piece,
        plan: Plan,
        view: memoryview,
        begin: int,
        end: int,
        start: int,
        rows: int,
    ) -> list[Array] | None:
        try:
            return plan.read(view, begin, end, rows, 0, rows)
        except (BadBlock, MemoryError) as error:
            piece.call.fail(piece.start + start, rows, unreadable(error))
            return None

    def _answer(self, record: m.Answer) -> None:
        question = self.asked.get(record.token)
        if question is None:
            return  # whoever asked did not wait for the answer
        question.chunks.append(record.data)
        if record.last:
            question.answer = b"".join(question.chunks)
            question.arrived.open()

    def _about_engine(self, record: Any) -> None:
        session = self._session
        models = session.kinds.models
        with session.lock:
            if isinstance(record, m.Welcome):
                session.welcomed(record)
            elif isinstance(record, m.ModelCard):
                models[record.model] = ModelInfo(
                    record.model,
                    record.name,
                    record.max_batch,
                    bool(record.batched),
                    record.request_rows,
                )
            elif isinstance(record, m.CardTensors):
                spec = models[record.model].spec
                models[record.model].spec = (
                    ModelSpec(spec.inputs, record.tensors)
                    if record.side
                    else ModelSpec(record.tensors, spec.outputs)
                )
            elif isinstance(record, m.CardPads):
                models[record.model].pads = pads_of(json.loads(record.data))
            elif isinstance(record, m.State):
                session.state = record
                session.greeted = True
                session.usable = record.state == m.STATE_READY and session.closed is None
            elif isinstance(record, m.Rejected):
                session.rejected(record.text)
            else:
                raise wire.Malformed(f"{type(record).__name__} is nothing that an engine sends")
            session.tell_change()


def _single(piece: Piece, plan: Plan) -> Array:
    """The answer to all rows of a piece, one tensor."""
    slot = piece.slot
    begin = slot.offset + align(piece.input_bytes)
    return plan.read_single(slot.block.memory.view, begin, slot.offset + slot.size, piece.rows)


def error_of(kind: int, text: str) -> PenstockError:
    """The error that a message describes."""
    message, _, remote = text.partition("\0")
    return from_message(kind, message, remote)
