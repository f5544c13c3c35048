"""How large rows are, where only a look tells; and that batches of large ones stay small."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.config import Model
from penstock.data import joined, jsonlines, open_sink, open_source
from penstock.offline import job, selection, sizes
from penstock.offline.setting_up import Served
from penstock.offline.sizes import fitting, row_size
from penstock.spec import ModelSpec
from tests.offline.conftest import model

KB = 1 << 10
SERVED = Served(None, "m", ModelSpec(), 256, True, {}, ("cpu",))


def files(count: int, size: int) -> None:
    Path("photos").mkdir(exist_ok=True)
    for number in range(count):
        with open(f"photos/{number}.jpg", "wb") as file:
            file.truncate(size)


def test_of_files_the_largest_that_lie_together_count(place):
    files(40, 0)
    source = open_source("photos", decode=False)
    assert row_size(source, SERVED, 8) == 8 * KB
    for number in range(20, 28):
        with open(f"photos/{number}.jpg", "wb") as file:
            file.truncate(4096 * KB)
    source = open_source("photos", decode=False)
    assert row_size(source, SERVED, 8) == 4096 * KB
    assert 800 * KB < row_size(source, SERVED, 40) < 4096 * KB


@pytest.mark.parametrize("suffix", ["jsonl", "arrow"])
def test_of_lines_and_of_arrow_the_largest_that_lie_together_count(place, monkeypatch, suffix):
    monkeypatch.setattr(sizes, "_KNOWN_ROWS", 16)
    texts = np.array(["x" * (300_000 if 64 <= n < 72 else n) for n in range(100)], object)
    with open(f"x.{suffix}", "wb") as file:
        open_sink(f"x.{suffix}").write(file, {"x": texts, "n": np.arange(100)})
    source = open_source(f"x.{suffix}")
    assert 300_000 < row_size(source, SERVED, 8) < 310_000
    assert 150_000 < row_size(source, SERVED, 16) < 170_000
    assert row_size(source.only({"n"}), SERVED, 8) == 8


@pytest.mark.parametrize("text", ["x" * 300_000, b"x" * 300_000])
def test_of_other_texts_the_first_ones_count(text):
    source = open_source({"x": np.array([text] * 5, object), "n": np.arange(5)})
    assert row_size(source, SERVED, 2) == 300_000 + 8


@pytest.mark.parametrize(
    ("batch", "size", "rows"),
    [(256, 8 * KB, 256), (256, 4096 * KB, 16), (256, 1 << 30, 1), (1, 1 << 40, 1)],
)
def test_a_batch_of_large_texts_is_several_requests(batch, size, rows):
    texts = open_source({"x": np.array(["a"], object)})
    assert fitting(batch, size, texts) == rows
    assert fitting(batch, size, open_source(np.zeros((2, 3)))) == batch


def test_batches_and_what_is_on_its_way_are_bounded_by_bytes(place, monkeypatch):
    files(64, 100 * KB)
    monkeypatch.setattr(sizes, "_REQUEST_BYTES", 400 * KB)
    monkeypatch.setattr(job, "_AHEAD_BYTES", 800 * KB)
    ahead = []

    class Watched(job.Window):
        def send(self, batch):
            super().send(batch)
            ahead.append(len(self))

    monkeypatch.setattr(job, "Window", Watched)
    seen = Model(model("texts"), inputs=("string", ()), max_batch=32)
    report = penstock.predict(seen, "photos", "y.jsonl", decode=False)
    assert (report.written, report.failed) == (64, 0)
    header = json.loads(Path("y.jsonl.manifest.jsonl").read_text().splitlines()[0])
    assert header["cut"]["batch"] == 4
    assert max(ahead) == 2


@pytest.mark.parametrize("way", ["", "strided", "stratified"])
def test_large_lines_behind_small_ones_are_read_a_few_at_a_time(place, engine, monkeypatch, way):
    with open("x.jsonl", "w") as file:
        for n in range(400):
            row = {"x": [n, 1.5], "class": n % 3, "note": "x" * (20_000 if n > 100 else 1)}
            file.write(json.dumps(row) + "\n")
    read, sizes = jsonlines.read_range, []

    def watched(path, start, stop):
        sizes.append(stop - start)
        return read(path, start, stop)

    monkeypatch.setattr(jsonlines, "read_range", watched)
    monkeypatch.setattr(selection, "_RUN_BYTES", 1 << 19)
    monkeypatch.setattr(joined, "_COLUMN_BYTES", 1 << 19)
    options = {"shard": "1/2", "shards": way} if way else {}
    options |= {"label": "class"} if way == "stratified" else {}
    report = penstock.predict("scores", "x.jsonl", "y.npy", engine=engine, inputs="x", **options)
    assert report.written == (200 if way else 400)
    assert max(sizes) < 1 << 20 < 5 << 20 < sum(sizes)
