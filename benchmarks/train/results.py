"""What is known so far of every part, in files that are whole after each figure.

Later commands add to it: what an earlier one found of other parts stays, where its machine and plan
were the same, for figures of different plans do not compare.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.core.goals import Verdict
from benchmarks.train import report
from benchmarks.train.targets import verdicts
from benchmarks.train.turns import Outcome

_WIDTH = 150


class Results:
    """Rows by part, each by its title; how long each part took, and why it failed."""

    def __init__(self, out: Path, head: dict[str, Any], machine: dict[str, Any]) -> None:
        self._out = out
        self._head = json.loads(json.dumps(head))  # as it is read again
        self._machine = machine
        self.parts: dict[str, list[dict[str, Any]]] = {}
        self.took_s: dict[str, float] = {}
        self.failures: dict[str, str] = {}

    def keep(self) -> list[str]:
        """Take over what an earlier command found, if that was a run of the same kind."""
        try:
            before = json.loads((self._out / "results.json").read_text())
        except FileNotFoundError:
            return []
        if any(before.get(name) != value for name, value in self._head.items()):
            return []
        if before["machine"]["card"].get("gpus") != self._machine["card"].get("gpus"):
            return []
        self.parts, self.took_s = before["parts"], before["took_s"]
        self.failures = before.get("failures", {})
        return list(self.parts)

    def begin(self, part: str) -> None:
        self.parts[part] = []
        self.took_s.pop(part, None)
        self.failures.pop(part, None)

    def add(self, part: str, outcome: Outcome) -> None:
        """What became of a way so far."""
        rows = {row["title"]: row for row in self.parts[part]}
        rows[outcome.title] = outcome.as_json()
        self.parts[part] = list(rows.values())
        self.write()

    def end(self, part: str, seconds: float, failure: str | None) -> None:
        self.took_s[part] = round(seconds, 1)
        if failure is not None:
            self.failures[part] = failure
        self.write()

    def verdicts(self) -> list[Verdict]:
        return verdicts(self.parts, not self.is_rehearsal)

    @property
    def is_rehearsal(self) -> bool:
        return bool(self._head["rehearsal"])

    def write(self) -> None:
        """All that is known."""
        judged = self.verdicts()
        found = {
            "benchmark": "train",
            **self._head,
            "machine": self._machine,
            "took_s": self.took_s,
            "failures": self.failures,
            "parts": self.parts,
            "verdicts": [asdict(one) for one in judged],
        }
        self._out.mkdir(parents=True, exist_ok=True)
        unfinished = self._out / "results.tmp"
        unfinished.write_text(json.dumps(found, indent=1, default=str) + "\n")
        os.replace(unfinished, self._out / "results.json")
        with (self._out / "table.txt").open("w") as file:
            self.show(Console(file=file, width=_WIDTH))

    def show(self, console: Console) -> None:
        """As tables for people."""
        report.show(console, self.parts, self.verdicts(), self._machine, self.is_rehearsal)
        for part, why in self.failures.items():
            console.print(f"{part} failed: {why}", markup=False, highlight=False)

    def draw(self, title: str) -> None:
        """As a picture."""
        from benchmarks.train.plot import draw

        draw(self.parts, title, self._out / "plot.png")
