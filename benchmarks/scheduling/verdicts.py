"""The goals, judged by arithmetic alone; each of them can fail.

- In every cell, open loop or closed, Penstock's p99 is within 5 % of the best of the others (greedy
  and fixed delays), and so is the rate of requests that it answers in time.
- Against each other policy there is a cell where Penstock is better by 10 % or more, at a load that
  somebody would run (0.3 to 1.0) or in a closed loop.
- Closed loop 16×1: the mean cycle is within 10 % of the best possible (see `bounds`).

These hold on the devices that were measured. Beside them, and not required (`Verdict.required`),
the same is asked against two pipelined policies, and of two devices, of which one was measured.

A comparison is the ratio of paired runs, seed by seed; its mean and interval are of the logarithms
(Student's t, 95 % on each side). A goal is *met* when the interval, or every single pair, lies on
the right side of the limit, *unsure* when only the mean does, *not met* otherwise. Pairs count for
this: latencies end at the deadline. Where all others are there, a run in which Penstock is much
better than in the next widens the interval to both sides, though none can be worse.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

from benchmarks.scheduling.campaign import OTHERS, OURS, PIPELINED, Cell, Findings
from benchmarks.scheduling.devices import DEVICES

ALL = OTHERS + PIPELINED
WITHIN, BETTER, CYCLE = 1.05, 0.9, 1.10
_LOADS_THAT_MATTER = (0.3, 1.0)
_T95 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81)  # 1, 2 … degrees of freedom


@dataclass(frozen=True)
class Ratio:
    """Penstock against another, below 1 when Penstock is better.

    `low` to `high` is the interval of the mean, `most` the worst pair.
    """

    cell: Cell
    figure: str
    other: str
    mean: float
    low: float
    high: float
    most: float


@dataclass(frozen=True)
class Verdict:
    """One goal; `met` is None when unsure. `worst` decided it; `misses` are all that fail it."""

    goal: str
    limit: float
    met: bool | None
    worst: Ratio | None
    misses: tuple[Ratio, ...]
    required: bool = True


def compare(findings: Findings, figure: str, other: str) -> Ratio:
    """How Penstock's figure relates to another policy's, pair by pair."""
    pairs = zip(findings.runs[OURS], findings.runs[other], strict=True)
    logs = []
    for ours, theirs in pairs:
        one, two = getattr(ours, figure), getattr(theirs, figure)
        if figure == "rate":  # more is better
            one, two = max(two, 1e-3), max(one, 1e-3)
        logs.append(math.log(one / two))
    return _ratio(findings.cell, figure, other, logs)


def best_other(findings: Findings, figure: str, others: tuple[str, ...] = ALL) -> str:
    """The policy, among these, with the best mean of a figure."""
    best = max if figure == "rate" else min
    present = [name for name in others if name in findings.runs]
    return best(present, key=lambda name: findings.mean(name, figure))


def against_best(findings: Findings, figure: str, others: tuple[str, ...] = ALL) -> Ratio:
    """Penstock against the best of these."""
    return compare(findings, figure, best_other(findings, figure, others))


def against_bound(findings: Findings) -> Ratio:
    """A closed loop's mean cycle against the best possible: the ratio of rates."""
    logs = [math.log(findings.bound.rate / run.rate) for run in findings.runs[OURS]]
    return _ratio(findings.cell, "cycle", "bound", logs)


def verdicts(all_findings: list[Findings]) -> list[Verdict]:
    """Every goal that these findings can judge, the required ones first."""
    one = [found for found in all_findings if DEVICES[found.cell.device].workers == 1]
    more = [found for found in all_findings if DEVICES[found.cell.device].workers > 1]
    beside = [
        *_goals(more, OTHERS, "the best other, two devices"),
        *_goals(all_findings, PIPELINED, "the best pipelined one"),
        *(_somewhere_better(all_findings, name) for name in PIPELINED),
    ]
    return [
        *_goals(one, OTHERS, "the best other"),
        *(found for name in OTHERS if (found := _somewhere_better(one, name))),
        *(replace(found, required=False) for found in beside if found),
    ]


def _goals(findings: list[Findings], others: tuple[str, ...], who: str) -> list[Verdict]:
    opened = [found for found in findings if found.cell.kind != "closed"]
    closed = [found for found in findings if found.cell.kind == "closed"]
    judged: list[Verdict | None] = []
    for kind, chosen in (("open", opened), ("closed", closed)):
        for figure, what in (("p99", "p99"), ("rate", "answered in time")):
            ratios = [against_best(found, figure, others) for found in chosen]
            judged.append(_every(f"{kind} loop: {what} against {who}", WITHIN, ratios))
    if others is OTHERS:
        cycles = [against_bound(found) for found in closed if found.cell.name == "closed-16x1"]
        devices = who.removeprefix("the best other")
        goal = f"closed loop 16×1: cycle against the best possible{devices}"
        judged.append(_every(goal, CYCLE, cycles))
    return [verdict for verdict in judged if verdict]


def _every(goal: str, limit: float, ratios: list[Ratio]) -> Verdict | None:
    if not ratios:
        return None
    worst = max(ratios, key=lambda ratio: ratio.mean)
    misses = sorted(
        (ratio for ratio in ratios if min(ratio.high, ratio.most) > limit),
        key=lambda ratio: ratio.mean,
        reverse=True,
    )
    met = False if worst.mean > limit else None if misses else True
    return Verdict(goal, limit, met, worst, tuple(misses))


def _somewhere_better(findings: list[Findings], other: str) -> Verdict | None:
    low, high = _LOADS_THAT_MATTER
    ratios = [
        compare(found, figure, other)
        for found in findings
        if other in found.runs and (found.cell.kind == "closed" or low <= found.cell.load <= high)
        for figure in (("rate",) if found.cell.kind == "closed" else ("p99", "rate"))
    ]
    if not ratios:
        return None
    best = min(ratios, key=lambda ratio: ratio.high)
    met = best.high <= BETTER
    return Verdict(f"somewhere better than {other}", BETTER, met, best, () if met else (best,))


def _ratio(cell: Cell, figure: str, other: str, logs: list[float]) -> Ratio:
    mean = statistics.fmean(logs)
    half = 0.0
    if len(logs) > 1:
        t = _T95[min(len(logs) - 2, len(_T95) - 1)]
        half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    low, middle, high, most = map(math.exp, (mean - half, mean, mean + half, max(logs)))
    return Ratio(cell, figure, other, middle, low, high, most)
