"""The examples of docs/offline.md run, from top to bottom, in a folder of their own."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

from penstock.data.sinks import SUFFIXES
from penstock.offline.report import _ADVICE
from penstock.offline.settings import WAYS, JobSettings

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "offline.md"


def test_the_examples_run(place, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    text = GUIDE.read_text()
    names: dict[str, object] = {"__name__": "guide"}
    blocks = list(re.finditer(r"^```(python|bash)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    for block in blocks:
        first_line = text[: block.start()].count("\n") + 1
        if block[1] == "python":
            exec(compile("\n" * first_line + block[2], str(GUIDE), "exec"), names)
        else:
            done = subprocess.run(
                ["bash", "-euc", block[2]], capture_output=True, text=True, timeout=50, check=False
            )
            assert done.returncode == 0, f"line {first_line}: {done.stdout}{done.stderr}"
    assert len(blocks) >= 6


def test_everything_is_in_the_guide():
    text = GUIDE.read_text()
    for field in dataclasses.fields(JobSettings):
        assert f"--{field.name.replace('_', '-')}" in text, field.name
    for name in (*WAYS, *_ADVICE, *set(SUFFIXES) - {".ndjson", ".feather"}):
        assert f"`{name}`" in text, name
