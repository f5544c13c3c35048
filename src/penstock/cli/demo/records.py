"""What the demo finds out, as records; `--json` prints them as they are."""

from __future__ import annotations

from dataclasses import dataclass

PREDICT = "model.predict, own copy"
COMPILED = "compiled, own copy"
PENSTOCK = "Penstock, one copy"

TOLERANCE = 1e-4  # of a probability: sums come in another order in a batch, and are rounded


@dataclass(frozen=True)
class Machine:
    """Where it was measured."""

    cores: int
    memory_bytes: int
    python: str
    tensorflow: str
    keras: str


@dataclass(frozen=True)
class Network:
    """The network that was trained. `accuracy` is the share of the held-out digits it got right."""

    weights: int
    epochs: int
    trained_on: int
    held_out: int
    accuracy: float


@dataclass(frozen=True)
class Work:
    """What was asked. `note` says why there were fewer processes than wanted; else ""."""

    processes: int
    processes_wanted: int
    outstanding_per_process: int
    seconds: float
    tolerance: float
    note: str = ""


@dataclass(frozen=True)
class Agreement:
    """How answers compare with those that the network gave where it was trained, all in a batch."""

    compared: int
    same_class: int
    largest_difference: float

    @property
    def good(self) -> bool:
        """Whether all are the same class, and the same up to rounding."""
        return self.same_class == self.compared and self.largest_difference <= TOLERANCE


@dataclass(frozen=True)
class Way:
    """What was measured of one way. `processes`: all that it took; `with_tensorflow`: of those."""

    name: str
    answers_per_second: float
    p50_ms: float
    p99_ms: float
    start_seconds: float
    memory_bytes: int
    processes: int
    with_tensorflow: int
    answers: int
    agreement: Agreement


@dataclass(frozen=True)
class Sharing:
    """What the engine tells of its part: batches, how the network is compiled, times by size."""

    mean_batch: float
    mode: str
    load_seconds: float
    milliseconds_by_batch: dict[int, float]


@dataclass(frozen=True)
class Comparison:
    """The demo's result. The ways: `model.predict`, a compiled function, Penstock."""

    machine: Machine
    network: Network
    work: Work
    ways: tuple[Way, Way, Way]
    sharing: Sharing
    seconds: float

    @property
    def agree(self) -> bool:
        """Whether all answers of all ways are as they should be."""
        return all(way.agreement.good for way in self.ways)
