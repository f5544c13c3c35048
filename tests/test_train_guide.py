"""The examples of docs/train.md run as they stand there, section by section, in one folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_guides import Reader

GUIDE = (Path(__file__).parent.parent / "docs" / "train.md").read_text()
SECTIONS = [part for part in re.split(r"^## ", GUIDE, flags=re.MULTILINE) if "```console" in part]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    reader = Reader(tmp_path_factory.mktemp("training"))
    reader.environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
    reader.write(GUIDE)
    return reader


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.partition("\n")[0])
def test_the_examples_run(trainer: Reader, section: str) -> None:
    trainer.follow(section)


def test_no_example_is_left_out() -> None:
    assert sum(section.count("```console") for section in SECTIONS) == GUIDE.count("```console")
    assert GUIDE.count("```console") > 5
