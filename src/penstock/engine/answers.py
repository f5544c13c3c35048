"""The last mile of a request: its rows are settled, its terminal message goes to the client.

Every way for a request to end leads through `finish` or `refuse`, so that it ends exactly once.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from penstock.engine.clients import ClientState
from penstock.engine.requests import PartRecord, Request
from penstock.errors import Kind
from penstock.spec import Signature
from penstock.transport import messages as m


class Effects(Protocol):
    """What the core lets happen. The server does it; tests write it down."""

    def to_client(self, client: int, data: bytes, descriptor: int = -1) -> None:
        """Send a message to a client, perhaps with a descriptor (which stays the core's)."""

    def to_worker(self, worker: int, data: bytes, descriptor: int = -1) -> None:
        """Send a message to a worker, likewise."""

    def disconnect(self, client: int, reason: str) -> None:
        """Tell a client why, and end its connection."""

    def start_worker(self, index: int) -> int:
        """Start a process for this worker; returns its pid."""

    def kill_worker(self, index: int) -> None:
        """End this worker's process; its exit is reported later."""

    def warm(self, index: int) -> None:
        """This worker has all that it needs of its device."""

    def close(self, descriptor: int) -> None:
        """Close a descriptor that the core has no more use for."""


_FAILURE_BYTES = 512 << 10  # that a request's errors may take together
_pack_done = m.DONE_ITEM.pack


class Answers:
    """Ends requests and counts how."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._waiting: dict[ClientState, None] = {}
        self.ended: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def done(self, request: Request, layout: Signature) -> None:
        """The usual end: all rows were answered, in the slot, and the request has ended."""
        client = request.client
        del client.requests[request.number]
        self.ended["done"] += 1
        if client.gone:
            return
        client.answered += 1
        client.rows_done += request.rows
        if client.last_layout[1] is not layout:
            client.last_layout = (self._layout(client, layout), layout)
        client.done.append(_pack_done(request.number, client.last_layout[0]))
        self._waiting[client] = None

    def finish(self, request: Request) -> None:
        """Any other end: the rows are settled, or the request was cancelled."""
        client = request.client
        request.end()
        del client.requests[request.number]
        if not client.gone:
            if request.cancelled:
                self.ended["cancelled"] += 1
                self._effects.to_client(client.number, m.encode(m.Cancelled([(request.number,)])))
            elif len(request.failures) == 1 and not request.parts:
                self._fail_whole(request)
            else:
                self._answer_in_parts(request)
        self.close_parts(request.parts)

    def refuse(self, client: ClientState, number: int, kind: Kind, text: str) -> None:
        """A request that was not even queued."""
        self.refused[kind.name.lower()] += 1
        self._effects.to_client(client.number, m.encode(m.Refused(number, kind, text)))

    def close_parts(self, parts: list[PartRecord]) -> None:
        """Close the descriptors of parts that were sent or are not wanted."""
        for part in parts:
            if part.descriptor >= 0:
                self._effects.close(part.descriptor)

    def flush(self) -> None:
        """Send the answers that were gathered."""
        for client in self._waiting:
            self._flush(client)
        self._waiting.clear()

    def _flush(self, client: ClientState) -> None:
        if client.done and not client.gone:
            for data in m.encode_items(m.Done, client.done):
                self._effects.to_client(client.number, data)
        client.done.clear()

    def _layout(self, client: ClientState, layout: Signature) -> int:
        number, new = client.output_layouts.number(layout)
        if new:
            client.last_layout = (0, ())
            self._flush(client)  # what is gathered may use the number's old meaning
            self._effects.to_client(client.number, m.encode(m.OutputLayout(number, layout)))
        return number

    def _fail_whole(self, request: Request) -> None:
        _, _, kind, text = request.failures[0]
        if request.attempts:
            self.ended["failed"] += 1
            data = m.encode(m.Failed(request.number, kind, text))
        else:
            self.refused[Kind(kind).name.lower()] += 1
            data = m.encode(m.Refused(request.number, kind, text))
        self._effects.to_client(request.client.number, data)

    def _answer_in_parts(self, request: Request) -> None:
        client = request.client
        for part in request.parts:
            record = m.Part(
                request.number,
                part.start,
                part.rows,
                self._layout(client, part.layout),
                int(part.descriptor >= 0),
                part.size,
            )
            self._effects.to_client(client.number, m.encode(record), part.descriptor)
        most = max(_FAILURE_BYTES // max(len(request.failures), 1), 200)
        for start, rows, kind, text in request.failures:
            text = text if len(text) <= most else text[:most] + "…"
            self._effects.to_client(
                client.number, m.encode(m.RowFailed(request.number, start, rows, kind, text))
            )
        self.ended["partial" if request.failures else "done"] += 1
        client.answered += 1
        client.rows_done += request.rows
        client.done.append(_pack_done(request.number, 0))
        self._waiting[client] = None
