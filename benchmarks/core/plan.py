"""How much is measured: loads, times and repetitions of a full and of a quick run."""

from dataclasses import dataclass

from benchmarks.core.load import Timing
from benchmarks.core.systems.interface import Load

THROUGHPUT = Load(clients=4, outstanding=8)
LATENCY = Load(clients=1, outstanding=1)
TOTAL_OUTSTANDING = 256


@dataclass(frozen=True)
class Plan:
    """A run; times in seconds."""

    quick: bool
    finalists: int
    rounds: int
    sweep_throughput: Timing
    sweep_latency: Timing
    throughput: Timing
    latency: Timing
    scale: Timing
    scale_rounds: int
    scale_clients: tuple[int, ...]
    memory: Timing
    memory_clients: int

    def scale_loads(self) -> list[Load]:
        """The same number of requests outstanding, from ever more processes."""
        return [Load(clients, TOTAL_OUTSTANDING // clients) for clients in self.scale_clients]


FULL = Plan(
    quick=False,
    finalists=3,
    rounds=3,
    sweep_throughput=Timing(warm_up=0.3, measure=1.0),
    sweep_latency=Timing(warm_up=0.2, measure=0.5),
    throughput=Timing(warm_up=0.7, measure=3.0),
    latency=Timing(warm_up=0.3, measure=2.0),
    scale=Timing(warm_up=1.0, measure=3.0),
    scale_rounds=2,
    scale_clients=(4, 16, 64, 256),
    memory=Timing(warm_up=0.2, measure=1.0),
    memory_clients=64,
)

QUICK = Plan(
    quick=True,
    finalists=0,
    rounds=1,
    sweep_throughput=Timing(warm_up=0.2, measure=0.5),
    sweep_latency=Timing(warm_up=0.1, measure=0.3),
    throughput=Timing(warm_up=0.3, measure=1.0),
    latency=Timing(warm_up=0.2, measure=0.5),
    scale=Timing(warm_up=0.5, measure=1.0),
    scale_rounds=1,
    scale_clients=(4, 256),
    memory=Timing(warm_up=0.1, measure=0.4),
    memory_clients=16,
)
