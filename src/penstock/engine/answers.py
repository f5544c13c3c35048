"""The last mile of a request: its rows are settled, its terminal message goes to the client.

A request ends by `done`, as a rule, by `finish`, or by `refuse` before it was queued; those of a
series by the methods for rows, each once. To a client that is `gone` nothing more is said: it has
left, or was told that the engine ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from penstock.engine.clients import ClientState
from penstock.engine.requests import PartRecord, Request, Series
from penstock.errors import Kind
from penstock.spec import Signature
from penstock.transport import messages as m
from penstock.transport import wire


class Effects(Protocol):
    """What the core lets happen. The server does it; tests write it down."""

    def to_client(self, client: int, data: bytes, descriptor: int = -1) -> None:
        """Send a message to a client, perhaps with a descriptor (which stays the core's)."""

    def to_worker(self, worker: int, data: bytes, descriptor: int = -1) -> None:
        """Send a message to a worker, likewise."""

    def disconnect(self, client: int, reason: str) -> None:
        """Tell a client why, and end its connection."""

    def start_worker(self, index: int) -> int:
        """Start a process for this worker; returns its pid. Raises `OSError`."""

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
        if isinstance(request, Series):
            self.done_rows(request, 0, request.rows, layout)
            return
        client = request.client
        del client.requests[request.number]
        self.ended["done"] += 1
        if client.gone:
            return
        client.answered += 1
        client.rows_done += request.rows
        client.done.append(_pack_done(request.number, self._usual_layout(client, layout)))
        self._waiting[client] = None

    def done_rows(self, series: Series, start: int, rows: int, layout: Signature) -> None:
        """Requests of a series were answered, in their slots."""
        numbers = self._wanted(series, start, rows)
        client = series.client
        requests = client.requests
        for number in numbers:
            del requests[number]
        self.ended["done"] += len(numbers)
        if client.gone:
            return
        client.answered += len(numbers)
        client.rows_done += len(numbers)
        usual = self._usual_layout(client, layout)
        client.done += [_pack_done(number, usual) for number in numbers]
        self._waiting[client] = None

    def done_apart(self, series: Series, part: PartRecord) -> None:
        """A request of a series was answered, in a segment of its own."""
        assert part.rows == 1
        client = series.client
        for number in self._wanted(series, part.start, 1):
            del client.requests[number]
            if not client.gone:
                self._send_part(client, number, part._replace(start=0))
                self._done_in_parts(client, number, 1, "done")
        self.close_parts([part])

    def fail_rows(
        self, series: Series, start: int, rows: int, kind: int, text: str, ran: bool = True
    ) -> None:
        """Requests of a series end with an error; `ran`: a worker has had them."""
        client = series.client
        for number in self._wanted(series, start, rows):
            del client.requests[number]
            if not client.gone:
                self._fail(client, number, kind, text, ran)

    def cancel_rows(self, series: Series, numbers: Sequence[int]) -> None:
        """Requests of a series end because their caller has lost interest."""
        client = series.client
        for number in numbers:
            del client.requests[number]
            series.dropped.discard(number - series.number)
        if numbers and not client.gone:
            self.ended["cancelled"] += len(numbers)
            for data in wire.encode_items(m.Cancelled, (n.to_bytes(8, "little") for n in numbers)):
                self._effects.to_client(client.number, data)

    def _wanted(self, series: Series, start: int, rows: int) -> Sequence[int]:
        """The numbers of these rows; those that were dropped meanwhile end here."""
        numbers = range(series.number + start, series.number + start + rows)
        if not series.dropped:
            return numbers
        first, dropped = series.number, series.dropped
        wanted = [number for number in numbers if number - first not in dropped]
        self.cancel_rows(series, [number for number in numbers if number - first in dropped])
        return wanted

    def finish(self, request: Request) -> None:
        """Any other end: the rows are settled, or the request was cancelled."""
        client = request.client
        request.end()
        if isinstance(request, Series):
            left = [n for n in request.numbers if client.requests.get(n) is request]
            self.cancel_rows(request, left)
            return
        del client.requests[request.number]
        if not client.gone:
            if request.cancelled:
                self.ended["cancelled"] += 1
                self._effects.to_client(
                    client.number, wire.encode(m.Cancelled([(request.number,)]))
                )
            elif len(request.failures) == 1 and not request.parts:
                self._fail_whole(request)
            else:
                self._answer_in_parts(request)
        self.close_parts(request.parts)

    def refuse(self, client: ClientState, number: int, kind: Kind, text: str) -> None:
        """A request that was not even queued."""
        self.refused[kind.name.lower()] += 1
        self._effects.to_client(client.number, wire.encode(m.Refused(number, kind, text)))

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
            for data in wire.encode_items(m.Done, client.done):
                self._effects.to_client(client.number, data)
        client.done.clear()

    def _usual_layout(self, client: ClientState, layout: Signature) -> int:
        """The number under which a client knows what its last answers were, as a rule."""
        if client.last_layout[1] is not layout:
            client.last_layout = (self._layout(client, layout), layout)
        return client.last_layout[0]

    def _layout(self, client: ClientState, layout: Signature) -> int:
        number, new = client.output_layouts.number(layout)
        if new:
            client.last_layout = (0, ())
            self._flush(client)  # what is gathered may use the number's old meaning
            self._effects.to_client(client.number, wire.encode(m.OutputLayout(number, layout)))
        return number

    def _fail_whole(self, request: Request) -> None:
        _, _, kind, text = request.failures[0]
        self._fail(request.client, request.number, kind, text, request.attempts > 0)

    def _fail(self, client: ClientState, number: int, kind: int, text: str, ran: bool) -> None:
        if ran:
            self.ended["failed"] += 1
            data = wire.encode(m.Failed(number, kind, text))
        else:
            self.refused[Kind(kind).name.lower()] += 1
            data = wire.encode(m.Refused(number, kind, text))
        self._effects.to_client(client.number, data)

    def _answer_in_parts(self, request: Request) -> None:
        client = request.client
        for part in request.parts:
            self._send_part(client, request.number, part)
        most = max(_FAILURE_BYTES // max(len(request.failures), 1), 200)
        for start, rows, kind, text in request.failures:
            text = text if len(text) <= most else text[:most] + "…"
            self._effects.to_client(
                client.number, wire.encode(m.RowFailed(request.number, start, rows, kind, text))
            )
        how = "partial" if request.failures else "done"
        self._done_in_parts(client, request.number, request.rows, how)

    def _send_part(self, client: ClientState, number: int, part: PartRecord) -> None:
        layout = self._layout(client, part.layout)
        elsewhere = int(part.descriptor >= 0)
        record = m.Part(number, part.start, part.rows, layout, elsewhere, part.size)
        self._effects.to_client(client.number, wire.encode(record), part.descriptor)

    def _done_in_parts(self, client: ClientState, number: int, rows: int, how: str) -> None:
        self.ended[how] += 1
        client.answered += 1
        client.rows_done += rows
        client.done.append(_pack_done(number, 0))
        self._waiting[client] = None
