"""The goals, beside the figures of a run: met or not, by arithmetic alone."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import ge, le, lt

from benchmarks.core.campaign import Findings
from benchmarks.core.systems.roster import PEERS, PENSTOCK


@dataclass(frozen=True)
class Verdict:
    """One goal; `met` and `stretch_met` are None where the figure is missing."""

    name: str
    unit: str
    figure: float | None
    relation: str
    goal: float
    stretch: float | None
    met: bool | None
    stretch_met: bool | None


_RELATIONS: dict[str, Callable[[float, float], bool]] = {"≥": ge, "≤": le, "<": lt}


def verdicts(findings: Findings) -> list[Verdict]:
    """Every goal with what this run found."""
    ours = findings.figures[PENSTOCK.name]
    rows = ours.rows_per_s()
    title, peer_rows = best_peer(findings)
    loss = findings.scale.loss(256)
    memory = findings.memory.bytes_per_client() if findings.memory else None
    return [
        _verdict("4 clients × 8 outstanding", "rows/s", rows, "≥", 15_000, 30_000),
        _verdict(
            f"the same against {title}, the best peer", "times", _ratio(rows, peer_rows), "≥", 4, 8
        ),
        _verdict("1 client × 1 outstanding, p50", "µs", ours.single_p50_us(), "≤", 300, 170),
        _verdict("rows/s lost from 4 to 256 clients", "%", _times(loss, 100), "<", 40, 20),
        _verdict("memory a client adds to the engine", "MB", _times(memory, 1e-6), "<", 1, None),
    ]


def best_peer(findings: Findings) -> tuple[str, float | None]:
    """The peer with the most rows a second."""
    measured = [
        (rows, findings.figures[peer.name].title)
        for peer in PEERS
        if (rows := findings.figures[peer.name].rows_per_s()) is not None
    ]
    if not measured:
        return "none", None
    rows, title = max(measured)
    return title, rows


def _verdict(
    name: str, unit: str, figure: float | None, relation: str, goal: float, stretch: float | None
) -> Verdict:
    holds = _RELATIONS[relation]
    met = None if figure is None else holds(figure, goal)
    stretch_met = None if figure is None or stretch is None else holds(figure, stretch)
    return Verdict(name, unit, figure, relation, goal, stretch, met, stretch_met)


def _ratio(figure: float | None, other: float | None) -> float | None:
    return None if figure is None or other is None else figure / other


def _times(figure: float | None, factor: float) -> float | None:
    return None if figure is None else figure * factor
