"""The examples of docs/testing.md run, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"


def test_the_examples_run():
    text = GUIDE.read_text()
    blocks = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"__name__": "guide"}
    count = 0
    for block in blocks:
        first_line = text[: block.start()].count("\n") + 1
        code = compile("\n" * first_line + block[1], str(GUIDE), "exec")
        exec(code, names)
        for name in [name for name in names if name.startswith("test_")]:
            names.pop(name)()  # type: ignore[operator]
        count += 1
    assert count >= 8
