"""How requests end, each once, and how many in which way.

A request ends by `done`, as a rule, by `finish`, or by `refuse` before it was queued; those of a
series by the methods for rows, each once. What its client is told of that is up to `delivery`. To
one that is `gone` nothing more is said: it has left, or was told that the engine ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.engine.apart import Apart
from penstock.engine.clients import ClientState
from penstock.engine.delivery import Delivery
from penstock.engine.failures import Failure
from penstock.engine.requests import PartRecord, Request, Series
from penstock.errors import Kind
from penstock.spec import Signature


class Answers:
    """Ends requests and counts how."""

    def __init__(self, delivery: Delivery, apart: Apart) -> None:
        self._delivery = delivery
        self._apart = apart
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
        if client.done_layout is not layout:
            self._delivery.gather(client, layout)
        client.done.append(request.number)

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
        self._delivery.answered(client, numbers, layout)

    def done_apart(self, series: Series, part: PartRecord) -> None:
        """A request of a series was answered, in a segment of its own."""
        assert part.rows == 1
        client = series.client
        wanted = self._wanted(series, part.start, 1)
        for number in wanted:
            del client.requests[number]
        if wanted and not client.gone:
            self._in_parts(client, wanted[0], 1, [part._replace(start=0)])
        else:
            self._apart.close(client, part)

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
            self._delivery.cancelled(client, numbers)

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
        if request.cancelled or client.gone:
            for part in request.parts:
                self._apart.close(client, part)
        if client.gone:
            return
        failures = request.failures.rows if request.failures else ()
        if request.cancelled:
            self.ended["cancelled"] += 1
            self._delivery.cancelled(client, (request.number,))
        elif len(failures) == 1 and not request.parts:
            ((_, _, kind, text),) = failures
            self._fail(client, request.number, kind, text, request.attempts > 0)
        else:
            self._in_parts(client, request.number, request.rows, request.parts, failures)

    def refuse(self, client: ClientState, number: int, kind: Kind, text: str) -> None:
        """A request that was not even queued."""
        self._fail(client, number, kind, text, ran=False)

    def end_all(self, client: ClientState, text: str) -> None:
        """The engine ends, and with it whatever this client still waits for."""
        for number in client.requests:
            self._delivery.failed(client, number, Kind.ENGINE_CLOSED, text, ran=True)

    def _fail(self, client: ClientState, number: int, kind: int, text: str, ran: bool) -> None:
        if ran:
            self.ended["failed"] += 1
        else:
            self.refused[Kind(kind).name.lower()] += 1
        self._delivery.failed(client, number, kind, text, ran)

    def _in_parts(
        self,
        client: ClientState,
        number: int,
        rows: int,
        parts: Sequence[PartRecord],
        failures: Sequence[Failure] = (),
    ) -> None:
        self.ended["partial" if failures else "done"] += 1
        client.answered += 1
        client.rows_done += rows
        self._delivery.in_parts(client, number, parts, failures)
