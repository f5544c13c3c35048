"""The run: every cell, with every policy, under every seed; two processes share the work.

A `Cell` is one device under one kind of arrivals: `poisson-0.5`, `bursty-0.9`, `closed-16x1`. Its
runs of one seed are pairs: the same arrivals, think times and slowdowns for each policy.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from benchmarks.scheduling import arrivals, bounds
from benchmarks.scheduling.clients import ClosedLoop, OpenLoop
from benchmarks.scheduling.devices import DEVICES, MS, Device, S
from benchmarks.scheduling.penstock_policy import Penstock
from benchmarks.scheduling.policies import FixedDelay, Greedy
from benchmarks.scheduling.simulator import Policy, simulate

OURS = "penstock"
POLICIES: dict[str, Callable[[Device], Policy]] = {
    OURS: Penstock,
    "greedy": Greedy,
    "delay-1ms": lambda device: FixedDelay(device, 1 * MS),
    "delay-5ms": lambda device: FixedDelay(device, 5 * MS),
    "delay-10ms": lambda device: FixedDelay(device, 10 * MS),
    "greedy-2": lambda device: Greedy(device, depth=2),
    "delay-10ms-2": lambda device: FixedDelay(device, 10 * MS, depth=2),
}
OTHERS = ("greedy", "delay-1ms", "delay-5ms", "delay-10ms")
PIPELINED = ("greedy-2", "delay-10ms-2")

LOOPS = (
    arrivals.Loop(16, 1),
    arrivals.Loop(64, 1),
    arrivals.Loop(16, 16),
    arrivals.Loop(4, 8),
    arrivals.Loop(16, 1, think=1 * MS),
    arrivals.Loop(16, 1, think=3 * MS),
)
_NO_LOOP = arrivals.Loop(0, 0)
_WARM = 0.1
_PROCESSES = 2
_LIMIT_S = 60  # for a run that takes about 0.1


@dataclass(frozen=True)
class Cell:
    """One device under one kind of arrivals. `load` is a share of its capacity; 0: closed loop."""

    device: str
    kind: str
    load: float = 0.0
    loop: arrivals.Loop = _NO_LOOP

    @property
    def name(self) -> str:
        """As `--only` takes it."""
        if self.kind == "closed":
            name = f"closed-{self.loop.clients}x{self.loop.outstanding}"
            slow = self.loop.think != arrivals.THINK
            return f"{name}-think-{self.loop.think / MS:g}ms" if slow else name
        return f"{self.kind}-{self.load:g}"


@dataclass(frozen=True)
class Plan:
    """How much is simulated. `requests` is for devices with batches of 32; see `count`."""

    seeds: int
    requests: int
    loads: tuple[float, ...]

    def count(self, cell: Cell) -> int:
        """Requests in each run of a cell: more where batches are large, so that there are many."""
        scale = max(1.0, (DEVICES[cell.device].max_batch / 32) ** 0.5)
        return max(int(self.requests * scale), self.requests // 50 * cell.loop.total)


FULL = Plan(8, 5_000, (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2))
QUICK = Plan(3, 1_500, (0.1, 0.3, 0.5, 0.8, 1.0))


@dataclass(frozen=True)
class Run:
    """One policy in one cell with one seed. Milliseconds; `rate`: answered in time, a second."""

    seed: int
    p50: float
    p99: float
    mean: float
    rate: float
    batch: float


@dataclass(frozen=True)
class Bound:
    """What no policy can beat in a cell, as a mean over its seeds; `cycle` of closed loops."""

    p50: float
    p99: float
    rate: float
    cycle: float | None


@dataclass
class Findings:
    """Of one cell: the runs of each policy, in the order of the seeds, and the bound."""

    cell: Cell
    runs: dict[str, list[Run]]
    bound: Bound

    def mean(self, policy: str, figure: str) -> float:
        """A figure's mean over the seeds."""
        return float(np.mean([getattr(run, figure) for run in self.runs[policy]]))


