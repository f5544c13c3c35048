"""The GPU benchmark: tuning among its goals, and parts of different runs told apart."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.gpu import report
from benchmarks.gpu.results import Results, Row
from benchmarks.gpu.targets import verdicts

HEAD = {"quick": False}


def _results(folder: Path, commit: str) -> Results:
    return Results(folder, HEAD, {"commit": commit}, ["limit", "crowd", "tune"])


def _cell(size: int, rate: float) -> Row:
    details = {"precision": "float32", "mode": "frozen", "size": size}
    return Row(f"batch {size}", rate, 1.0, details=details)


def _shown(results: Results) -> str:
    text = io.StringIO()
    machine: dict[str, Any] = {"card": {}, "cpu": "", "cores": 2, "memory_gib": 1}
    machine |= {"python": "", "date": ""}
    report.show(Console(file=text, width=140), results, [], machine)
    return text.getvalue()


def test_the_size_that_tune_chose_is_judged_though_no_sweep_had_it(tmp_path: Path) -> None:
    results = _results(tmp_path, "a")
    results.begin("limit", {})
    for size, rate in ((64, 900.0), (256, 1000.0)):
        results.add("limit", _cell(size, rate))
    results.begin("tune", {})
    for seconds in (80.0, 1.5):
        told = {"seconds": seconds, "plan": {"max_batch": 208}}
        results.add("tune", Row("tune", details=told))
    judged = {one.name: one for one in verdicts(results, "float32")}
    assert judged["tune, nothing cached"].met
    assert judged["tune, cached"].met
    name = "the largest batch that tune chose, against the best of all sizes"
    assert judged[name].figure is None  # not yet
    results.add("tune", _cell(208, 985.0))
    assert {one.name: one for one in verdicts(results, "float32")}[name].figure == 0.985


def test_parts_of_different_runs_are_told_apart(tmp_path: Path) -> None:
    first = _results(tmp_path, "abc")
    first.begin("limit", {"seconds": 5, "rounds": 2})
    first.write()
    assert "not of one run" not in _shown(first)
    second = _results(tmp_path, "def")
    assert second.keep(["limit"]) == ["limit"]
    second.parts["limit"]["date"] = "2026-01-31T10:00:00"
    second.begin("crowd", {"seconds": 9, "rounds": 2})
    text = _shown(second)
    assert "The parts are not of one run:" in text
    assert "commit: limit: abc; crowd: def" in text
    assert "day: limit: 2026-01-31; crowd: 20" in text
    assert "plans differ: seconds" in text
