"""How much is measured: times, repetitions and batch sizes of a full and of a quick run."""

from dataclasses import dataclass

from benchmarks.core.load import Timing
from benchmarks.core.systems.interface import Load

PENSTOCK = Load(clients=8, outstanding=4)
ALONE = Load(clients=8, outstanding=1)
PLAIN_MODES = ("frozen", "function")
XLA_MODES = ("frozen-xla", "xla")


@dataclass(frozen=True)
class Plan:
    """A run; times in seconds. `memory`: the load before memory is measured, None to leave it out.

    Memory needs processes of their own for each way. Without it, those that call a model of their
    own do so both ways, which saves half of the starting.
    """

    quick: bool
    images: int
    pairs: int
    sizes: tuple[int, ...]
    xla_sizes: tuple[int, ...]
    xla_within: float
    cell: float
    finalists: int
    rounds: int
    load: Timing
    memory: Timing | None

    def cells(self) -> list[tuple[str, int]]:
        """Every mode at every size that is to be tried, in this order."""
        plain = [(mode, size) for mode in PLAIN_MODES for size in self.sizes]
        return plain + [(mode, size) for mode in XLA_MODES for size in self.xla_sizes]


FULL = Plan(
    quick=False,
    images=512,
    pairs=3,
    sizes=(1, 2, 4, 8, 16, 32, 64),
    xla_sizes=(1, 8, 32, 64),
    xla_within=20.0,
    cell=0.8,
    finalists=2,
    rounds=5,
    load=Timing(warm_up=1.0, measure=4.0),
    memory=Timing(warm_up=0.5, measure=1.0),
)

QUICK = Plan(
    quick=True,
    images=256,
    pairs=1,
    sizes=(1, 8, 16, 32, 64),
    xla_sizes=(16,),
    xla_within=10.0,
    cell=0.4,
    finalists=1,
    rounds=2,
    load=Timing(warm_up=0.5, measure=2.0),
    memory=None,
)
