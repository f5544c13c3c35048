"""The examples of docs/data.md run, from top to bottom, in a folder of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.data.formats import FORMATS, OPTIONS
from penstock.data.shards import WAYS
from penstock.data.sinks import SUFFIXES

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "data.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text()
    names: dict[str, object] = {"__name__": "guide"}
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    for block in blocks:
        first_line = text[: block.start()].count("\n") + 1
        exec(compile("\n" * first_line + block[1], str(GUIDE), "exec"), names)
    assert len(blocks) >= 6


def test_everything_is_in_the_guide() -> None:
    text = GUIDE.read_text()
    formats = [suffixes[0] for suffixes in FORMATS.values()]
    options = sorted({option for each in OPTIONS.values() for option in each})
    for name in (*formats, *options, *WAYS, *set(SUFFIXES) - {".ndjson"}):
        assert f"`{name}" in text, name
