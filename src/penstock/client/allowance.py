"""What a client may have on its way at a time: slots in shared memory, and a credit a request.

The engine says how much of both (`grant`). A request takes a slot and a credit (`lease`); both come
back when it has ended, or was not sent after all (`take_back`). Who finds none waits for a change.
Slots lie in segments (`transport.arena`), and the engine is told of those as they come and go.

The session's lock guards all of it: `lease` takes it, `wait_for` does without, else it is held.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.client.waiting import Latch
from penstock.errors import (
    ConfigError,
    DeadlineExceeded,
    InputError,
    Overloaded,
    PenstockError,
    again,
)
from penstock.transport import messages as m
from penstock.transport import segment, wire
from penstock.transport.arena import Arena, Slot, TooLarge

if TYPE_CHECKING:
    from penstock.client.call import Call, Piece
    from penstock.client.session import Session


class WouldBlock(Exception):
    """There is no slot or credit free until a change. Without one: no connection, or many rows."""

    def __init__(self, change: Latch | None) -> None:
        super().__init__()
        self.change = change


class Allowance:
    """Leases slots to a session's callers, and a credit with each."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._arena: Arena[segment.Mapping] = Arena(0, self._add_segment, self._drop_segment)
        self._credits = 0

    def grant(self, memory: int, requests: int) -> None:
        """So many bytes, so many requests at a time: said once, before the first one is made."""
        self._arena.limit = memory
        self._credits = requests

    def lease(self, call: Call, size: int, window: int) -> Slot[segment.Mapping] | Latch:
        """A slot, if there are one, a credit and room in the call's window; else what to await."""
        session = self._session
        with session.lock:
            if session.closed is not None:
                raise again(session.closed)
            if self._credits > 0 and len(call.open_pieces) < window:
                try:
                    slot = self._arena.lease(size)
                except TooLarge:
                    raise InputError(
                        f"these rows need {size} bytes of shared memory with their answer; "
                        f"the engine lets a client hold {self._arena.limit} (client_memory)"
                    ) from None
                except OSError as error:
                    raise _no_memory(size, error) from None
                if slot is not None:
                    self._credits -= 1
                    return slot
            return session.await_change()

    def wait_for(self, change: Latch, call: Call, block: bool) -> None:
        """There was no slot for this call: wait until there may be one."""
        left = (call.deadline - time.monotonic_ns()) / 1e9 if call.deadline else None
        if left is not None and left <= 0:
            raise DeadlineExceeded("no slot became free before the deadline")
        self._session.send_outbox()
        self._session.reader.need_thread()
        if not block:
            raise WouldBlock(change)
        change.wait(left)

    def take_back(self, pieces: Sequence[Piece]) -> None:
        """These have ended, or were not sent: their slots may be used again."""
        for piece in pieces:
            self._arena.free(piece.slot)
        self._credits += len(pieces)

    def abandon(self) -> None:
        """The engine is gone: the memory is never used again."""
        self._arena.abandon()

    def _add_segment(self, number: int, size: int) -> segment.Mapping:
        descriptor = segment.create(size)
        try:
            mapping = segment.Mapping(descriptor, size)
            self._session.send(wire.encode(m.AddSegment(number, size)), descriptor)
        finally:
            os.close(descriptor)
        return mapping

    def _drop_segment(self, number: int, mapping: segment.Mapping) -> None:
        self._session.send(wire.encode(m.DropSegment(number)))
        mapping.close()


def _no_memory(size: int, error: OSError) -> PenstockError:
    if error.errno == errno.EFBIG:  # waiting does not help
        return ConfigError(
            f"no shared memory for {size} bytes: this process may make no files of that size, "
            "and memory that is shared counts as one; raise its limit (ulimit -f)"
        )
    return Overloaded(f"no shared memory for {size} bytes: {error}")