def cells(plan: Plan, devices: list[str], only: str = "") -> list[Cell]:
    """The cells of these devices with this name, or those whose names begin so."""
    found = [cell for name in devices for cell in _cells_of(name, plan)]
    exact = [cell for cell in found if cell.name == only]
    return exact or [cell for cell in found if cell.name.startswith(only)]


def _cells_of(device: str, plan: Plan) -> Iterator[Cell]:
    for kind in ("poisson", "bursty"):
        for load in plan.loads:
            yield Cell(device, kind, load)
    for loop in LOOPS:
        yield Cell(device, "closed", loop=loop)


def campaign(
    plan: Plan, chosen: list[Cell], policies: list[str], announce: Callable[[], None]
) -> list[Findings]:
    """Simulate all cells."""
    runs: dict[Cell, list[tuple[dict[str, Run], Bound]]] = {cell: [] for cell in chosen}
    with ProcessPoolExecutor(_PROCESSES) as pool:
        futures = [
            (cell, pool.submit(pair, cell, policies, seed, plan.count(cell)))
            for cell in chosen
            for seed in range(1, plan.seeds + 1)
        ]
        try:
            for cell, future in futures:
                runs[cell].append(future.result())
                announce()
        finally:
            pool.shutdown(cancel_futures=True)
    return [_together(cell, found) for cell, found in runs.items()]


def pair(cell: Cell, policies: list[str], seed: int, requests: int) -> tuple[dict[str, Run], Bound]:
    """The runs of all policies in one cell with one seed, and the bound."""
    sent = _sent(cell, seed, requests)
    runs = {name: simulated(cell, name, seed, requests, sent) for name in policies}
    return runs, _bound(cell, sent, requests)


def _together(cell: Cell, found: list[tuple[dict[str, Run], Bound]]) -> Findings:
    runs = {name: [pairs[name] for pairs, _ in found] for name in found[0][0]}
    p50, p99, rate = (
        float(np.mean([getattr(bound, figure) for _, bound in found]))
        for figure in ("p50", "p99", "rate")
    )
    return Findings(cell, runs, Bound(p50, p99, rate, found[0][1].cycle))


def simulated(cell: Cell, name: str, seed: int, requests: int, sent: list[int]) -> Run:
    """One policy in one cell with one seed."""
    device = DEVICES[cell.device]
    warm = int(_WARM * requests)
    clients: OpenLoop | ClosedLoop
    if cell.kind == "closed":
        clients = ClosedLoop(seed, cell.loop, requests, warm)
    else:
        clients = OpenLoop(seed, sent, device.deadline, warm)
    try:
        with _time_limit():
            sizes = simulate(POLICIES[name](device), clients, device, seed)
    except (AssertionError, TimeoutError) as error:
        raise RuntimeError(f"{name} on {cell.device} in {cell.name}, seed {seed}") from error
    latencies = np.array(clients.counted()) / MS
    p50, p99 = np.percentile(latencies, (50, 99), method="higher")
    return Run(
        seed,
        float(p50),
        float(p99),
        float(latencies.mean()),
        clients.rate(),
        sum(sizes) / len(sizes) if sizes else 0.0,
    )


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    """A policy that never comes back from a decision ends with an error."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done after {_LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _sent(cell: Cell, seed: int, requests: int) -> list[int]:
    device = DEVICES[cell.device]
    rate = cell.load * device.capacity
    if cell.kind == "poisson":
        return arrivals.poisson(seed, rate, requests)
    if cell.kind == "bursty":
        return arrivals.bursty(seed, rate, requests, device.single)
    return []


def _bound(cell: Cell, sent: list[int], requests: int) -> Bound:
    device = DEVICES[cell.device]
    if cell.kind == "closed":
        best = bounds.cycle(device, cell.loop)
        least = device.single / MS
        return Bound(least, least, cell.loop.total * S / best, best / MS)
    counted = sent[int(_WARM * requests) :]
    deadline = device.deadline
    p50, p99 = (bounds.latency(device, counted, share, deadline) / MS for share in (0.5, 0.99))
    share = bounds.goodput(device, counted, deadline)
    seconds = (counted[-1] - counted[0]) / S
    return Bound(p50, p99, share * len(counted) / seconds, None)
