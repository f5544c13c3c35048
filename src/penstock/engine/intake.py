"""Reading what clients send, believing none of it.

Everything is checked here, once: types, numbers, bounds, limits. A client that breaks the protocol
(`Malformed`) loses its connection and nothing else happens; a request that is merely impossible
(wrong shape, queue full, too late) is refused. Python's integers do not overflow, so a sum of two
huge offsets is just a number that is too large.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from penstock.engine.clients import ClientState, input_layout
from penstock.engine.requests import Request, Series
from penstock.engine.segments import Segment, SegmentState
from penstock.errors import InputError, Kind
from penstock.scheduling.queue import Job
from penstock.spec import DTYPES, TensorSpec
from penstock.transport import messages as m
from penstock.transport import segment as memory
from penstock.transport import wire
from penstock.transport.layouts import CAPACITY
from penstock.transport.wire import Malformed

if TYPE_CHECKING:
    from penstock.engine.core import Core

_SUBMIT = 5
MOST_SEGMENTS = 1024
_LARGEST_ROW = 1 << 47  # bytes: more cannot be addressed
_LARGEST_SLOT = 1 << 24  # of a series


class Intake:
    """Turns clients' messages into requests of the core."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._handlers: dict[type[Any], Any] = {
            m.Hello: self._hello,
            m.AddSegment: self._add_segment,
            m.DropSegment: self._drop_segment,
            m.Layout: self._layout,
            m.Cancel: self._cancel,
            m.Ask: self._ask,
            m.Stop: self._stop,
        }

    def take(self, client: ClientState, data: bytes, descriptors: list[int], now: int) -> None:
        """One message of a client. Raises `Malformed`. Descriptors not kept here are the caller's
        to close: those that remain in the list."""
        if data[0] == _SUBMIT and client.greeted and not descriptors:
            self._submit(client, data, now)
            return
        record = wire.decode(data)
        handler = self._handlers.get(type(record))
        if handler is None:
            raise Malformed(f"{type(record).__name__} is nothing that a client sends")
        if client.greeted == isinstance(record, m.Hello):
            raise Malformed("Hello comes first, and once")
        if len(descriptors) != wire.descriptors_of(record):
            raise Malformed(f"{type(record).__name__} came with {len(descriptors)} descriptors")
        handler(client, record, descriptors, now)

    def _hello(self, client: ClientState, record: m.Hello, _: list[int], now: int) -> None:
        if record.version != m.VERSION:
            raise Malformed(
                f"this engine speaks version {m.VERSION} of the protocol, "
                f"the client {record.version}: use the same release of penstock on both sides"
            )
        client.greeted = True
        client.label = "".join(c for c in record.label if c.isprintable())[:64]
        self._core.greet(client)

    def _add_segment(
        self, client: ClientState, record: m.AddSegment, descriptors: list[int], now: int
    ) -> None:
        limit = self._core.config.client_memory
        if record.segment in client.segments:
            raise Malformed(f"segment {record.segment} is there already")
        if len(client.segments) >= MOST_SEGMENTS:
            raise Malformed(f"more than {MOST_SEGMENTS} segments")
        if not 0 < record.size <= limit - client.bytes_held:
            raise Malformed(
                f"a segment of {record.size} bytes beside {client.bytes_held}: "
                f"a client may hold {limit}"
            )
        try:
            memory.verify(descriptors[0], record.size)
        except memory.BadSegment as error:
            raise Malformed(str(error)) from None
        client.bytes_held += record.size
        client.segments[record.segment] = Segment(
            client.number, record.segment, record.size, descriptors.pop()
        )

    def _drop_segment(
        self, client: ClientState, record: m.DropSegment, _: list[int], now: int
    ) -> None:
        segment = client.segments.get(record.segment)
        if segment is None:
            raise Malformed(f"there is no segment {record.segment} to drop")
        if segment.requests:
            raise Malformed(f"segment {record.segment} has requests that have not ended")
        del client.segments[record.segment]
        client.bytes_held -= segment.size
        if segment.drop():
            self._core.release(segment)

    def _layout(self, client: ClientState, record: m.Layout, _: list[int], now: int) -> None:
        if not 0 < record.layout <= CAPACITY:
            raise Malformed(f"a layout's number is 1 to {CAPACITY}, got {record.layout}")
        if any(size is None for tensor in record.tensors for size in tensor.shape):
            raise Malformed("a request's layout leaves a size open")
        if any(_extent(tensor) > _LARGEST_ROW for tensor in record.tensors):
            raise Malformed("a row larger than any memory")
        model = self._core.cards.get(record.model)
        if model is None:
            layout = input_layout(record.tensors, None, f"there is no model number {record.model}")
        else:
            try:
                model.spec.check(record.tensors)
                lane = self._core.lane(record.model, record.tensors)
                layout = input_layout(record.tensors, lane, "")
            except InputError as error:
                layout = input_layout(record.tensors, None, str(error))
        client.layouts[record.layout] = layout

    def _submit(self, client: ClientState, data: bytes, now: int) -> None:
        core = self._core
        if (len(data) - 1) % m.SUBMIT_ITEM.size:
            raise Malformed(f"Submit: {len(data) - 1} bytes are no whole number of requests")
        most = core.config.client_requests
        admission = core.admission
        segments, layouts, requests = client.segments, client.layouts, client.requests
        asked = 0
        for (
            number,
            segment_number,
            layout_number,
            offset,
            length,
            input_bytes,
            rows,
            priority,
            caller,
            deadline,
            count,
        ) in m.SUBMIT_ITEM.iter_unpack(memoryview(data)[1:]):
            segment = segments.get(segment_number)
            if segment is None or segment.state is not SegmentState.LIVE:
                raise Malformed(f"request {number} lies in segment {segment_number}: unknown")
            layout = layouts.get(layout_number)
            if layout is None:
                raise Malformed(f"request {number} has layout {layout_number}: unknown")
            if input_bytes > length or offset + length * count > segment.size:
                raise Malformed(
                    f"request {number}: {input_bytes} of {length} bytes at {offset} "
                    f"of a segment of {segment.size}, {count} in all"
                )
            if layout.least_bytes(rows) > input_bytes:
                raise Malformed(f"request {number}: {rows} rows do not fit {input_bytes} bytes")
            numbers = range(number, number + count)
            if count != 1 and not _is_series(number, count, rows):
                raise Malformed(f"request {number} is {count} requests of {rows} rows")
            if not requests.keys().isdisjoint(numbers):
                raise Malformed(f"request {number} is there already")
            asked += count  # also those that are refused at once, and not told so yet
            if len(requests) + client.untold + count > most or asked > most:
                raise Malformed(f"more than {most} requests outstanding")
            lane = layout.lane
            if lane is None:
                for each in numbers:
                    core.answers.refuse(client, each, Kind.INPUT, layout.refusal)
                continue
            fairness = client.number << 32 | caller
            request: Request
            if (
                count > 1
                and not deadline
                and not layout.strings
                and length <= _LARGEST_SLOT
                and admission.takes_series(client, lane, count)
            ):
                request = Series(
                    client, number, layout, segment, offset, length, input_bytes, count, now
                )
                job = Job(request, lane, count, 0, fairness, priority, 0, request.jobs, True)
                admission.admit(request, job, now)
                continue
            for each in numbers:
                request = Request(
                    client, each, layout, segment, offset, length, input_bytes, rows, now
                )
                jobs, until = request.jobs, max(deadline, 0)
                job = Job(request, lane, rows, 0, fairness, priority, until, jobs)
                admission.admit(request, job, now)
                offset += length

    def _cancel(self, client: ClientState, record: m.Cancel, _: list[int], now: int) -> None:
        series: dict[Series, None] = {}
        for (number,) in record.items:
            request = client.requests.get(number)
            if isinstance(request, Series):
                request.dropped.add(number - request.number)
                series[request] = None
            elif request is not None:  # else its end is on its way already
                self._core.settling.cancel(request)
        for each in series:
            self._core.settling.drop(each)

    def _ask(self, client: ClientState, record: m.Ask, _: list[int], now: int) -> None:
        self._core.tell(client, record, now)

    def _stop(self, client: ClientState, record: m.Stop, _: list[int], now: int) -> None:
        seconds = record.drain_seconds
        if not 0 <= seconds <= 1e9:
            raise Malformed(f"a drain of {seconds} seconds")
        self._core.close(now, seconds)


def _is_series(number: int, count: int, rows: int) -> bool:
    return 0 < count <= m.LONGEST_SERIES and rows == 1 and number + count - 1 <= m.HIGHEST_REQUEST


def _extent(tensor: TensorSpec) -> int:
    """How large a row would be if no size were 0: numpy refuses too large ones all the same."""
    return math.prod(max(size, 1) for size in tensor.sizes) * max(DTYPES[tensor.dtype][1], 8)
