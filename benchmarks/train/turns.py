"""Ways that are warm at the same time, and take turns: so what the machine does hits all alike.

They load together, but warm up one after the other: what XLA finds to be quickest it finds by
measuring, and a card that others use too would mislead it. What it found it shares with all.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.core.processes import ROOT, Child, ChildFailed, Workspace, children
from benchmarks.train.way import Way

_TURN_WITHIN = 120.0
_END_WITHIN = 60.0
_TRACED = 6  # steps


class Place(Workspace):
    """Children find this checkout, and see no GPU in a rehearsal."""

    def __init__(self, rehearsal: bool) -> None:
        super().__init__()
        self._rehearsal = rehearsal
        tuned = self.folder / "tuned"
        tuned.mkdir()
        self._tuned = f"--xla_gpu_per_fusion_autotune_cache_dir={tuned}"

    def environment(self) -> dict[str, str]:
        inherited = super().environment()
        more = {
            "PYTHONPATH": f"{ROOT / 'src'}:{inherited['PYTHONPATH']}",
            "PENSTOCK_CACHE": str(self.folder / "penstock"),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "XLA_FLAGS": " ".join(filter(None, [os.environ.get("XLA_FLAGS"), self._tuned])),
        }
        if self._rehearsal:
            more["CUDA_VISIBLE_DEVICES"] = ""
        return inherited | more


@dataclass
class Outcome:
    """What became of a way."""

    title: str
    way: Way
    turns: list[float] = field(default_factory=list)  # images a second
    loaded_s: float | None = None
    ready_s: float | None = None  # from there on
    error: str | None = None
    peak_bytes: int = 0
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def images_per_s(self) -> float | None:
        return statistics.median(self.turns) if self.turns else None

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "images_per_s": self.images_per_s,
            "turns": [round(turn, 1) for turn in self.turns],
            "peak_bytes": self.peak_bytes,
            "loaded_s": self.loaded_s,
            "ready_s": self.ready_s,
            "error": self.error,
            "way": vars(self.way),
            "report": self.report,
        }


Tell = Callable[[Outcome, str], None]  # what became of a way so far, and the news of it


def take_turns(
    ways: dict[str, Way],
    place: Place,
    tell: Tell,
    *,
    rounds: int,
    steps: int,
    within: float,
    trace: str = "",
) -> None:
    """All ways are made warm, and then run one after the other, in every round.

    `trace`: a folder, for a profile of a few steps of each way in the end.
    """
    outcomes = [Outcome(title, way) for title, way in ways.items()]
    commands = [["benchmarks.train.way", way.told()] for way in ways.values()]
    with children(commands, place) as started:
        pairs = list(zip(outcomes, started, strict=True))
        for outcome, child in pairs:
            _hear(outcome, child, time.monotonic() + within)
            if outcome.error is None:
                child.say({"go": True})
                _hear(outcome, child, time.monotonic() + within)
            tell(outcome, f"warm after {outcome.ready_s} s")
        for number in range(rounds):
            for outcome, child in pairs:
                if outcome.error is None:
                    child.say({"steps": steps})
                    _hear(outcome, child, time.monotonic() + _TURN_WITHIN)
                    rate = f"{outcome.turns[-1]:,.0f}" if outcome.turns else "no"
                    tell(outcome, f"turn {number + 1}: {rate} images/s")
        for number, (outcome, child) in enumerate(pairs):
            if trace and outcome.error is None:
                child.say({"steps": _TRACED, "trace": str(Path(trace, str(number)).resolve())})
                _hear(outcome, child, time.monotonic() + _TURN_WITHIN)
                tell(outcome, f"a profile of {_TRACED} steps was written")
        for outcome in _end(pairs):
            tell(outcome, "ended")


def _end(pairs: Sequence[tuple[Outcome, Child]]) -> list[Outcome]:
    deadline = time.monotonic() + _END_WITHIN
    going = [(outcome, child) for outcome, child in pairs if outcome.error is None]
    for _, child in going:
        child.dismiss()
    for outcome, child in going:
        _hear(outcome, child, deadline)
    return [outcome for outcome, _ in going]


def _hear(outcome: Outcome, child: Child, deadline: float) -> None:
    try:
        message = child.hear(deadline)
    except ChildFailed as failure:
        outcome.error = str(failure)[:2000]
        return
    if "error" in message:
        outcome.error = f"{message['error']}: {message['told']}"
        outcome.peak_bytes = message["peak_bytes"]
    elif "loaded" in message:
        outcome.loaded_s = message["loaded"]
    elif "ready" in message:
        outcome.ready_s = message["ready"]
    elif "traced" in message:
        pass  # slower than a turn, for being looked at
    elif "seconds" in message:
        outcome.turns.append(message["images"] / message["seconds"])
    else:
        outcome.peak_bytes = message["ended"]["peak_bytes"]
        outcome.report = message["ended"]["report"]
    with contextlib.suppress(KeyError):
        if message["loss"] != message["loss"]:
            outcome.error = "the loss is no number"
