"""What a job tells of itself at the end: rows, time, where it went, and what to change."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.offline import stages as s
from penstock.offline.failures import readable
from penstock.offline.monitor import Sample

_ADVICE = {
    s.DEVICE: "a larger batch or another precision (penstock tune), or more devices",
    s.DECODING: "more cores, images nearer to the model's size, draft=True, or arrays (.npy)",
    s.READING: "a format that need not be parsed (.npy or Parquet; CSV, JSON lines, TFRecord and "
    "Python objects are parsed by one core), fewer columns, or a faster disk",
    s.WRITING: "fewer or smaller outputs, another format (.npy, .arrow), or a faster disk",
    s.QUEUE: "a larger max_batch: the device waits between batches, or works for others",
    s.MAPPING: "the work of map in the model instead, as its postprocess",
    s.SENDING: "smaller rows: copying them takes longer than the model does",
}
_ORDER = (s.READING, s.DECODING, s.DEVICE, s.QUEUE, s.WRITING, s.SENDING, s.MAPPING)
_TELLING = 0.5  # seconds; what a shorter job spent its time with tells nothing of a longer one


@dataclass(frozen=True)
class JobReport:
    """A finished job.

    `rows` are all that it is about: `written` and `failed` together. `known` of them were done by
    earlier runs. `first` tells of the first row that failed. `device` and `cpu` are shares, of this
    run and of all cores that it may use. `shares` says what the time went by with: waiting for rows
    (reading, decoding), for the device, for the engine's queue, for the disk (writing), or working
    (sending, mapping).
    """

    model: str
    source: str
    out: str
    rows: int
    written: int
    failed: int
    known: int
    seconds: float
    starting: float
    finishing: float
    kinds: dict[str, int] = field(default_factory=dict)
    errors: str = ""
    first: str = ""
    device: float = 0.0
    devices: tuple[str, ...] = ()
    cpu: float = 0.0
    cores: int = 1
    loaders: int = 0
    limit: str = ""
    stages: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()

    @property
    def computed(self) -> int:
        """Rows that this run has done."""
        return self.rows - self.known

    @property
    def rate(self) -> float:
        """Rows a second, of this run, without starting and finishing."""
        return self.computed / self.seconds if self.seconds > 0 else 0.0

    @property
    def advice(self) -> str:
        """What limited, and what would make it faster."""
        if not self.limit or not self.computed or self.seconds < _TELLING:
            return ""
        idle = "" if self.limit == s.DEVICE else f"device idle {1 - self.device:.0%}: "
        busy = f"{self.cpu * self.cores:.1f} of {self.cores} cores busy"
        if self.limit == s.DEVICE:
            busy = f"busy {self.device:.0%}, {busy}"
        return f"{idle}{_named(self.limit)} limits; {busy}; faster with {_ADVICE[self.limit]}"

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        told: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return {**told, "computed": self.computed, "rate": self.rate, "advice": self.advice}

    def page(self, path: str | Path) -> None:
        """Write it as one page of HTML, with a timeline."""
        from penstock.offline.page import page

        Path(path).write_text(readable(page(self)), encoding="utf-8")

    def __str__(self) -> str:
        lines = [f"{count_of(self.written)} written to {self.out}" if self.out else ""]
        if self.failed:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.kinds.items()))
            beside = f", in {self.errors}" if self.errors else ""
            lines.append(f"{count_of(self.failed)} failed ({kinds}){beside}")
            lines.append(f"  {self.first}" if self.first else "")
        if self.known:
            were = "was" if self.known == 1 else "were"
            lines.append(f"{count_of(self.known)} {were} done before")
        if self.computed:
            parts = [f"{name} {share:.0%}" for name, share in self.shares.items() if share >= 0.01]
            lines.append(
                f"{count_of(self.computed)} in {self.seconds:.1f} s, {self.rate:,.0f} a second; "
                f"starting {self.starting:.1f} s, finishing {self.finishing:.1f} s"
            )
            if self.seconds >= _TELLING:
                lines.append(f"waited or worked: {', '.join(parts)}")
        lines += [self.advice, *self.notes]
        return readable("\n".join(line for line in lines if line))


def count_of(rows: int) -> str:
    """`1 row`, `1,000 rows`."""
    return f"{rows:,} row" + "s" * (rows != 1)


def shares_of(spent: dict[str, float], device: float) -> dict[str, float]:
    """What the senders' time went by with, as shares that add up to one."""
    found = s.waits(spent)
    whole = sum(found.values())
    if not whole:
        return {}
    shares = {name: seconds / whole for name, seconds in found.items()}
    answers = shares.pop(s.ANSWERS)
    shares[s.DEVICE] = min(answers, device) if device < 0.85 else answers
    shares[s.QUEUE] = answers - shares[s.DEVICE]
    return {name: round(shares[name], 4) for name in _ORDER if name in shares}


def _named(limit: str) -> str:
    return {s.DEVICE: "the device", s.QUEUE: "the queue", s.MAPPING: "map"}.get(limit, limit)
