"""Which precision to compute in: the fastest whose answers are close enough to float32's.

Decides on figures; `examine` measures them. float32 is kept unless another precision is at least
5 % faster, and none is taken whose drift is more than the tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.model.drift import Drift

AUTO = ("mixed_bfloat16", "mixed_float16")  # what is tried beside float32
_WORTH = 0.95


class Tried(NamedTuple):
    """A precision: seconds for a batch of the largest size, and its drift from float32."""

    seconds: float
    drift: Drift


def decide(exact: float, tried: Mapping[str, Tried], tolerance: float) -> tuple[str, str]:
    """The precision to take and why. `exact` are float32's seconds."""
    close = {name: it for name, it in tried.items() if it.drift.largest <= tolerance}
    best = min(close, key=lambda name: close[name].seconds, default="")
    if best and close[best].seconds < _WORTH * exact:
        factor = exact / close[best].seconds
        return best, f"{factor:.2g} × as fast as float32, with {close[best].drift}"
    if best:
        return "float32", f"no other precision within a drift of {tolerance:g} is 5 % faster"
    return "float32", f"every other precision drifts by more than {tolerance:g}, or failed"


def told(tried: Mapping[str, Tried]) -> dict[str, dict[str, Any]]:
    """As findings keep it."""
    return {
        name: {**it.drift.to_json(), "nanoseconds": int(it.seconds * 1e9)}
        for name, it in tried.items()
    }
