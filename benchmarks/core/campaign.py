"""The run itself.

sweep     each system at each of its settings, briefly, and those with the most rows a second once
          more; the best is kept, once for rows a second and once for the latency of one request
rounds    all systems in turn, at their best settings, several times: the machine is noisy, and
          only figures taken side by side can be compared
driver    the HTTP client against a server that is hardly there
scale     Penstock with ever more clients and the same number of requests outstanding in all, for
          several such numbers; and what the fewest and the most clients do with no system at all
memory    the engine process with no client and with many

A system that fails is taken down as failed, and the run goes on.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.core import load
from benchmarks.core.load import Sample, Timing
from benchmarks.core.memory import held_by
from benchmarks.core.plan import JUDGED_TOTAL, LATENCY, THROUGHPUT, TOTALS, Plan
from benchmarks.core.processes import ChildFailed, Workspace
from benchmarks.core.systems.interface import Load, Settings, System
from benchmarks.core.systems.roster import DRIVER_LIMIT, NOTHING, PENSTOCK, SYSTEMS

Announce = Callable[[str], None]


@dataclass
class Trial:
    """One setting of a system: what it came to under both loads, or why it did not."""

    settings: Settings
    throughput: list[Sample] = field(default_factory=list)
    latency: list[Sample] = field(default_factory=list)
    failure: str | None = None

    def best_rows_per_s(self) -> float:
        return max((sample.rows_per_s for sample in self.throughput), default=0.0)

    def best_p50_us(self) -> float:
        return min((sample.p50_us for sample in self.latency), default=math.inf)


@dataclass
class Figures:
    """A system's medians over the rounds, with the samples behind them."""

    title: str
    throughput_settings: Settings
    latency_settings: Settings
    throughput: list[Sample] = field(default_factory=list)
    latency: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def rows_per_s(self) -> float | None:
        return middle([sample.rows_per_s for sample in self.throughput])

    def p50_us(self) -> float | None:
        return middle([sample.p50_us for sample in self.throughput])

    def p99_us(self) -> float | None:
        return middle([sample.p99_us for sample in self.throughput])

    def single_p50_us(self) -> float | None:
        return middle([sample.p50_us for sample in self.latency])

    def single_p99_us(self) -> float | None:
        return middle([sample.p99_us for sample in self.latency])


@dataclass
class Scale:
    """Samples by number of requests outstanding in all, and of clients."""

    samples: dict[int, dict[int, list[Sample]]] = field(
        default_factory=lambda: {total: {} for total in TOTALS}
    )
    failures: list[str] = field(default_factory=list)

    def add(self, total: int, clients: int, sample: Sample) -> None:
        self.samples[total].setdefault(clients, []).append(sample)

    def rows_per_s(self, clients: int, total: int = JUDGED_TOTAL) -> float | None:
        return middle([sample.rows_per_s for sample in self.samples[total].get(clients, [])])

    def loss(self, clients: int, total: int = JUDGED_TOTAL) -> float | None:
        """The share of the rows a second with 4 clients that is lost with so many."""
        few, many = self.rows_per_s(4, total), self.rows_per_s(clients, total)
        return None if few is None or many is None else 1 - many / few


@dataclass(frozen=True)
class Growth:
    """What the engine process held, in bytes, with no client and with many that had worked."""

    clients: int
    rss_before: int
    rss_with_clients: int
    pss_before: int
    pss_with_clients: int

    def bytes_per_client(self) -> float:
        """By the count that is worse for us."""
        rss = self.rss_with_clients - self.rss_before
        pss = self.pss_with_clients - self.pss_before
        return max(rss, pss) / self.clients


@dataclass
class Findings:
    """All that a run found."""

    sweeps: dict[str, list[Trial]] = field(default_factory=dict)
    figures: dict[str, Figures] = field(default_factory=dict)
    driver: Figures | None = None
    scale: Scale = field(default_factory=Scale)
    nothing: Scale = field(default_factory=Scale)
    memory: Growth | None = None
    failures: list[str] = field(default_factory=list)


def middle(values: Sequence[float]) -> float | None:
    """The median, or None where nothing was measured."""
    return median(values) if values else None


