"""What was found out about a model on one device: what the cache keeps, and facts are told from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.config import COMPILE_MODES, PRECISIONS
from penstock.model.rungs import ladder

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
        return self.is_cut and limit > 1.25 * int(self.memory.get("limit", 0))

    @property
    def is_cut(self) -> bool:
        """Whether larger batches would not fit."""
        return SMALL in self.reasons.get("max_batch", "")

    def cut(self, most: int, limit: int) -> Findings:
        """With batches of at most so many rows: larger ones have not fit into so much memory."""
        return dataclasses.replace(
            self,
            max_batch=most,
            ladder=[size for size in self.ladder if size < most] + [most] if self.ladder else [],
            memory={**self.memory, "limit": limit} if self.memory else {},
            reasons={**self.reasons, "max_batch": f"more rows have not fit into {SMALL}"},
        )

    def sizes(self, wanted: Sequence[int] = ()) -> tuple[int, ...]:
        """The ladder: the one that the settings want, as far as it fits, else what was found."""
        if wanted and self.is_cut:
            return tuple(size for size in wanted if size <= self.max_batch) or (self.max_batch,)
        return tuple(wanted or self.ladder or ladder(self.max_batch))
