"""Clients are told how their requests ended, as fast as each of them reads.

::

    Answers ──▶ done ──flush──▶ owed ──the client reads──▶ messages
                                 ▲ │
                                 └─┘ it does not: behind, until `go_on`

What a client is owed is kept as records, not as messages: numbers of layouts are given as it is
written, so they mean what they did whenever it is read, and texts that repeat exist once. An honest
client is never owed more than its credits allow: what it has not been told counts as outstanding.

The usual answer costs a number in a list (`ClientState.done`); those that end in one round and have
the same layout travel together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.engine.apart import Apart
from penstock.engine.clients import ClientState
from penstock.engine.effects import Effects
from penstock.engine.failures import Failure, Texts
from penstock.engine.requests import PartRecord
from penstock.spec import Signature
from penstock.transport import messages as m
from penstock.transport import wire

_AT_ONCE = 4_096  # requests in a message
_MOST_RECORDS = 1 << 19  # beyond those of its requests: rows that were answered one by one
_pack_done = m.DONE_ITEM.pack


class Answered(NamedTuple):
    """Requests whose answers are in their slots; without a layout, in the parts before."""

    numbers: Sequence[int]
    layout: Signature


class OwedPart(NamedTuple):
    """Rows of a request that were answered otherwise."""

    number: int
    part: PartRecord


class Delivery:
    """What clients are told of their requests."""

    def __init__(self, effects: Effects, apart: Apart, credits: int) -> None:
        self._effects = effects
        self._apart = apart
        self._most = credits + _MOST_RECORDS
        self._gathered: dict[ClientState, None] = {}

    def gather(self, client: ClientState, layout: Signature) -> None:
        """The numbers that `client.done` gets from now on are of requests with this layout."""
        if client.done:
            self._close_done(client)
        client.done_layout = layout
        self._gathered[client] = None

    def answered(self, client: ClientState, numbers: Sequence[int], layout: Signature) -> None:
        """Many requests have ended together, answered in their slots."""
        client.owed.append(Answered(numbers, layout))
        client.untold += len(numbers)
        self._gathered[client] = None

    def in_parts(
        self,
        client: ClientState,
        number: int,
        parts: Sequence[PartRecord],
        failures: Sequence[Failure],
    ) -> None:
        """A request has ended, row by row."""
        if client.done_layout != ():
            self.gather(client, ())
        client.owed += [OwedPart(number, part) for part in parts]
        for start, rows, kind, text in failures:
            text = self._texts(client).keep(text)
            client.owed.append(m.RowFailed(number, start, rows, kind, text))
        client.done.append(number)

    def failed(self, client: ClientState, number: int, kind: int, text: str, ran: bool) -> None:
        """A request has ended without an answer; `ran`: a worker has had it."""
        record = m.Failed if ran else m.Refused
        client.owed.append(record(number, kind, self._texts(client).keep(text)))
        client.untold += 1
        self._pass_on(client)

    def cancelled(self, client: ClientState, numbers: Sequence[int]) -> None:
        """Requests have ended because their caller has lost interest."""
        client.owed.append(m.Cancelled([(number,) for number in numbers]))
        client.untold += len(numbers)
        self._pass_on(client)

    def flush(self) -> None:
        """The round is over: tell what was gathered."""
        for client in self._gathered:
            if client.owed or client.behind:
                self._close_done(client)
                self._pass_on(client)
            elif client.done:
                done = self._packed(client, client.done, client.done_layout or (), [])
                client.done.clear()
                self._send_done(client, done)
            client.done_layout = None
        self._gathered.clear()

    def go_on(self, client: ClientState) -> None:
        """It has read what was sent."""
        client.behind = False
        self._write(client)

    def forget(self, client: ClientState) -> None:
        """It has gone."""
        for entry in client.owed:
            if isinstance(entry, OwedPart):
                self._apart.close(client, entry.part)
        client.owed.clear()
        client.done.clear()

    def _close_done(self, client: ClientState) -> None:
        if client.done:
            assert client.done_layout is not None
            client.owed.append(Answered(client.done, client.done_layout))
            client.untold += len(client.done)
            client.done = []

    def _texts(self, client: ClientState) -> Texts:
        if client.texts is None:
            client.texts = Texts()
        return client.texts

    def _pass_on(self, client: ClientState) -> None:
        if not client.behind:
            self._write(client)
        elif len(client.owed) > self._most:
            reason = f"{len(client.owed)} records wait for it to be read"
            self._effects.disconnect(client.number, reason)

    def _write(self, client: ClientState) -> None:
        """Tell what it is owed, as long as it takes more."""
        owed = client.owed
        done: list[bytes] = []  # not sent yet
        while owed and not client.behind:
            entry: Any = owed.popleft()
            if type(entry) is Answered:
                numbers, layout = entry
                if len(numbers) > _AT_ONCE:
                    owed.appendleft(Answered(numbers[_AT_ONCE:], layout))
                    numbers = numbers[:_AT_ONCE]
                client.untold -= len(numbers)
                done += self._packed(client, numbers, layout, done)
                if len(done) >= _AT_ONCE:
                    self._send_done(client, done)
            elif type(entry) is OwedPart:
                self._send_part(client, *entry, done)
            else:
                if type(entry) is not m.RowFailed:
                    client.untold -= len(entry.items) if type(entry) is m.Cancelled else 1
                self._send(client, wire.encode(entry))
        self._send_done(client, done)
        if not owed:
            client.texts = None

    def _packed(
        self, client: ClientState, numbers: Sequence[int], layout: Signature, done: list[bytes]
    ) -> list[bytes]:
        known = self._number(client, layout, done) if layout else 0
        return [_pack_done(number, known) for number in numbers]

    def _number(self, client: ClientState, layout: Signature, done: list[bytes]) -> int:
        """The number under which the client knows this layout by now."""
        if client.last_layout[1] is not layout:
            number, new = client.output_layouts.number(layout)
            if new:
                self._send_done(client, done)  # it may use the number's old meaning
                self._send(client, wire.encode(m.OutputLayout(number, layout)))
            client.last_layout = (number, layout)
        return client.last_layout[0]

    def _send_part(
        self, client: ClientState, number: int, part: PartRecord, done: list[bytes]
    ) -> None:
        layout = self._number(client, part.layout, done)
        elsewhere = int(part.descriptor >= 0)
        record = m.Part(number, part.start, part.rows, layout, elsewhere, part.size)
        self._send(client, wire.encode(record), part.descriptor)
        self._apart.close(client, part)

    def _send_done(self, client: ClientState, done: list[bytes]) -> None:
        while len(done) > _AT_ONCE:
            self._send(client, wire.encode_done(done[:_AT_ONCE]))
            del done[:_AT_ONCE]
        if done:
            self._send(client, wire.encode_done(done))
            done.clear()

    def _send(self, client: ClientState, data: bytes, descriptor: int = -1) -> None:
        if not self._effects.to_client(client.number, data, descriptor):
            client.behind = True
