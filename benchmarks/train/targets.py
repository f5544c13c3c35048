"""The goals of the training benchmark, beside what was found. They are meant for one H200."""

from typing import Any

from benchmarks.core.goals import Verdict, verdict
from benchmarks.train.parts import AUTO, BFLOAT, PLAIN, SAME


def verdicts(parts: dict[str, list[dict[str, Any]]], gpu: bool) -> list[Verdict]:
    """Every goal with what is known of it."""
    rates = {row["title"]: row["images_per_s"] for row in parts.get("rate", [])}
    remat = parts.get("remat", [])
    found = [
        verdict("the same settings, against Model.fit", "times", _of(rates, SAME), "≥", 1.0, None),
        verdict("auto, against Model.fit", "times", _of(rates, AUTO), "≥", 2.0, None),
        verdict("auto in bfloat16, likewise", "times", _of(rates, BFLOAT), "≥", 2.0, None),
    ]
    for way in ("no XLA", "XLA"):
        kept, again = (_row(remat, f"{name}, {way}") for name in ("kept", "recomputed"))
        figure = _ratio(again.get("peak_bytes"), kept.get("peak_bytes"))
        found.append(verdict(f"remat, {way}: peak against kept", "times", figure, "<", 1.0, None))
    large = parts.get("large", [])
    if gpu and len(large) == 2:
        held = float(large[0]["error"] is None)
        found.append(verdict("large: Model.fit holds it", "", held, "≤", 0, None))
        ran = float(large[1]["images_per_s"] is not None)
        found.append(verdict("large: penstock trains it", "", ran, "≥", 1, None))
    return found


def _of(rates: dict[str, float | None], title: str) -> float | None:
    return _ratio(rates.get(title), rates.get(PLAIN))


def _row(rows: list[dict[str, Any]], title: str) -> dict[str, Any]:
    return next((row for row in rows if row["title"] == title), {})


def _ratio(figure: float | None, other: float | None) -> float | None:
    return figure / other if figure and other else None
