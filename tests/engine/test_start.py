"""How long an engine takes until it listens."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from penstock import launch
from penstock.config import EngineConfig, models_of, to_json

_LIMIT = 0.5  # seconds
_STARTS = 10


def _seconds_until_it_listens(folder: Path, number: int) -> float:
    """Of a start, without the time in which it would have run and other processes did."""
    models = models_of("penstock.testing.models:double")
    config = EngineConfig(name=f"start-{number}", folder=str(folder))
    reader, writer = os.pipe2(os.O_CLOEXEC)
    settings = to_json(models, config, sys_path=[])
    began = time.monotonic()
    process = launch.start("penstock.engine", settings, {"status": writer}, detached=True)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as status:
            assert json.loads(status.readline())["state"] == "listening"
            took = time.monotonic() - began
            waited = Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]
    finally:
        process.terminate()
        process.wait(20)
    return took - int(waited) / 1e9


def test_it_listens_within_half_a_second(tmp_path: Path) -> None:
    """At best: whoever else uses this machine now may be faster."""
    took: list[float] = []
    while not took or (min(took) >= _LIMIT and len(took) < _STARTS):
        took.append(_seconds_until_it_listens(tmp_path / "run", len(took)))
    assert min(took) < _LIMIT, took
