"""What became of the parts of a visit, in a file that later commands read; and the table of it."""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from benchmarks.visit.parts import Part

_FILE = "visit.json"
_SAID = 70


class Diary:
    """`entries`, by part: outcome, status, seconds, date, command. A part that was cut off, or was
    another command (a rehearsal's), is not over."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self.entries: dict[str, dict[str, Any]] = {}
        if (out / _FILE).exists():
            self.entries = json.loads((out / _FILE).read_text())

    def is_over(self, part: Part) -> bool:
        entry = self.entries.get(part.name, {})
        same = entry.get("command") == list(part.command)
        return same and entry["outcome"] in ("done", "failed")

    def log_of(self, part: Part) -> Path:
        return self._out / "logs" / f"{part.name}.log"

    def enter(self, part: Part, outcome: str, status: int, took_s: float) -> None:
        self.entries[part.name] = {
            "outcome": outcome,
            "status": status,
            "took_s": round(took_s, 1),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": part.command,
        }
        self._out.mkdir(parents=True, exist_ok=True)
        unfinished = self._out / "visit.tmp"
        unfinished.write_text(json.dumps(self.entries, indent=1) + "\n")
        os.replace(unfinished, self._out / _FILE)

    def table(self, parts: Sequence[Part]) -> Table:
        """Every part, with the last that it said."""
        table = Table(title="The visit so far")
        for column in ("part", "outcome", "took s", "expected s", "limit s", "last said"):
            table.add_column(column, justify="right" if column.endswith(" s") else "left")
        for part in parts:
            entry = self.entries.get(part.name, {"outcome": "not run", "took_s": None})
            took = "" if entry["took_s"] is None else f"{entry['took_s']:.0f}"
            told = escape(self._last_said(part)) if took else ""
            seconds = (took, f"{part.expected:.0f}", f"{part.limit:.0f}")
            table.add_row(part.name, entry["outcome"], *seconds, told)
        return table

    def _last_said(self, part: Part) -> str:
        try:
            lines = self.log_of(part).read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip(" =") for line in reversed(lines) if line.strip()), "")[:_SAID]
