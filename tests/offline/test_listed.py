"""A job looks for its files once; its loaders take what it has found."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

import penstock
from penstock.data import open_source
from penstock.errors import ConfigError
from tests.conditions import until
from tests.data.pictures import encoded, scene
from tests.offline.conftest import model
from tests.offline.jobs import begin, ended, recorded

COMES_LATE = """
import numpy as np
from pathlib import Path

if not Path({late!r}).exists():
    Path({late!r}).write_bytes(Path({one!r}).read_bytes())

def total(x):
    return x.reshape(len(x), -1).sum(1)
"""


def pictures(folder: Path, count: int) -> None:
    folder.mkdir()
    for n in range(count):
        (folder / f"{n}.png").write_bytes(encoded(scene(20, 30), "PNG"))


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that this process has looked into."""
    folders: list[str] = []
    scandir = os.scandir

    def noted(path="."):
        folders.append(os.path.basename(str(path)))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", noted)
    return folders


@pytest.mark.parametrize("options", [{"size": 8}, {}])
def test_a_job_looks_into_a_folder_once(place, looked, options):
    pictures(place / "images", 12)
    seen = penstock.Model(model("scores"), inputs=("uint8", (8, 8, 3)), max_batch=4)
    assert penstock.predict(seen, "images", "y.npy", **options).written == 12
    assert looked.count("images") == 1
    assert penstock.predict(seen, "images", "y.npy", **options).computed == 0
    assert looked.count("images") == 2
    penstock.predict(seen, "images", **options)
    assert looked.count("images") == 3


def tables(folder: Path, count: int) -> None:
    """Images in Parquet."""
    folder.mkdir()
    column = pyarrow.array([encoded(scene(20, 30), "PNG")] * (count // 3))
    for n in range(3):
        pyarrow.parquet.write_table(pyarrow.table({"image": column}), folder / f"{n}.parquet")


@pytest.mark.parametrize(
    ("make", "suffix", "options"), [(pictures, "png", {}), (tables, "parquet", {"images": "image"})]
)
def test_loaders_read_the_files_that_the_job_has_found(place, make, suffix, options):
    make(place / "images", 12)
    late, one = place / f"images/1b.{suffix}", place / f"images/1.{suffix}"
    Path("late.py").write_text(COMES_LATE.format(late=str(late), one=str(one)))
    options = {**options, "size": 8, "max_batch": 4}
    report = penstock.predict("late.py:total", "images", "y.jsonl", **options)
    assert late.exists(), "it should have come before there was a loader"
    assert report.written == 12
    assert report.loaders >= 1
    assert not Path("y.jsonl.parts").exists()
    with pytest.raises(ConfigError, match="another input"):
        penstock.predict("late.py:total", "images", "y.jsonl", **options)


def test_what_goes_on_after_a_kill_sees_the_same_files_or_says_that_they_are_others(place):
    pictures(place / "images", 100)
    gate = place / "gate"
    settings_ = ("--size", 8, "--chunk", 16, "--max-batch", 8, "--loaders", 1)
    arguments = (model("held_after_some"), "images", *settings_, "--out", "y.jsonl")
    job = begin(*arguments, OFFLINE_GATE=str(gate))
    until(lambda: recorded("y.jsonl") > 0)
    job.kill()
    job.communicate(timeout=40)
    gate.touch()
    names = Path("y.jsonl.parts/names")
    names.write_bytes(b"what a crash has left")
    Path("images/7b.png").write_bytes(encoded(scene(20, 30), "PNG"))
    again = begin(*arguments, OFFLINE_GATE=str(gate))
    _, told = again.communicate(timeout=40)
    assert (again.returncode, "another input" in told) == (1, True), told
    Path("images/7b.png").unlink()
    assert ended(begin(*arguments, OFFLINE_GATE=str(gate))) == 0
    assert Path("y.jsonl").read_text().count("\n") == 100


def test_a_factory_that_opens_files_is_called_by_loaders(place):
    pictures(place / "images", 5)
    Path("made.py").write_text(
        "from penstock.data import open_source\n"
        f"def rows():\n    return open_source({str(place / 'images')!r}, size=8)\n"
    )
    report = penstock.predict(model("scores"), "made.py:rows", "y.npy", max_batch=4)
    assert report.written == 5
    assert report.loaders >= 1
    assert open_source("made.py:rows").listed is None
