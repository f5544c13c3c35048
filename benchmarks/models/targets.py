"""The goals of the models benchmark, beside the figures of a run.

Ratios are medians of those of each round, in which the ways ran one after the other.
"""

from benchmarks.core.goals import Verdict, verdict
from benchmarks.models.findings import Findings, middle

LIMIT_SHARE, LIMIT_STRETCH = 0.85, 0.95


def verdicts(findings: Findings) -> list[Verdict]:
    """Every goal with what this run found."""
    best = findings.best_limit()
    return [
        verdict(
            f"against the best in {best.title if best else 'one process'}",
            "times",
            middle(findings.ratios(best)),
            "≥",
            LIMIT_SHARE,
            LIMIT_STRETCH,
        ),
        verdict(
            "against 8 processes with model.predict",
            "times",
            middle(findings.ratios(findings.predict)),
            ">",
            1,
            5,
        ),
        verdict(
            "against 8 processes with tf.function",
            "times",
            middle(findings.ratios(findings.function)),
            ">",
            1,
            None,
        ),
        verdict(
            "the first start against the second",
            "times",
            middle([pair.ratio() for pair in findings.pairs]),
            "≥",
            1.5,
            None,
        ),
    ]
