"""What tuning found: how to compile, in what precision, how many rows at a time, and why."""

from __future__ import annotations

import dataclasses
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.devices.plan import Need
from penstock.errors import ConfigError
from penstock.model.plans import need_of
from penstock.model.sizes import Curve


@dataclass(frozen=True)
class Size:
    """A batch size. Seconds for a call that waits for its result; bytes at the peak (0: unknown).

    `measured` is false for what is read off the line between sizes that were measured.
    """

    rows: int
    latency: float
    rows_per_second: float
    memory: int = 0
    measured: bool = True
    in_ladder: bool = False


@dataclass(frozen=True)
class Plan:
    """How a model runs best on a device. An engine with the same settings starts from it.

    `modes` has each compile mode's nanoseconds by size, or why it was not taken; `drift` how far
    each precision that was tried is from float32. `ladder` is empty where any size can be run as it
    is. `memory` (on GPUs): bytes that are held always, `fixed` and `per_row` of the line that the
    peak is on, and the limit. `reasons` say why `max_batch`, `ladder` and `precision` are what they
    are; `cached` whether all this was known from an earlier run.
    """

    model: str
    source: str
    device: str
    mode: str
    max_batch: int
    precision: str = ""
    ladder: tuple[int, ...] = ()
    sizes: tuple[Size, ...] = ()
    modes: dict[str, dict[str, int] | str] = field(default_factory=dict)
    drift: dict[str, dict[str, Any]] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    unbatched: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    cached: bool = False

    @property
    def rows_per_second(self) -> float:
        """At the largest batch, or one row at a time; 0 where nothing could be measured."""
        rows = 1 if self.unbatched else self.max_batch
        return next((s.rows_per_second for s in self.sizes if s.rows == rows), 0.0)

    @property
    def memory_needed(self) -> int:
        """Bytes that TensorFlow takes at the largest batch; 0 where that is not known."""
        if not self.memory:
            return 0
        return int(self.memory["fixed"] + self.memory["per_row"] * self.max_batch)

    @property
    def need(self) -> Need:
        """What a worker needs of a card for it, for a `penstock.devices.plan`."""
        return need_of(self.memory, self.mode, self.ladder)

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        told: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return {
            **told,
            "rows_per_second": self.rows_per_second,
            "memory_needed": self.memory_needed,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Plan:
        """The inverse of `to_json`. Raises `ConfigError` for what is no plan."""
        try:
            known = {field.name for field in dataclasses.fields(Plan)}
            told = {name: value for name, value in data.items() if name in known}
            told["sizes"] = tuple(Size(**size) for size in told["sizes"])
            told["ladder"] = tuple(told["ladder"])
            told["notes"] = tuple(told["notes"])
            return Plan(**told)
        except (TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"this is no plan: {error}") from error

    def plot(self, path: str | Path) -> None:
        """Draw it as a PNG. Needs matplotlib."""
        from penstock.tuning.picture import draw

        draw(self, Path(path))

    def __str__(self) -> str:
        from rich.console import Console

        from penstock.tuning.show import show

        text = io.StringIO()
        show(self, Console(file=text, width=100))
        return text.getvalue().rstrip()


def plan_of(name: str, source: str, device: str, facts: dict[str, Any], seconds: float) -> Plan:
    """The plan that a loaded model's facts amount to."""
    rungs = tuple(facts["rungs"])
    return Plan(
        model=name,
        source=source,
        device=device,
        mode=facts["mode"],
        max_batch=facts["max_batch"],
        precision=facts["precision"],
        ladder=rungs,
        sizes=_sizes(facts, rungs),
        modes=facts["modes"],
        drift=facts["drift"],
        memory=facts["memory"],
        reasons=facts["reasons"],
        unbatched=facts["unbatched"],
        notes=tuple(facts["notes"]),
        seconds=round(seconds, 2),
        cached=facts["cached"],
    )


def _sizes(facts: dict[str, Any], rungs: tuple[int, ...]) -> tuple[Size, ...]:
    latency = {int(size): time / 1e9 for size, time in facts["latency"].items() if time > 0}
    if not latency:
        return ()
    rates = {int(size): rate for size, rate in facts["rates"].items()}
    each = latency | {size: size / rate for size, rate in rates.items()}
    waiting, flowing = Curve(latency), Curve(each)
    memory = facts["memory"]
    peaks = {int(size): peak for size, peak in memory.get("peaks", {}).items()}
    sizes = []
    for rows in sorted({*latency, *rungs}):
        line = memory["fixed"] + memory["per_row"] * rows if memory else 0
        sizes.append(
            Size(
                rows,
                waiting.at(rows),
                flowing.rate(rows),
                peaks.get(rows, line),
                rows in latency,
                rows in rungs,
            )
        )
    return tuple(sizes)
