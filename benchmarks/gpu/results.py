"""Rows as they are found, in a file that is whole after each, and that later commands add to.

A part that is run again replaces what was there of it. Parts of another machine, card, network or
length are not kept: figures of different runs compare badly enough. Where parts are of another
commit, day or plan, `mixed` says so.
"""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FILE = "results.json"


@dataclass(frozen=True)
class Row:
    """One thing that was measured: a line of the table. `details` is for the file alone."""

    title: str
    images_per_s: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)


class Results:
    """What is known so far, part by part in this order.

    `head` is that which must be the same for parts to be kept.
    """

    def __init__(
        self, folder: Path, head: dict[str, Any], machine: dict[str, Any], order: Iterable[str]
    ) -> None:
        self._file = folder / FILE
        self._head = head
        self._machine = machine
        self._order = list(order)
        self.network: dict[str, Any] = {}
        self.parts: dict[str, dict[str, Any]] = {}

    @property
    def is_rehearsal(self) -> bool:
        return "rehearsal" in self._head

    def keep(self, others: Iterable[str]) -> list[str]:
        """Take these parts over from the file that is there, if it is of the same kind of run."""
        if not self._file.exists():
            return []
        before = json.loads(self._file.read_text())
        if any(before.get(name) != value for name, value in self._head.items()):
            return []
        self.parts = {name: before["parts"][name] for name in others if name in before["parts"]}
        self.network = before["network"]
        return list(self.parts)

    def begin(self, part: str, plan: dict[str, Any]) -> None:
        self.parts[part] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": self._machine["commit"],
            "plan": plan,
            "rows": [],
            "failure": None,
        }
        self.parts = {name: self.parts[name] for name in self._order if name in self.parts}

    def add(self, part: str, row: Row) -> None:
        self.parts[part]["rows"].append(asdict(row))
        self.write()

    def end(self, part: str, took_s: float, failure: str | None) -> None:
        self.parts[part] |= {"took_s": round(took_s, 1), "failure": failure}
        self.write()

    def rows(self, part: str) -> list[dict[str, Any]]:
        """What was found by a part, now or before."""
        rows: list[dict[str, Any]] = self.parts.get(part, {}).get("rows", [])
        return rows

    def limit(self, precision: str) -> float | None:
        """The most images a second, over all modes and sizes."""
        best = self._best(precision)
        return best["images_per_s"] if best else None

    def rate(self, precision: str, size: int) -> float | None:
        """The most images a second at one size, over all modes."""
        found = [row for row in self._cells(precision) if row["details"]["size"] == size]
        return max((row["images_per_s"] for row in found if row["images_per_s"]), default=None)

    def best_mode(self, precision: str) -> str | None:
        """How the network was compiled there."""
        best = self._best(precision)
        return best["details"]["mode"] if best else None

    def bare_ms(self, precision: str, size: int) -> float | None:
        """The latency of the bare call that is answered soonest."""
        found = [row["p50_ms"] for row in self._cells(precision) if row["details"]["size"] == size]
        return min(filter(None, found), default=None)

    def _best(self, precision: str) -> dict[str, Any] | None:
        measured = [row for row in self._cells(precision) if row["images_per_s"]]
        return max(measured, key=lambda row: float(row["images_per_s"]), default=None)

    def _cells(self, precision: str) -> list[dict[str, Any]]:
        rows = [*self.rows("limit"), *self.rows("tune")]
        return [row for row in rows if row["details"].get("precision") == precision]

    def tuned(self) -> list[dict[str, Any]]:
        """Of each tuning: its seconds and its plan."""
        return [row["details"] for row in self.rows("tune") if "plan" in row["details"]]

    def mixed(self) -> list[str]:
        """In what the parts differ that should be the same in figures that are compared."""
        told = [
            f"{what}: " + "; ".join(f"{', '.join(names)}: {kind}" for kind, names in kinds.items())
            for what, kinds in (("commit", self._by(_commit)), ("day", self._by(_day)))
            if len(kinds) > 1
        ]
        plans = [json.loads(plan) for plan in self._by(_plan)]
        fields = sorted({name for plan in plans for name in plan})
        differ = [name for name in fields if len({str(plan.get(name)) for plan in plans}) > 1]
        return [*told, f"plans differ: {', '.join(differ)}"] if differ else told

    def _by(self, kind: Callable[[dict[str, Any]], str]) -> dict[str, list[str]]:
        """The parts' names, by something that is known of each."""
        found: dict[str, list[str]] = {}
        for name, part in self.parts.items():
            found.setdefault(kind(part), []).append(name)
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "benchmark": "gpu",
            **self._head,
            "machine": self._machine,
            "network": self.network,
            "parts": self.parts,
        }

    def write(self, **more: Any) -> None:
        """All of it, at once: a reader finds the old file or the new one."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._file.with_suffix(".tmp")
        unfinished.write_text(json.dumps(self.as_json() | more, indent=1) + "\n")
        os.replace(unfinished, self._file)


def _commit(part: dict[str, Any]) -> str:
    return str(part["commit"])


def _day(part: dict[str, Any]) -> str:
    return str(part["date"])[:10]


def _plan(part: dict[str, Any]) -> str:
    return json.dumps(part["plan"], sort_keys=True)
