"""Outputs look alike in all of a job, however its rows are cut and whoever does them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.errors import InputError, RowsFailed
from penstock.offline.forms import check_forms, concatenated, forms_of
from penstock.offline.merge import merge
from tests.offline.conftest import model
from tests.offline.jobs import errors


@pytest.fixture
def rows(place):
    """In batches of 16, of which the last two begin above 40."""
    np.save("x.npy", np.arange(96, dtype=np.float32)[:, None])
    return "x.npy"


@pytest.mark.parametrize("chunk", [32, 64, 4096], ids=lambda chunk: f"{chunk // 32} a part")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("whole_or_not", "'level': int64 .* and then 'level': float64"),
        ("numbers_or_texts", "'level': float64 .* and then 'level': texts"),
    ],
)
def test_batches_of_another_dtype_are_refused_however_parts_are_cut(
    rows, engine, chunk, function, message
):
    options = {"engine": engine, "map": model(function), "chunk": chunk}
    for _ in range(2):  # and by the run that goes on
        with pytest.raises(InputError, match=f"outputs differ between rows: {message}"):
            penstock.predict("scores", rows, "y.jsonl", **options)
    assert not Path("y.jsonl").exists()
    with pytest.raises(InputError, match="outputs differ"):
        penstock.predict("scores", rows, **options)


def test_whichever_part_was_done_first(rows, engine):
    """Another loader may have been faster; the run that goes on has only what was recorded."""
    options = {"engine": engine, "map": model("whole_or_not"), "chunk": 32}
    with pytest.raises(InputError, match="and then 'level': float64"):
        penstock.predict("scores", rows, "y.jsonl", **options)
    path = Path("y.jsonl.manifest.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (first, *_) = (line for line in lines if line.get("part") == 0)
    assert first["forms"] == ["'level': int64 ()"]
    first["forms"] = ["'level': float64 ()"]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines[:2], first]))
    with pytest.raises(InputError, match=r"float64 .* and then 'level': int64"):
        penstock.predict("scores", rows, "y.jsonl", **options)


@pytest.mark.parametrize("shards", ["contiguous", "strided"])
def test_shards_that_differ_are_not_joined(rows, engine, shards):
    halves = np.stack([np.arange(32), np.arange(60, 92)]).astype(np.float32)
    x = halves if shards == "contiguous" else halves.T
    np.save(rows, x.reshape(-1, 1))
    options = {"engine": engine, "map": model("whole_or_not"), "shards": shards}
    for index in (1, 2):
        penstock.predict("scores", rows, "y.jsonl", shard=f"{index}/2", **options)
    with pytest.raises(InputError, match=r"differ between shards: 'level': int64 .* float64"):
        merge("y.jsonl")


@pytest.mark.parametrize("chunk", [32, 4096])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "npy", "tfrecord"])
def test_texts_may_be_of_any_width_and_stored_as_they_like(rows, engine, chunk, suffix):
    options = {"engine": engine, "map": model("names_of_all_widths"), "chunk": chunk}
    report = penstock.predict("scores", rows, f"y.{suffix}", **options)
    assert (report.written, report.failed) == (96, 0)
    expected = ["x" * number for number in range(96)]
    assert penstock.predict("scores", rows, **options)["name"].tolist() == expected
    if suffix == "npy":
        assert np.load("y.npy").tolist() == expected


def test_rows_with_a_value_below_a_mask_fail_alone(rows, engine):
    report = penstock.predict("scores", rows, "y.npy", engine=engine, map=model("masked"))
    assert (report.written, report.kinds) == (61, {"map": 35})
    assert np.load("y.npy").tolist() == list(range(61))
    assert "map: 'y': expected an array without a mask" in str(errors("y.npy")[0]["message"])


def test_rows_that_failed_look_like_nothing(rows, engine):
    """A batch of which no row is left has no form, and is no reason to stop."""
    x = np.load(rows)
    x[16:48] = -1
    with pytest.raises(RowsFailed) as caught:
        penstock.predict("picky", x, engine=engine, chunk=32)
    assert len(caught.value.errors) == 32
    report = penstock.predict("picky", x, "y.jsonl", engine=engine, chunk=32)
    assert (report.written, report.failed) == (64, 32)


def test_what_is_alike():
    one, wide = np.array(["a"]), np.array(["long"], object)
    check_forms(forms_of({"": one}), forms_of({"": wide}))
    check_forms(forms_of({"x": np.zeros((2, 3), ">f4")}), forms_of({"x": np.zeros((9, 3), "<f4")}))
    assert concatenated([one, wide, np.array([b"\xff"])]).tolist() == ["a", "long", b"\xff"]
    for other in (np.zeros((2, 3)), np.zeros((2, 4), np.float32), np.zeros(2, np.float32)):
        with pytest.raises(InputError, match="outputs differ between rows"):
            check_forms(forms_of({"x": np.zeros((2, 3), np.float32)}), forms_of({"x": other}))
    assert concatenated([np.array([1]), np.array([0.5])]).tolist() == [1, 0.5]
    for other in (np.array([1]), np.array([["a"]])):
        with pytest.raises(InputError, match="outputs differ"):
            concatenated([one, other])
