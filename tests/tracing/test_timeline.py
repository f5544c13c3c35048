"""The file: whole or not there, and cut off at the start."""

from __future__ import annotations

import gzip
import json
import os

import pytest

from penstock.errors import ConfigError
from penstock.tracing import timeline
from penstock.tracing.record import Load, trace_of
from tests.tracing.recorded import engine, recorded

MS = 1_000_000
BATCH = {
    "sent": -2 * MS,
    "began": -2 * MS,
    "gather": MS,
    "run": 3 * MS,
    "scatter": MS,
    "ended": 4 * MS,
    "requests": [(1, 1, 1, -5 * MS)],
}


@pytest.fixture
def trace():
    return trace_of(lambda: recorded(BATCH), engine(), 1.0, Load())


def test_what_lies_before_the_start_is_cut_off(trace):
    events = list(map(json.loads, timeline.events(trace)))
    slices = {e["name"]: (e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert slices == {
        "m × 1": (0, 3000),
        "gather": (0, 0),
        "run": (0, 2000),
        "scatter": (2000, 1000),
    }
    parts = [(e["ph"], e["name"], e["ts"]) for e in events if e["ph"] in "be"]
    assert parts == [
        ("b", "request", 0),
        ("b", "queue", 0),
        ("e", "queue", 0),
        ("b", "run", 0),
        ("e", "run", 4000),
        ("e", "request", 4000),
    ]


def test_a_client_that_has_left_has_a_name_too(trace):
    events = map(json.loads, timeline.events(trace))
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["e: worker 0 (pid 10)", "client 1 (gone)"]


def test_compressed(trace, tmp_path):
    trace.save(tmp_path / "t.json")
    trace.save(tmp_path / "t.json.gz")
    with gzip.open(tmp_path / "t.json.gz") as file:
        assert file.read() == (tmp_path / "t.json").read_bytes()


def test_an_old_file_stays_when_a_new_one_cannot_be_written(trace, tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    path.write_text("old")

    def fail(trace):
        yield "{}"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(timeline, "events", fail)
    with pytest.raises(ConfigError, match="No space left"):
        trace.save(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["t.json"]


def test_places_that_do_not_do(trace, tmp_path):
    with pytest.raises(ConfigError, match="is no file"):
        trace.save(tmp_path)
    with pytest.raises(ConfigError, match="is no file"):
        trace.save("/dev/null")
    with pytest.raises(ConfigError, match="there is no folder"):
        trace.save(tmp_path / "none" / "t.json")
