"""The simulated clients: an open loop that sends come what may, and a closed one that waits.

Both keep the latency of every request by its number and count those that were answered in time
after a first part (`warm`) that does not count. A request ends once; anything else is an error.

An open loop's client waits until its deadline and not longer: a request that was dropped, or whose
answer comes later, has its deadline for latency and was not answered in time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from benchmarks.scheduling import arrivals
from benchmarks.scheduling.devices import MESSAGE, S
from benchmarks.scheduling.simulator import NEVER, Request

_OPEN = -1


class OpenLoop:
    """Requests that are sent at given times."""

    def __init__(self, seed: int, sent: Sequence[int], deadline: int, warm: int) -> None:
        self._sent = sent
        self._senders = arrivals.senders(seed, len(sent))
        self._deadline = deadline
        self._warm = warm
        self._next = 0
        self._ended = 0
        self.in_time = 0
        self.latencies = [_OPEN] * len(sent)

    def next_arrival(self) -> int:
        """As it was drawn."""
        return self._sent[self._next] + MESSAGE if self._next < len(self._sent) else NEVER

    def send(self) -> Request:
        """The next one in time."""
        number = self._next
        self._next += 1
        sent, client = self._sent[number], self._senders[number]
        return Request(number, client, 0, sent, sent + self._deadline if self._deadline else 0)

    def end(self, request: Request, answered: bool, now: int) -> None:
        """Its latency is known."""
        number = request.number
        assert self.latencies[number] == _OPEN, "a request ended twice"
        latency = now + MESSAGE - request.sent
        in_time = answered and (not self._deadline or latency <= self._deadline)
        self.latencies[number] = latency if in_time else self._deadline
        self._ended += 1
        if in_time and number >= self._warm:
            self.in_time += 1

    def done(self) -> bool:
        """All were sent and have ended."""
        return self._ended == len(self._sent)

    def counted(self) -> list[int]:
        """The latencies after the warm part."""
        return self.latencies[self._warm :]

    def rate(self) -> float:
        """Requests answered in time, a second."""
        return self.in_time * S / (self._sent[-1] - self._sent[self._warm])


class ClosedLoop:
    """Clients that send the next request when an answer has come, `count` in all."""

    def __init__(self, seed: int, loop: arrivals.Loop, count: int, warm: int) -> None:
        self._loop = loop
        self._thinks = loop.thinks(seed)
        self._heap = [(next(thinks), slot) for slot, thinks in enumerate(self._thinks)]
        heapq.heapify(self._heap)
        self._warm = warm
        self._sent = 0
        self._began = self._until = 0
        self._ended = 0
        self.in_time = 0
        self.latencies = [_OPEN] * count

    def next_arrival(self) -> int:
        """Of those whose answer has come."""
        if self._sent == len(self.latencies) or not self._heap:
            return NEVER
        return self._heap[0][0] + MESSAGE

    def send(self) -> Request:
        """The soonest."""
        sent, slot = heapq.heappop(self._heap)
        number = self._sent
        self._sent += 1
        return Request(number, slot // self._loop.outstanding, slot, sent, 0)

    def end(self, request: Request, answered: bool, now: int) -> None:
        """Its client thinks, then sends the next."""
        number, slot = request.number, request.slot
        assert self.latencies[number] == _OPEN, "a request ended twice"
        assert answered, "a request without a deadline was dropped"
        back = now + MESSAGE
        self.latencies[number] = back - request.sent
        heapq.heappush(self._heap, (back + next(self._thinks[slot]), slot))
        self._ended += 1
        if self._ended == self._warm:
            self._began = now
        elif self._warm < self._ended <= len(self.latencies) - self._loop.total:
            self.in_time += 1
            self._until = now

    def done(self) -> bool:
        """All were sent and have ended."""
        return self._ended == len(self.latencies)

    def counted(self) -> list[int]:
        """The latencies after the warm part, and before the end, when fewer are under way."""
        return self.latencies[self._warm : len(self.latencies) - self._loop.total]

    def rate(self) -> float:
        """Requests answered, a second."""
        return self.in_time * S / (self._until - self._began)
