"""A machine with made-up cards, for this process and those that it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.devices import limit
from tests.devices import fake_nvml, fake_tensorflow

GB = 1 << 30


class Machine:
    """Its cards can be changed at any time."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._file = place / "cards.json"
        self.modules = place / "modules"
        self.modules.mkdir()
        for name, fake in (("pynvml", fake_nvml), ("tensorflow", fake_tensorflow)):
            (self.modules / f"{name}.py").symlink_to(Path(fake.__file__).resolve())
        self.ledger = place / "ledger"
        self.environment = {
            "FAKE_NVML": str(self._file),
            "PENSTOCK_LEDGER": str(self.ledger),
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(self.modules), os.environ.get("PYTHONPATH")])
            ),
        }
        self.set({"uuid": "GPU-aaaa-1", "name": "Fake A"})

    def python(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a script on this machine."""
        return subprocess.run(
            [sys.executable, "-c", script],
            cwd=self.place,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=40,
        )

    def set(self, *cards: dict) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(cards))
        new.rename(self._file)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One card of 16 GB, unless a test sets others."""
    machine = Machine(tmp_path)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("CUDA_VISIBLE_DEVICES", limit.MEMORY, limit.CLAIM, "CUDA_MPS_PIPE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml)
    before = dict(os.environ)
    yield machine
    limit.forget()
    os.environ.clear()
    os.environ.update(before)
