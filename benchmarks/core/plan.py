"""How much is measured: loads, times and repetitions of a full and of a quick run."""

from dataclasses import dataclass

from benchmarks.core.load import Timing
from benchmarks.core.systems.interface import Load

THROUGHPUT = Load(clients=4, outstanding=8)
LATENCY = Load(clients=1, outstanding=1)
JUDGED_TOTAL = 256  # requests outstanding in all: the picture draws its goal; each is judged
TOTALS = (JUDGED_TOTAL, 1024, 2048)  # ascending: each adds to what the clients hold


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

    def scale_crowds(self) -> list[Load]:
        """Ever more processes, that may have the most of the totals outstanding between them."""
        return [Load(clients, max(TOTALS) // clients) for clients in self.scale_clients]

    def scale_ends(self) -> list[Load]:
        """The fewest and the most of them."""
        crowds = self.scale_crowds()
        return [crowds[0], crowds[-1]]


FULL = Plan(
    quick=False,
    finalists=3,
    rounds=3,
    sweep_throughput=Timing(warm_up=0.3, measure=1.0),
    sweep_latency=Timing(warm_up=0.2, measure=0.5),
    throughput=Timing(warm_up=0.7, measure=3.0),
    latency=Timing(warm_up=0.3, measure=2.0),
    scale=Timing(warm_up=0.7, measure=1.5),
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
    scale=Timing(warm_up=0.3, measure=0.7),
    scale_rounds=1,
    scale_clients=(4, 256),
    memory=Timing(warm_up=0.1, measure=0.4),
    memory_clients=16,
)