class Campaign:
    """Runs a plan; announces each of its steps before taking it."""

    def __init__(self, plan: Plan, workspace: Workspace, announce: Announce) -> None:
        self._plan = plan
        self._workspace = workspace
        self._announce = announce
        self.findings = Findings()

    def steps(self) -> int:
        """How many steps `run` will announce."""
        plan = self._plan
        trials = sum(len(each.sweep(plan.quick)) + self._finalists(each) for each in SYSTEMS)
        return (
            trials
            + plan.rounds * len(SYSTEMS)
            + 1
            + plan.scale_rounds * (len(plan.scale_clients) + len(plan.scale_ends()))
            + 1
        )

    def run(self) -> Findings:
        for system in SYSTEMS:
            self.findings.sweeps[system.name] = self._sweep(system)
        self._compare()
        self._measure_driver()
        self._measure_scale()
        self._measure_memory()
        return self.findings

    def _sweep(self, system: System) -> list[Trial]:
        trials = [Trial(settings) for settings in system.sweep(self._plan.quick)]
        for trial in trials:
            self._try(system, trial)
        ranked = sorted(trials, key=Trial.best_rows_per_s, reverse=True)
        for trial in ranked[: self._finalists(system)]:
            self._try(system, trial)
        return trials

    def _finalists(self, system: System) -> int:
        return min(self._plan.finalists, len(system.sweep(self._plan.quick)))

    def _try(self, system: System, trial: Trial) -> None:
        self._announce(f"{system.title}: trying {described(trial.settings)}")
        plan = self._plan
        try:
            with system.serve(trial.settings, self._workspace) as endpoint:
                sample = self._measure(system, endpoint, THROUGHPUT, plan.sweep_throughput)
                trial.throughput.append(sample)
                sample = self._measure(system, endpoint, LATENCY, plan.sweep_latency)
                trial.latency.append(sample)
        except ChildFailed as failure:
            trial.failure = self._note(failure)

    def _compare(self) -> None:
        for system in SYSTEMS:
            best_rows, best_latency = self._best_settings(system)
            self.findings.figures[system.name] = Figures(system.title, best_rows, best_latency)
        for turn in range(self._plan.rounds):
            for place in range(len(SYSTEMS)):
                system = SYSTEMS[(turn + place) % len(SYSTEMS)]
                self._announce(f"Round {turn + 1}: {system.title}")
                self._measure_both(system, self.findings.figures[system.name])

    def _best_settings(self, system: System) -> tuple[Settings, Settings]:
        trials = self.findings.sweeps[system.name]
        best_rows = max(trials, key=Trial.best_rows_per_s)
        best_latency = min(trials, key=Trial.best_p50_us)
        return best_rows.settings, best_latency.settings

    def _measure_both(self, system: System, figures: Figures) -> None:
        plan = self._plan
        try:
            with system.serve(figures.throughput_settings, self._workspace) as endpoint:
                sample = self._measure(system, endpoint, THROUGHPUT, plan.throughput)
                figures.throughput.append(sample)
                if figures.latency_settings == figures.throughput_settings:
                    sample = self._measure(system, endpoint, LATENCY, plan.latency)
                    figures.latency.append(sample)
                    return
            with system.serve(figures.latency_settings, self._workspace) as endpoint:
                figures.latency.append(self._measure(system, endpoint, LATENCY, plan.latency))
        except ChildFailed as failure:
            figures.failures.append(self._note(failure))

    def _measure_driver(self) -> None:
        self._announce("The HTTP driver alone")
        settings = DRIVER_LIMIT.sweep(self._plan.quick)[0]
        self.findings.driver = Figures(DRIVER_LIMIT.title, settings, settings)
        self._measure_both(DRIVER_LIMIT, self.findings.driver)

    def _measure_scale(self) -> None:
        plan, findings = self._plan, self.findings
        for turn in range(plan.scale_rounds):
            for crowd in plan.scale_crowds():
                self._announce(f"Scale, round {turn + 1}: {crowd.clients} clients")
                self._scaled(PENSTOCK, PENSTOCK.usual, crowd, findings.scale)
            for crowd in plan.scale_ends():
                self._announce(f"Scale, round {turn + 1}: {crowd.clients} clients, no system")
                self._scaled(NOTHING, {}, crowd, findings.nothing)

    def _scaled(self, system: System, settings: Settings, crowd: Load, scale: Scale) -> None:
        try:
            with (
                system.serve(settings, self._workspace) as endpoint,
                load.crowd(system, endpoint, crowd, self._workspace) as clients,
            ):
                for total in TOTALS:
                    each = total // crowd.clients
                    sample = clients.measure(self._plan.scale, each)
                    scale.add(total, crowd.clients, sample)
        except ChildFailed as failure:
            scale.failures.append(self._note(failure))

    def _measure_memory(self) -> None:
        plan = self._plan
        self._announce(f"Memory with {plan.memory_clients} clients")
        crowd = Load(plan.memory_clients, 1)
        try:
            with PENSTOCK.serve_process(PENSTOCK.usual, self._workspace) as (endpoint, pid):
                self._measure(PENSTOCK, endpoint, LATENCY, plan.memory)
                before = held_by(pid)
                with load.crowd(PENSTOCK, endpoint, crowd, self._workspace) as clients:
                    clients.measure(plan.memory)
                    after = held_by(pid)
        except (ChildFailed, OSError) as failure:
            self._note(failure)
            return
        self.findings.memory = Growth(crowd.clients, before.rss, after.rss, before.pss, after.pss)

    def _measure(self, system: System, endpoint: str, crowd: Load, timing: Timing) -> Sample:
        return load.measure(system, endpoint, crowd, timing, self._workspace)

    def _note(self, failure: Exception) -> str:
        """Keep a failure in full for the terminal; for the results, what failed and how."""
        self.findings.failures.append(str(failure))
        lines = str(failure).splitlines() or [type(failure).__name__]
        return lines[0] if len(lines) == 1 else f"{lines[0]}: {lines[-1]}"


def described(settings: Settings) -> str:
    """Settings in one line."""
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "nothing to set"
