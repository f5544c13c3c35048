"""The simulated machine: clients, engine, workers, and a clock that jumps from event to event.

::

    client ──MESSAGE──▶ policy ──MESSAGE──▶ worker: gather ▶ run
    client ◀──MESSAGE── policy ◀──MESSAGE────────────────────┘

The policy decides what the engine decides; all else is the same for every policy. A worker takes
its batches in order; where it gathers beside, the next one is gathered while one runs. Decisions
take no time. `simulate` asks the policy after every event, as the engine does.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from benchmarks.scheduling import arrivals
from benchmarks.scheduling.devices import MESSAGE, Device

NEVER = 1 << 62
_IDLE_WAKEUPS = 1000


class Request:
    """One row. `number` counts from 0; `reached`: when the engine had it; `deadline` 0: none."""

    __slots__ = ("client", "deadline", "number", "reached", "sent", "slot")

    def __init__(self, number: int, client: int, slot: int, sent: int, deadline: int) -> None:
        self.number = number
        self.client = client
        self.slot = slot
        self.sent = sent
        self.reached = sent + MESSAGE
        self.deadline = deadline


class Launch(NamedTuple):
    """These requests leave for that worker as one batch."""

    worker: int
    requests: list[Request]


class Policy(Protocol):
    """When batches leave, and with whom. Times are nanoseconds on the engine's clock."""

    def arrived(self, request: Request, now: int) -> None:
        """A request has reached the engine and waits."""

    def expire(self, now: int) -> Sequence[Request]:
        """Drop waiting requests whose deadline has passed."""

    def next_batch(self, now: int) -> Launch | None:
        """What leaves now; asked again until it is None."""

    def ran(self, worker: int, requests: list[Request], now: int) -> None:
        """A worker's oldest batch is done and its requests answered."""

    def wakeup(self, now: int) -> int:
        """When to ask again at the latest, if nothing happens; `NEVER`: no need."""


class Clients(Protocol):
    """Who sends requests, and what became of each."""

    def next_arrival(self) -> int:
        """When the next request reaches the engine, as far as is known; `NEVER` if none does."""

    def send(self) -> Request:
        """That request."""

    def end(self, request: Request, answered: bool, now: int) -> None:
        """The engine has answered or dropped it."""

    def done(self) -> bool:
        """Whether every request has ended."""


class Workers:
    """What runs on the device and when it ends."""

    def __init__(self, device: Device, seed: int) -> None:
        self._device = device
        self._slowdowns = arrivals.slowdowns(seed, device)
        self._gathered = [0] * device.workers
        self._free = [0] * device.workers
        self._launches = 0
        self.running: list[tuple[int, int, Launch]] = []  # a heap, by when the engine hears of it
        self.sizes: list[int] = []

    def start(self, launch: Launch, now: int) -> None:
        """A batch leaves the engine."""
        device, worker, rows = self._device, launch.worker, len(launch.requests)
        if device.gathers_beside:
            gathered = max(now + MESSAGE, self._gathered[worker]) + device.gather[rows]
            self._gathered[worker] = gathered
            begin = max(gathered, self._free[worker])
        else:
            begin = max(now + MESSAGE, self._free[worker]) + device.gather[rows]
        end = begin + int(device.run[rows] * next(self._slowdowns[worker]))
        self._free[worker] = end
        self._launches += 1
        self.sizes.append(rows)
        heapq.heappush(self.running, (end + MESSAGE, self._launches, launch))


def simulate(policy: Policy, clients: Clients, device: Device, seed: int) -> list[int]:
    """Until every request has ended; returns the sizes of the batches."""
    workers = Workers(device, seed)
    running = workers.running
    wakeup = NEVER
    idle = 0
    while (now := min(arrival := clients.next_arrival(), wakeup, _soonest(running))) < NEVER:
        idle += 1
        if running and running[0][0] <= now:
            idle = 0
            _, _, (worker, requests) = heapq.heappop(running)
            policy.ran(worker, requests, now)
            for request in requests:
                clients.end(request, True, now)
        elif arrival <= now:
            idle = 0
            policy.arrived(clients.send(), now)
        for request in policy.expire(now):
            idle = 0
            clients.end(request, False, now)
        while launch := policy.next_batch(now):
            idle = 0
            workers.start(launch, now)
        wakeup = policy.wakeup(now)
        assert wakeup > now, "the policy wants to be woken at a time that has passed"
        assert idle < _IDLE_WAKEUPS, f"the policy wakes up again and again, now at {now} ns"
    assert clients.done(), "the policy has forgotten some requests"
    return workers.sizes


def _soonest(running: list[tuple[int, int, Launch]]) -> int:
    return running[0][0] if running else NEVER
