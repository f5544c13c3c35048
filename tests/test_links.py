"""What the documents point to is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
_CODE = re.compile(r"```.*?```", re.DOTALL)


def _documents() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    return listed or sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))


@pytest.mark.parametrize("document", _documents())
def test_links_lead_somewhere(document: str) -> None:
    path = ROOT / document
    links = _LINK.findall(_CODE.sub("", path.read_text()))
    assert [link for link in links if not (path.parent / link).exists()] == []
