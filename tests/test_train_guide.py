"""The examples of docs/train.md run as they stand there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_guides import Reader

GUIDE = Path(__file__).parent.parent / "docs" / "train.md"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_guide_to_training(tmp_path: Path) -> None:
    text = GUIDE.read_text()
    reader = Reader(tmp_path)
    reader.environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
    reader.write(text)
    reader.follow(text)
