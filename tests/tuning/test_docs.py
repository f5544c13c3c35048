"""docs/tuning.md as a reader follows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.test_guides import Reader

TEXT = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_the_examples_run(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.write(TEXT)
    reader.follow(TEXT)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["cached"]  # by best.py, just before
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_what_the_page_says_of_numbers_is_so() -> None:
    from penstock.config import DEFAULT_BATCH, PRECISIONS
    from penstock.devices.limit import OVERHEAD
    from penstock.model.agreement import COARSE_TOLERANCE

    assert all(f"`{precision}`" in TEXT for precision in PRECISIONS)
    assert f"largest batch is {DEFAULT_BATCH} unless" in TEXT
    assert f"beyond the tolerance, {COARSE_TOLERANCE:g} or" in TEXT
    assert f"some {OVERHEAD >> 20} MB" in TEXT
