"""Requests that were made and not yet sent: they travel together.

Those of one row whose slots lie next to each other become a *series*, one item of the message
(`SubmitItem.requests`). The engine and the workers then handle them as one, which is most of what a
small request costs. Since the lowest free slot is leased, requests that are made one after another
usually do lie next to each other. One with a deadline goes by itself.
"""

from __future__ import annotations

from typing import Any

from penstock.client.call import Piece
from penstock.transport import messages as m

_SUBMIT = b"\5"
_NOWHERE = -1


class Outbox:
    """What a session will send next. Not thread-safe; the session holds its lock."""

    __slots__ = ("_alike", "_first", "_items", "_last", "_next_place", "_number", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self._items: list[bytes] = []
        self._last: Piece | None = None  # the last piece that was added,
        self._first: Piece | None = None  # the first one of its series,
        self._number = 0  # the number of the next one,
        self._next_place = _NOWHERE  # where it has to lie,
        self._alike: tuple[Any, ...] = ()  # and what it must have in common with the others

    def add(self, piece: Piece, layout: int) -> None:
        """A request whose slot is written."""
        call, slot = piece.call, piece.slot
        self.requests += 1
        alike = (layout, piece.input_bytes, call.priority, call.caller)
        if (
            slot.place == self._next_place
            and piece.number == self._number
            and self._first is not None
            and piece.number - self._first.number < m.LONGEST_SERIES
            and alike == self._alike
            and piece.rows == 1
            and not call.deadline
        ):
            self._last = piece
        else:
            self._close()
            self._first = self._last = piece
            self._alike = alike
        self._number = piece.number + 1
        open_ended = piece.rows == 1 and not call.deadline
        self._next_place = slot.place + slot.size if open_ended else _NOWHERE

    def take(self) -> tuple[bytes, int]:
        """All of them, as the session sends them, and how many they are. None is left here."""
        self._close()
        items, self._items = self._items, []
        requests, self.requests = self.requests, 0
        return _SUBMIT + b"".join(items), requests

    def give_back(self, message: bytes, requests: int) -> None:
        """What was taken could not be sent now: it goes first next time."""
        self._items.insert(0, message[len(_SUBMIT) :])
        self.requests += requests

    def _close(self) -> None:
        """No other request joins the last ones."""
        first, last = self._first, self._last
        if first is None or last is None:
            return
        call, slot = first.call, first.slot
        self._first = self._last = None
        self._next_place = _NOWHERE
        self._items.append(
            m.SUBMIT_ITEM.pack(
                first.number,
                slot.block.number,
                self._alike[0],
                slot.offset,
                slot.size,
                first.input_bytes,
                first.rows,
                call.priority,
                call.caller,
                call.deadline,
                last.number - first.number + 1,
            )
        )
