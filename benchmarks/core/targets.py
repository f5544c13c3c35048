"""The goals of the core benchmark, beside the figures of a run."""

from benchmarks.core.campaign import Findings
from benchmarks.core.goals import Verdict, verdict
from benchmarks.core.plan import TOTALS
from benchmarks.core.systems.roster import PEERS, PENSTOCK


def verdicts(findings: Findings) -> list[Verdict]:
    """Every goal with what this run found."""
    ours = findings.figures[PENSTOCK.name]
    rows = ours.rows_per_s()
    title, peer_rows = best_peer(findings)
    memory = findings.memory.bytes_per_client() if findings.memory else None
    return [
        verdict("4 clients × 8 outstanding", "rows/s", rows, "≥", 15_000, 30_000),
        verdict(
            f"the same against {title}, the best peer", "times", _ratio(rows, peer_rows), "≥", 4, 8
        ),
        verdict("1 client × 1 outstanding, p50", "µs", ours.single_p50_us(), "≤", 300, 170),
        *(
            verdict(
                f"rows/s lost from 4 to 256 clients, {total:,} outstanding",
                "%",
                _times(findings.scale.loss(256, total), 100),
                "<",
                40,
                20,
            )
            for total in TOTALS
        ),
        verdict("memory a client adds to the engine", "MB", _times(memory, 1e-6), "<", 1, None),
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


def _ratio(figure: float | None, other: float | None) -> float | None:
    return None if figure is None or other is None else figure / other


def _times(figure: float | None, factor: float) -> float | None:
    return None if figure is None else figure * factor
