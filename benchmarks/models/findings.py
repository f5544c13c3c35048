"""What a run found, and what follows from it by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.core.load import Sample
from benchmarks.models.cores import Use

QUIET = 0.1  # cores that other processes may have


@dataclass(frozen=True)
class Trial:
    """The network in one mode at one batch size: images a second, or why it was not measured."""

    mode: str
    size: int
    images_per_s: float | None = None
    built_s: float | None = None
    skipped: str = ""


@dataclass(frozen=True)
class Start:
    """One start of the engine: seconds until it was ready, and until its first answer."""

    ready_s: float
    answered_s: float
    cached: bool
    mode: str


@dataclass(frozen=True)
class Pair:
    """A start with an empty cache, and the next one with what that left there."""

    first: Start
    second: Start

    def ratio(self) -> float:
        return self.first.answered_s / self.second.answered_s


@dataclass(frozen=True)
class Served:
    """What Penstock did in one round: its batches, and the time on cores that an image took.

    `worker_us` and the others are microseconds of CPU an image.
    """

    batches: int
    rows: int
    sizes: dict[str, int]
    closed: dict[str, int]
    times: dict[str, Any]
    worker_us: float
    engine_us: float
    clients_us: float

    def mean_batch(self) -> float:
        return self.rows / self.batches if self.batches else 0.0


@dataclass(frozen=True)
class Measured:
    """One load of one way, and who had the cores meanwhile."""

    sample: Sample
    cores: Use


@dataclass
class Figures:
    """One way to have images answered: its samples by round, its memory."""

    title: str
    rounds: dict[int, Measured] = field(default_factory=dict)
    memory_bytes: int | None = None
    failure: str | None = None

    def images_per_s(self) -> float | None:
        return middle(self.rates())

    def rates(self) -> list[float]:
        return [sample.rows_per_s for sample in self._samples()]

    def p50_ms(self) -> float | None:
        return middle([sample.p50_us / 1000 for sample in self._samples()])

    def p99_ms(self) -> float | None:
        return middle([sample.p99_us / 1000 for sample in self._samples()])

    def cores(self) -> float | None:
        """Cores that its processes kept busy."""
        return middle([measured.cores.own for measured in self.rounds.values()])

    def others(self) -> list[float]:
        """Cores that other processes of the machine had, round by round."""
        return [measured.cores.others for measured in self.rounds.values()]

    def _samples(self) -> list[Sample]:
        return [measured.sample for measured in self.rounds.values()]


@dataclass
class Findings:
    """All that a run found. `limits` are the finalists of the sweep, by mode and size."""

    network: dict[str, Any] = field(default_factory=dict)
    pairs: list[Pair] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    limits: dict[str, Figures] = field(default_factory=dict)
    penstock: Figures = field(default_factory=lambda: Figures("Penstock, 8 × 4 outstanding"))
    predict: Figures = field(default_factory=lambda: Figures("8 × own model.predict"))
    function: Figures = field(default_factory=lambda: Figures("8 × own tf.function"))
    served: list[Served] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def best_limit(self) -> Figures | None:
        """The finalist with the most images a second."""
        measured = [figures for figures in self.limits.values() if figures.rounds]
        return max(measured, key=lambda figures: figures.images_per_s() or 0.0, default=None)

    def ways(self) -> list[Figures]:
        """All that was measured in rounds."""
        return [self.penstock, self.predict, self.function, *self.limits.values()]

    def others(self) -> list[float]:
        """Cores that other processes of the machine had, of every way in every round."""
        return [cores for figures in self.ways() for cores in figures.others()]

    def disturbed(self) -> bool:
        """Whether others had so much of the cores that the comparison cannot be trusted."""
        return (middle(self.others()) or 0.0) > QUIET

    def ratios(self, other: Figures | None) -> list[float]:
        """Penstock's images a second against another way's, round by round."""
        if other is None:
            return []
        ours, theirs = self.penstock.rounds, other.rounds
        return [
            ours[turn].sample.rows_per_s / theirs[turn].sample.rows_per_s
            for turn in sorted(ours.keys() & theirs.keys())
        ]


def middle(values: Sequence[float]) -> float | None:
    """The median, or None where nothing was measured."""
    return median(values) if values else None
