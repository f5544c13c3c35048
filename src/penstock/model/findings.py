"""What was found out about a model on one device: what the cache keeps, and facts are told from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from penstock.config import COMPILE_MODES, PRECISIONS

Told = dict[str, int] | str
SMALL = "the device's memory"  # in the reason for a largest batch, where that is why


@dataclass(frozen=True)
class Findings:
    """Sizes are keys as JSON has them: texts. Times are nanoseconds, memory is bytes."""

    mode: str
    modes: dict[str, Told] = field(default_factory=dict)
    latency: dict[str, int] = field(default_factory=dict)  # by size, waiting for the result
    unbatched: str = ""
    notes: list[str] = field(default_factory=list)
    measured: bool = True  # whether there are rows to try it with
    max_batch: int = 0
    ladder: list[int] = field(default_factory=list)  # where sizes were searched for
    rates: dict[str, float] = field(default_factory=dict)  # rows a second, with calls in flight
    memory: dict[str, Any] = field(default_factory=dict)  # as `sweep` tells it
    precision: str = ""  # "": as it was saved
    drift: dict[str, dict[str, Any]] = field(default_factory=dict)  # by precision
    reasons: dict[str, str] = field(default_factory=dict)  # why this max_batch, ladder, precision
    searched: bool = False  # whether sizes were measured, and not only set

    def to_json(self) -> dict[str, Any]:
        """As the cache keeps it."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any] | None) -> Findings | None:
        """From the cache; `None` for what is none."""
        try:
            findings = Findings(**data) if data is not None else None
            if findings is None or findings.mode not in COMPILE_MODES or findings.max_batch < 1:
                return None
        except TypeError:
            return None
        known = findings.precision in ("", *PRECISIONS) and findings.precision != "auto"
        return findings if known else None

    def outgrown(self, limit: int) -> bool:
        """Whether there is so much more memory now that larger batches may be worth having."""
        known = int(self.memory.get("limit", 0))
        return self.searched and SMALL in self.reasons.get("max_batch", "") and limit > 1.25 * known
