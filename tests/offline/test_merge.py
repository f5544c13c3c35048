"""Shards: each run alone, and joined into what one run would have written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import penstock
from penstock.errors import ConfigError
from penstock.offline import merge as merging
from penstock.offline import ordering
from penstock.offline.merge import merge
from tests.offline.conftest import model


@pytest.fixture
def rows(place, x):
    """1000 rows, of which some fail, with labels."""
    x[[0, 400, 401, 999], 0] = -1
    columns = {
        "x": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.ravel()), x.shape[1]),
        "label": pyarrow.array([f"class {n % 7}" for n in range(len(x))]),
        "cost": pyarrow.array(np.arange(len(x)) ** 2),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), "x.parquet", row_group_size=100)


def run(out: str, engine: str, **options: object) -> penstock.JobReport:
    return penstock.predict(
        "picky", "x.parquet", out, engine=engine, inputs="x", chunk=96, **options
    )


WAYS = {
    "contiguous": {},
    "strided": {},
    "balanced": {"cost": "cost"},
    "stratified": {"label": "label", "seed": 3},
}


@pytest.mark.parametrize(
    ("way", "suffix"),
    [
        ("contiguous", "parquet"),
        ("contiguous", "npy"),
        ("strided", "csv"),
        ("balanced", "npy"),
        ("stratified", "parquet"),
    ],
)
def test_shards_joined_are_what_one_run_writes(rows, engine, way, suffix):
    run(f"whole.{suffix}", engine)
    for index in (2, 3, 1):
        report = run(f"y.{suffix}", engine, shard=f"{index}/3", shards=way, **WAYS[way])
        assert 200 < report.rows < 450 or way == "balanced"
    merged = merge(f"y.{suffix}")
    assert (merged.shards, merged.written, merged.failed) == (3, 996, 4)
    names = ["", ".errors.jsonl"]
    for name in names:
        joined, one = Path(f"y.{suffix}{name}"), Path(f"whole.{suffix}{name}")
        assert joined.read_bytes() == one.read_bytes()
    if suffix == "npy":
        assert Path("y.keys.npy").read_bytes() == Path("whole.keys.npy").read_bytes()


@pytest.mark.parametrize(
    ("map", "suffix"),
    [
        ("short_fractions", "jsonl"),
        ("short_fractions", "csv"),
        ("short_fractions", "tfrecord"),
        ("short_fractions", "npy"),
        ("complex_numbers", "npy"),
        ("numbers_as_texts", "npy"),
    ],
)
def test_what_arrow_has_no_place_for_is_merged_all_the_same(place, x, engine, map, suffix):
    names = np.array([f"photo {n} \udcff.jpg" for n in range(200)], object)
    rows = {"x": x[:200], "name": names}

    def run(out: str, **options: object) -> None:
        penstock.predict(
            "scores", rows, out, engine=engine, key="name", map=model(map), chunk=64, **options
        )

    run(f"whole.{suffix}")
    for index in (1, 2, 3):
        run(f"y.{suffix}", shard=f"{index}/3", shards="strided")
    merge(f"y.{suffix}")
    assert Path(f"y.{suffix}").read_bytes() == Path(f"whole.{suffix}").read_bytes()
    if suffix == "npy":
        assert Path("y.keys.npy").read_bytes() == Path("whole.keys.npy").read_bytes()


def test_a_shard_that_is_missing_or_not_whole(rows, engine):
    Path("whole.npy").touch()
    for name in ("y.npy", "whole.npy"):
        with pytest.raises(ConfigError, match="no shards"):
            merge(name)
    run("y.npy", engine, shard="1/3")
    run("y.npy", engine, shard="3/3")
    with pytest.raises(ConfigError, match="missing: 2/3"):
        merge("y.npy")
    with pytest.raises(penstock.errors.InputError, match="max_errors"):
        run("y.npy", engine, shard="2/3", max_errors=0)
    with pytest.raises(ConfigError, match="2-of-3 is not whole"):
        merge("y.npy")
    run("y.npy", engine, shard="2/3")
    assert merge("y.npy").rows == 1000
    with pytest.raises(ConfigError, match="exists already"):
        merge("y.npy")
    assert merge("y.npy", restart=True).rows == 1000


def test_shards_of_different_jobs_are_not_joined(rows, engine):
    run("y.npy", engine, shard="1/2")
    run("y.npy", engine, shard="2/2", shards="strided")
    with pytest.raises(ConfigError, match="not of one job"):
        merge("y.npy")


def test_more_shards_than_batches(place, x, engine):
    np.save("x.npy", x[:70])
    penstock.predict("scores", "x.npy", "whole.jsonl", engine=engine)
    for index in range(1, 9):
        penstock.predict("scores", "x.npy", "y.jsonl", engine=engine, shard=f"{index}/8")
    merge("y.jsonl")
    assert Path("y.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()


def test_a_stream_cannot_be_cut(place, engine):
    with pytest.raises(ConfigError, match="front to back"):
        penstock.predict("scores", iter([np.zeros(3)]), "y.npy", engine=engine, shard="1/2")


def test_a_shard_leaves_the_side_file_of_the_whole_alone(rows, engine):
    for index in (1, 2):
        run("y.npy", engine, shard=f"{index}/2")
    merge("y.npy")
    side = Path("y.npy.errors.jsonl").read_bytes()
    assert side.count(b"\n") == 4
    with pytest.raises(penstock.errors.InputError, match="max_errors"):
        run("y.npy", engine, shard="1/2", restart=True, max_errors=0)
    assert Path("y.npy.errors.jsonl").read_bytes() == side


@pytest.mark.parametrize("way", ["contiguous", "strided"])
def test_what_is_merged_is_compressed_as_one_run_would_be(rows, engine, way):
    run("whole.parquet", engine, compression="gzip")
    for index in (1, 2):
        run("y.parquet", engine, shard=f"{index}/2", shards=way, compression="gzip")
    merge("y.parquet")
    assert Path("y.parquet").read_bytes() == Path("whole.parquet").read_bytes()


def test_large_rows_are_put_in_order_a_few_at_a_time(place, x, engine, monkeypatch):
    np.save("x.npy", np.random.default_rng(3).random((96, 4096)))
    most = []
    write = merging.NpySink.write

    def watched(self, file, columns, keys=None):
        most.append(len(next(iter(columns.values()))))
        write(self, file, columns, keys)

    for index in (1, 2, 3):
        penstock.predict(
            model("same"), "x.npy", "y.npy", shard=f"{index}/3", shards="strided", max_batch=8
        )
    monkeypatch.setattr(ordering, "_BYTES", 1 << 20)
    monkeypatch.setattr(merging.NpySink, "write", watched)
    merge("y.npy")
    assert 16 <= max(most) <= 32, "a row has 32 KB"
    assert np.array_equal(np.load("y.npy"), np.load("x.npy"))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_few_rows_that_are_larger_than_others_are_put_in_order_apart(
    place, x, engine, monkeypatch, suffix
):
    notes = np.array(["x" * (300_000 if 200 <= n < 220 else n % 9) for n in range(1000)], object)
    most = []
    write = ordering._sorted

    def watched(pieces):
        rows = write(pieces)
        most.append(sum(map(len, rows.columns.get("note", rows.columns.get("")))))
        return rows

    def run(out: str, **options: object) -> None:
        rows = {"x": x, "note": notes}
        penstock.predict("scores", rows, out, engine=engine, inputs="x", keep="note", **options)

    run(f"whole.{suffix}")
    for index in (1, 2, 3):
        run(f"y.{suffix}", shard=f"{index}/3", shards="strided", chunk=96)
    monkeypatch.setattr(ordering, "_BYTES", 1 << 20)
    monkeypatch.setattr(ordering, "_sorted", watched)
    merge(f"y.{suffix}")
    assert max(most) < 1 << 20
    assert len(most) < 20
    assert Path(f"y.{suffix}").read_bytes() == Path(f"whole.{suffix}").read_bytes()


def test_a_disk_that_is_full_as_rows_are_put_in_order_is_told_with_its_file(
    place, x, engine, monkeypatch
):
    for index in (1, 2):
        penstock.predict("scores", x, "y.npy", engine=engine, shard=f"{index}/2", shards="strided")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(ordering.Rows, "write", full)
        with pytest.raises(ConfigError, match=r"y\.npy\.merging/0000000\.npy: No space left"):
            merge("y.npy")
    assert not Path("y.npy.merging").exists()
    assert merge("y.npy").rows == 1000


def test_a_merge_that_is_killed_at_its_end_can_be_done_again(rows, engine, monkeypatch):
    for index in (1, 2):
        run("y.npy", engine, shard=f"{index}/2")
    publish = merging.publish

    def killed(path):
        if path.endswith(".errors.jsonl"):
            raise KeyboardInterrupt
        publish(path)

    monkeypatch.setattr(merging, "publish", killed)
    with pytest.raises(KeyboardInterrupt):
        merge("y.npy")
    monkeypatch.setattr(merging, "publish", publish)
    assert merge("y.npy").failed == 4
    assert Path("y.npy.errors.jsonl").read_text().count("\n") == 4
