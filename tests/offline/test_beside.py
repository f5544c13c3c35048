"""An output that lies among its inputs: it is never one of them, and never written over one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import ConfigError, InputError
from tests.conditions import until
from tests.data.pictures import fill, scene
from tests.offline.conftest import model
from tests.offline.jobs import begin, ended, recorded


@pytest.mark.parametrize("out", ["y.parquet", "y.jsonl", "y.npy", "y.csv"])
@pytest.mark.parametrize("what", [".", "*.npy"])
def test_a_job_can_be_repeated_in_the_folder_of_its_input(x, engine, place, what, out):
    np.save("1.npy", x[:300])
    np.save("2.npy", x[300:])
    for again in range(2):
        report = penstock.predict("scores", what, out, engine=engine, chunk=64)
        assert (report.rows, report.computed) == (1000, 0 if again else 1000)
    report = penstock.predict("scores", what, out, engine=engine, restart=True)
    assert (report.rows, report.computed) == (1000, 1000)


def test_a_job_that_was_killed_in_the_folder_of_its_images_goes_on(place, monkeypatch):
    for number in range(60):
        scene(20, 10).save(f"{number}.png")
    monkeypatch.setenv("OFFLINE_COUNT", "/dev/null")
    command = (
        model("counted"), ".", "--size", 6, "--chunk", 8, "--max-batch", 8, "--out", "y.jsonl",
    )  # fmt: skip
    job = begin(*command, OFFLINE_SLEEP="0.1")
    until(lambda: recorded("y.jsonl") >= 2)
    job.kill()
    job.communicate()
    assert 2 <= recorded("y.jsonl") < 8
    assert ended(begin(*command)) == 0
    keys = [json.loads(line)["key"] for line in Path("y.jsonl").read_text().splitlines()]
    assert keys == [f"./{number}.png" for number in range(60)]


def test_shards_in_the_folder_of_their_input(x, engine, place):
    np.save("1.npy", x[:300])
    np.save("2.npy", x[300:])
    for shard in ("1/2", "2/2", "1/2"):
        penstock.predict("scores", ".", "y.npy", engine=engine, shard=shard)
    from penstock.offline.merge import merge

    assert merge("y.npy").written == 1000
    assert penstock.predict("scores", ".", "y.npy", engine=engine, shard="1/2").computed == 0


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("what", ["x.npy", "./x.npy", ["1.npy", "x.npy"], "link.npy"])
def test_what_is_read_is_not_written_over(x, engine, place, what, restart):
    for name in ("x.npy", "1.npy"):
        np.save(name, x)
    Path("link.npy").symlink_to("x.npy")
    before = sorted(path.name for path in place.iterdir())
    with pytest.raises((ConfigError, InputError), match="choose another output"):
        penstock.predict("scores", what, "x.npy", engine=engine, restart=restart)
    assert sorted(path.name for path in place.iterdir()) == before
    assert np.array_equal(np.load("x.npy"), x)


@pytest.mark.parametrize("what", [".", "*.npy"])
def test_a_file_of_the_source_is_not_taken_for_an_earlier_output(x, engine, place, what):
    for name in ("1.npy", "2.npy"):
        np.save(name, x)
    with pytest.raises(ConfigError, match=r"2\.npy exists already, and is part of the source"):
        penstock.predict("scores", what, "2.npy", engine=engine, restart=True)
    assert np.array_equal(np.load("2.npy"), x)


# ── columns that nobody asked for ──────────────────────────────────────────────────────────────


def _table(rows: int = 40) -> pa.Table:
    return pa.table(
        {
            "x": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(rows * 3.0)), 3),
            "label": [f"r{row}" for row in range(rows)],
            "weight": pa.array([None if row % 4 == 0 else 1.0 for row in range(rows)]),
        }
    )


@pytest.mark.parametrize("key", [None, "label"])
def test_a_null_in_a_column_that_is_not_needed_fails_no_row(engine, place, key):
    pq.write_table(_table(), "t.parquet")
    options = {"engine": engine, "inputs": "x", **({"key": key} if key else {})}
    report = penstock.predict("scores", "t.parquet", "y.jsonl", **options)
    assert (report.written, report.failed) == (40, 0)
    assert penstock.predict("scores", "t.parquet", "y.jsonl", **options).computed == 0
    kept = penstock.predict("scores", "t.parquet", "z.jsonl", keep="weight", **options)
    assert (kept.written, kept.kinds) == (30, {"null": 10})
    assert len(penstock.predict("scores", "t.parquet", **options)) == 40
    for shard in ("1/2", "2/2"):
        cut = {"shards": "stratified", "label": "label", "shard": shard}
        assert penstock.predict("scores", "t.parquet", "s.jsonl", **options, **cut).failed == 0


def test_columns_beside_images_are_read_only_where_they_are_kept(place):
    fill(place / "images")
    data = [path.read_bytes() for path in sorted((place / "images").glob("photo*"))] * 10
    table = pa.table({"image": data, "name": ["a", None, "c"] * 10, "id": range(30)})
    pq.write_table(table, "t.parquet")
    options = {"images": "image", "size": 6, "max_batch": 8, "inputs": "image", "key": "id"}
    report = penstock.predict(model("scores"), "t.parquet", "y.npy", **options)
    assert (report.written, report.failed) == (30, 0)
    assert np.load("y.keys.npy").tolist() == list(range(30))
    report = penstock.predict(model("scores"), "t.parquet", "z.jsonl", keep="name", **options)
    assert (report.written, report.failed) == (20, 10)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_text_of_a_table_that_is_none_fails_its_row(engine, place, suffix):
    texts = np.array([f"t{row}" for row in range(300)], object)
    texts[200] = None
    table = {"x": np.arange(900.0).reshape(-1, 3), "t": texts}
    kept = penstock.predict("scores", table, f"y.{suffix}", inputs="x", keep="t", engine=engine)
    assert (kept.written, kept.kinds) == (299, {"null": 1})
    keyed = penstock.predict("scores", table, f"k.{suffix}", key="t", engine=engine)
    assert (keyed.written, keyed.first) == (299, "#200: 't': expected string, got nothing")
    neither = penstock.predict("scores", table, f"n.{suffix}", inputs="x", engine=engine)
    assert (neither.written, neither.failed) == (300, 0)
