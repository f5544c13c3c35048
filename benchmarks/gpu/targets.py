"""The goals of the GPU benchmark, beside what was found. They are meant for one H200."""

from typing import Any

from benchmarks.core.goals import Verdict, verdict
from benchmarks.gpu.results import Results
from benchmarks.gpu.tight import FAILED

FLAT_MB = 32.0  # what allocators may keep more


def verdicts(results: Results, precision: str) -> list[Verdict]:
    """Every goal with what is known of it."""
    limit, bare = results.limit(precision), results.bare_ms(precision, 1)
    crowd, few, one, array, soak = (
        _only(results, part) for part in ("crowd", "few", "one", "array", "soak")
    )
    few_rate, few_p50 = few.get("images_per_s"), few.get("p50_ms")
    tried = results.rows("tight")
    failed = sum(row["details"]["outcome"] == FAILED for row in tried) if tried else None
    soaked = soak.get("details", {})
    starts = [row["details"] for row in results.rows("again")]
    anew = len(starts) == 2 and not starts[0]["facts"]["cached"]
    sooner = starts[0]["ready_s"] / starts[1]["ready_s"] if anew else None
    chosen = one.get("details", {}).get("engine", {}).get("facts", {}).get("max_batch", 0)
    tuned = results.tuned()
    seconds = [each["seconds"] for each in tuned] if len(tuned) == 2 else [None, None]
    largest = tuned[0]["plan"]["max_batch"] if tuned else 0
    return [
        verdict(
            "crowd, against the limit",
            "times",
            _ratio(crowd.get("images_per_s"), limit),
            "≥",
            0.90,
            0.97,
        ),
        verdict("few", "images/s", few_rate, "≥", 4_500, 6_500),
        verdict("few, p50", "ms", few_p50, "≤", 3.5, 2.4),
        verdict(
            "one, p50 against the bare call",
            "times",
            _ratio(one.get("p50_ms"), bare),
            "≤",
            1.3,
            1.15,
        ),
        verdict(
            "array, against the limit",
            "times",
            _ratio(array.get("images_per_s"), limit),
            "≥",
            0.85,
            0.95,
        ),
        verdict("second start, against the first", "times", sooner, "≥", 3.0, None),
        verdict(
            "the largest batch that was chosen, against the best of the sweep",
            "times",
            _ratio(results.rate(precision, chosen), limit),
            "≥",
            0.98,
            None,
        ),
        verdict("tune, nothing cached", "s", seconds[0], "≤", 90, None),
        verdict("tune, cached", "s", seconds[1], "≤", 5, None),
        verdict(
            "the largest batch that tune chose, against the best of all sizes",
            "times",
            _ratio(results.rate(precision, largest), limit if results.rows("limit") else None),
            "≥",
            0.98,
            None,
        ),
        verdict("tight: neither answered nor refused", "engines", failed, "≤", 0, None),
        verdict("soak: answered rightly", "million", _millions(soaked.get("rows")), "≥", 5, None),
        *(
            verdict(f"soak: growth, {name}", "MB", _millions(more), "≤", FLAT_MB, None)
            for name, more in soaked.get("grown_bytes", {}).items()
        ),
    ]


def _only(results: Results, part: str) -> dict[str, Any]:
    rows = results.rows(part)
    return rows[0] if rows else {}


def _ratio(figure: float | None, other: float | None) -> float | None:
    return figure / other if figure and other else None


def _millions(number: int | None) -> float | None:
    return None if number is None else number / 1e6
