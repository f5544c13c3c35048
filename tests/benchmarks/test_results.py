"""What benchmarks keep and show, whatever it is that they found."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks.core.processes import ChildFailed
from benchmarks.gpu import report
from benchmarks.gpu.images import FACTS, Pictures
from benchmarks.gpu.results import Results, Row
from benchmarks.models.images import ANSWERS, IMAGES
from benchmarks.train import turns
from benchmarks.train.results import Results as TrainResults
from benchmarks.train.turns import Outcome
from benchmarks.train.way import Way

# As TensorFlow tells it; rich takes the second pair of brackets for the end of a style.
ERROR = "ResourceExhaustedError: [Op:Cast] on [/job:localhost/device:GPU:0] {{node x}}"
MACHINE: dict[str, Any] = dict.fromkeys(("cpu", "cores", "memory_gib", "python", "date"), "")
MACHINE |= {"card": {}, "commit": "a"}


def test_an_error_of_tensorflows_can_be_shown_in_the_table(tmp_path: Path) -> None:
    results = Results(tmp_path, {}, MACHINE, ["tight"])
    results.begin("tight", {})
    results.add("tight", Row("2 GiB free: failed", note=ERROR))
    results.end("tight", 1.0, ERROR)
    text = io.StringIO()
    report.show(Console(file=text, width=300), results, [], MACHINE)
    assert text.getvalue().count("[/job:localhost/device:GPU:0]") == 2


def _outcome(title: str, error: str | None = None) -> Outcome:
    way = Way("penstock", "tiny", batch=8, rows=8, warm_up=1)
    turns = [] if error else [10.0, 30.0, 20.0]
    told = {"jit": True, "jit_trial": {"jit": True, "why": "5.0 ms a step compiled, 9.0 ms not"}}
    return Outcome(title, way, turns, 1.0, 2.0, error, report={} if error else told)


def test_training_is_kept_as_it_is_found_and_added_to_by_later_commands(tmp_path: Path) -> None:
    head = {"quick": True, "rehearsal": False, "plan": {"batch": 8}}
    first = TrainResults(tmp_path, head, MACHINE)
    assert first.keep() == []
    first.begin("rate")
    first.add("rate", _outcome("one"))
    first.add("rate", _outcome("two", ERROR))
    first.add("rate", _outcome("one"))  # known better now
    known = json.loads((tmp_path / "results.json").read_text())["parts"]["rate"]
    assert [(row["title"], row["images_per_s"]) for row in known] == [("one", 20.0), ("two", None)]
    table = " ".join((tmp_path / "table.txt").read_text().split())
    assert "[/job:localhost" in table
    assert "5.0 ms a step compiled" in table
    first.end("rate", 9.0, "cut off after 9 s")
    second = TrainResults(tmp_path, head, MACHINE)
    assert second.keep() == ["rate"]
    assert second.failures == {"rate": "cut off after 9 s"}
    second.begin("rate")
    assert second.failures == {}
    assert TrainResults(tmp_path, {**head, "plan": {"batch": 16}}, MACHINE).keep() == []


class _Child:
    """Is warm, and dies in its first turn."""

    def __init__(self) -> None:
        self._says = [{"loaded": 1.0}, {"ready": 2.0, "loss": 1.0}]

    def say(self, message: dict[str, Any]) -> None:
        pass

    def hear(self, deadline: float) -> dict[str, Any]:
        if not self._says:
            raise ChildFailed("ended")
        return self._says.pop(0)


def test_a_way_that_dies_in_its_first_turn_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "children", lambda *_: contextlib.nullcontext([_Child()]))
    told: list[tuple[str | None, str]] = []
    way = Way("penstock", "tiny", batch=8, rows=8, warm_up=1)
    place: Any = None
    turns.take_turns(
        {"one": way},
        place,
        lambda outcome, news: told.append((outcome.error, news)),
        rounds=2,
        steps=1,
        within=1.0,
    )
    assert told == [(None, "warm after 2.0 s"), ("ended", "turn 1: no images/s")]


def test_a_batch_may_be_larger_than_the_images_that_there_are(tmp_path: Path) -> None:
    np.save(tmp_path / IMAGES, np.arange(4, dtype=np.uint8).reshape(4, 1, 1, 1))
    np.save(tmp_path / ANSWERS, np.arange(4, dtype=np.float32).reshape(4, 1))
    (tmp_path / FACTS).write_text(json.dumps({"tolerance": 0.1}))
    pictures = Pictures(tmp_path, 0)
    batch, right = pictures.batch(10)
    assert batch.reshape(-1).tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    pictures.check_batch(batch.reshape(10, 1).astype(np.float32), right)
    assert len(pictures.batch(3)[0]) == 3
