"""`penstock.predict`: what goes in and what comes out."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import penstock
from penstock.data import open_sink, open_source
from penstock.errors import (
    ConfigError,
    InputError,
    ModelError,
    NoWorkers,
    RowsFailed,
)
from penstock.offline import labour
from penstock.offline.merge import merge
from penstock.offline.parts import PartStore
from penstock.offline.setting_up import serving
from tests.conditions import until
from tests.data.pictures import fill
from tests.data.web import serving as serving_files
from tests.offline import functions
from tests.offline.conftest import FUNCTIONS, model
from tests.offline.jobs import errors


def read(path: str) -> tuple[dict[str, np.ndarray], list[object]]:
    chunk = open_source(path, key="key").read(0, 1 << 20)
    return dict(chunk.columns), chunk.keys.tolist()


# ── arrays in, arrays out ──────────────────────────────────────────────────────────────────────


def test_arrays_come_back_in_order(x, engine):
    reports = []
    y = penstock.predict("scores", x, engine=engine, on_report=reports.append)
    assert np.array_equal(y, functions.scores(x))
    (report,) = reports
    assert (report.rows, report.written, report.failed, report.out) == (1000, 1000, 0, "")


def test_an_engine_of_its_own(x):
    y = penstock.predict(model("named"), x, max_batch=64)
    assert np.array_equal(y["total"], functions.named(x)["total"])
    assert y["rest"].shape == (1000, 2)


def test_rows_that_fail_are_named_and_the_others_kept(x, engine):
    x[[3, 700], 0] = -1
    with pytest.raises(RowsFailed) as caught:
        penstock.predict("picky", x, engine=engine)
    assert sorted(caught.value.errors) == [3, 700]
    assert isinstance(caught.value.errors[3], ModelError)
    good = np.delete(np.arange(1000), [3, 700])
    assert np.array_equal(caught.value.results[good], functions.scores(x)[good])
    assert not caught.value.results[3].any()


def test_batches_are_never_mixed_or_cut(x, engine):
    def sizes():
        with penstock.connect(engine) as client:
            (found,) = [m for m in client.statistics().models if m.name == "no_blank"]
        return found.sizes

    before = sizes()
    penstock.predict("no_blank", x, engine=engine, chunk=100)
    after = sizes()
    assert {size: after[size] - before.get(size, 0) for size in after} == {16: 62, 8: 1}


def test_the_model_never_sees_rows_that_could_not_be_read(x, engine):
    rows = list(x)
    for number in (0, 5, 640, *range(800, 848)):  # the first of a batch; whole batches
        rows[number] = "no row"
    with penstock.connect(engine) as client:
        before = client.statistics().requests
        with pytest.raises(RowsFailed) as caught:
            penstock.predict("no_blank", rows[1:] + rows[:1], engine=engine)
        after = client.statistics().requests
    assert len(caught.value.errors) == 51
    assert not any(isinstance(error, ModelError) for error in caught.value.errors.values())
    assert after.done - before.done == 61, "two batches had no row to ask about"
    assert (after.partial, after.failed) == (before.partial, before.failed)


def test_a_row_that_kills_its_worker_fails_alone(place):
    x = np.arange(40, dtype=np.float32)[:, None]
    report = penstock.predict("penstock.testing.models:exit_on_13", x, "y.npy", max_batch=8)
    assert (report.written, report.kinds) == (39, {"worker": 1})
    assert np.array_equal(np.load("y.npy"), np.delete(x + x, 13, 0))
    assert [line["row"] for line in errors("y.npy")] == [13]


@pytest.mark.parametrize("max_batch", [1, 8])
def test_a_card_that_fails_ends_the_job_and_no_row_is_blamed(place, x, monkeypatch, max_batch):
    np.save("x.npy", x[:64])
    bad = place / "bad"
    monkeypatch.setenv("OFFLINE_BAD", str(bad))
    bad.touch()
    options = {"max_batch": max_batch, "max_errors": -1, "restarts": 3, "restart_refill": 100.0}
    with pytest.raises(NoWorkers, match=r"3 restarts did not help.*goes on from here"):
        penstock.predict(model("on_a_bad_card"), "x.npy", "y.npy", chunk=16, **options)
    assert not Path("y.npy").exists()
    bad.unlink()
    report = penstock.predict(model("on_a_bad_card"), "x.npy", "y.npy", chunk=16, **options)
    assert (report.written, report.failed) == (64, 0)


def test_every_row_of_a_batch_that_fails_tells_its_own_error(place):
    x = np.arange(12, dtype=np.float32)[:, None]
    penstock.predict(model("each_its_own"), x, "y.npy", max_batch=8)
    told = [line["message"] for line in errors("y.npy")]
    assert told == [f"ValueError: row {row} of 1" for row in range(12)]


def test_a_text_that_cannot_be_sent_fails_alone(place):
    lines = [json.dumps({"x": f"text {row}"}) for row in range(40)]
    lines[21] = '{"x": "half a pair: \\ud800"}'
    Path("x.jsonl").write_text("\n".join(lines) + "\n")
    seen = penstock.Model(model("texts"), inputs=("string", ()), max_batch=32)
    report = penstock.predict(seen, "x.jsonl", "y.jsonl")
    assert (report.written, report.kinds) == (39, {"input": 1})
    assert [line["row"] for line in errors("y.jsonl")] == [21]


def test_texts_that_are_too_large_together_are_sent_in_pieces(place):
    texts = np.array([b"x" * (50_000 + row) for row in range(64)], object)
    seen = penstock.Model(model("texts"), inputs=("string", ()), max_batch=32)
    y = penstock.predict(seen, texts, client_memory=1 << 20)
    assert np.array_equal(y, [len(text) for text in texts])


def test_no_rows(engine, place):
    assert len(penstock.predict("scores", np.empty((0, 7), np.float32), engine=engine)) == 0
    np.save("x.npy", np.empty((0, 7), np.float32))
    report = penstock.predict("scores", "x.npy", "y.parquet", engine=engine)
    assert report.rows == 0
    assert len(pyarrow.parquet.read_table("y.parquet")) == 0


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "npy", "jsonl", "csv", "tfrecord"])
def test_no_good_rows(place, suffix):
    outputs = ("float32", (None, 2))
    seen = penstock.Model(model("each_its_own"), outputs=outputs, max_batch=4)
    x = np.arange(6, dtype=np.float32)[:, None]
    out = f"y.{suffix}"
    report = penstock.predict(seen, x, out)
    assert (report.written, report.failed) == (0, 6)
    assert Path(out).exists()


def test_no_good_rows_have_all_columns(place):
    x = np.arange(6, dtype=np.float32)[:, None]
    np.savez("x.npz", x=x, label=np.arange(6), name=np.array(list("abcdef")))
    seen = penstock.Model(model("each_its_own"), outputs=("float64", (3,)), max_batch=4)
    options = {"inputs": "x", "keep": ["label", "name"]}
    penstock.predict(seen, "x.npz", "y.parquet", **options)
    found = pyarrow.parquet.read_schema("y.parquet")
    assert found.names == ["key", "output", "label", "name"]
    assert [str(found.field(name).type) for name in ("label", "name")] == ["int64", "string"]
    penstock.predict(seen, "x.npz", "z.parquet", **options, map=model("best"))
    assert pyarrow.parquet.read_schema("z.parquet").names == ["key", "best", "label", "name"]


# ── files ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl", "csv", "tfrecord", "npy"])
def test_every_format_holds_every_row(x, engine, place, suffix):
    x[5, 0] = -1
    np.save("x.npy", x)
    out = f"y.{suffix}"
    report = penstock.predict("picky", "x.npy", out, engine=engine, chunk=300)
    assert (report.written, report.failed, report.kinds) == (999, 1, {"model": 1})
    expected = np.delete(functions.scores(x), 5, 0)
    keys = np.delete(np.arange(1000), 5).tolist()
    if suffix == "npy":
        assert np.array_equal(np.load(out), expected)
        assert np.load("y.keys.npy").tolist() == keys
    elif suffix == "csv":
        columns, found = read(out)
        assert found == keys
        assert np.array_equal(columns["output_1"], expected[:, 1])
    elif suffix == "tfrecord":
        features = {"key": ("int64", ()), "output": ("float32", (3,))}
        chunk = open_source(out, features=features, key="key").read(0, 2000)
        assert np.array_equal(chunk.columns["output"], expected.astype(np.float32))
    else:
        columns, found = read(out)
        assert found == keys
        assert np.array_equal(columns["output"], expected)
    assert errors(out) == [
        {"row": 5, "key": 5, "kind": "model", "message": "ValueError: a negative row"}
    ]
    assert not Path(f"{out}.parts").exists()


def table(x: np.ndarray) -> None:
    columns = {
        "id": pyarrow.array([f"row {n}" for n in range(len(x))]),
        "x": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.ravel()), x.shape[1]),
        "label": pyarrow.array(np.arange(len(x)) % 3),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), "x.parquet", row_group_size=130)


def test_columns_in_and_columns_beside_the_outputs(x, engine, place):
    table(x)
    penstock.predict(
        "named", "x.parquet", "y.parquet", engine=engine, key="id", inputs="x", keep="label",
        outputs=["total"],
    )  # fmt: skip
    columns, keys = read("y.parquet")
    assert list(columns) == ["key", "total", "label"]
    assert keys[:2] == ["row 0", "row 1"]
    assert np.array_equal(columns["total"], functions.named(x)["total"])
    assert np.array_equal(columns["label"], np.arange(1000) % 3)


def test_numbers_that_the_model_has_no_place_for_fail(place):
    seen = penstock.Model(model("same"), inputs=("int32", ()), max_batch=4)
    Path("n.csv").write_text('n\n1\n3000000000\n-5\n""\n7\n8\n')
    report = penstock.predict(seen, "n.csv", "y.npy")
    assert (report.written, report.kinds) == (4, {"type": 1, "null": 1})
    assert np.load("y.npy").tolist() == [1, -5, 7, 8]
    assert np.load("y.keys.npy").tolist() == [0, 2, 4, 5]
    told = [(failed["row"], failed["message"]) for failed in errors("y.npy")]
    assert told[0] == (1, "'n': the model takes int32, got 3000000000")
    assert told[1][0] == 3
    with pytest.raises(RowsFailed, match="300"):
        penstock.predict(
            penstock.Model(model("same"), inputs=("int8", (2,))), np.array([[1, 2], [300, 4]])
        )
    with pytest.raises(RowsFailed, match="the model takes float32, got 1e\\+300") as caught:
        penstock.predict(
            penstock.Model(model("same"), inputs=("float32", (2,))),
            np.array([[1, 2], [3, 1e300], [np.inf, np.nan]]),
        )
    assert list(caught.value.errors) == [1]
    np.testing.assert_array_equal(caught.value.results[[0, 2]], [[1, 2], [np.inf, np.nan]])


def test_outputs_go_through_a_function(x, engine, place):
    np.save("x.npy", x)
    penstock.predict("scores", "x.npy", "y.jsonl", engine=engine, map=model("best"))
    first = json.loads(Path("y.jsonl").read_text().splitlines()[0])
    assert first == {"key": 0, "best": f"class {functions.scores(x)[0].argmax()}"}


def test_rows_on_which_that_function_raises_fail_alone(engine, place):
    x = np.arange(100, dtype=np.float32)[:, None]
    report = penstock.predict(
        "scores", x, "y.npy", engine=engine, map=model("best_of_positive"), max_errors=-1
    )
    assert (report.written, report.kinds) == (90, {"map": 10})
    assert np.array_equal(np.load("y.npy"), functions.scores(x)[10:])


def test_a_function_that_changes_what_it_is_given_is_called_again_on_the_same(engine, place):
    x = np.arange(32, dtype=np.float32)[:, None]
    report = penstock.predict(
        "named", x, "y.npy", engine=engine, map=model("one_more"), max_errors=-1
    )
    assert (report.written, report.kinds) == (20, {"map": 12})
    assert np.load("y.npy").tolist() == list(range(1, 21))


@pytest.mark.parametrize("suffix", [".parquet", ".npy", ".csv"])
@pytest.mark.parametrize("shards", ["", "contiguous", "strided"])
def test_large_outputs_are_written_in_pieces_of_a_part(
    x, engine, place, monkeypatch, suffix, shards
):
    x[[3, 700], 0] = -1
    calls = [{"shard": f"{n}/2", "shards": shards} for n in (1, 2)] if shards else [{}]
    sizes, write = [], PartStore.write

    def watched(self, part, content, piece=0):
        sizes.append(content.size)
        return write(self, part, content, piece)

    monkeypatch.setattr(PartStore, "write", watched)
    for out, most in ((f"whole{suffix}", 1 << 30), (f"pieces{suffix}", 1000)):
        monkeypatch.setattr(labour, "_PIECE_BYTES", most)
        sizes.clear()
        reports = [penstock.predict("picky", x, out, engine=engine, **more) for more in calls]
        assert sum(report.written for report in reports) == 998
        if shards:
            merge(out)
    assert len(sizes) > 20
    assert max(sizes) < 1000 + 16 * 24, "one batch more than a piece"
    for end in ("", ".errors.jsonl"):
        assert Path(f"pieces{suffix}{end}").read_bytes() == Path(f"whole{suffix}{end}").read_bytes()
    if suffix == ".npy":
        assert np.array_equal(np.load("pieces.keys.npy"), np.load("whole.keys.npy"))


def test_a_stream_of_unknown_length(engine, place):
    source = model("rows")
    report = penstock.predict("scores", source, "y.npy", engine=engine, chunk=64)
    assert report.rows == 1000
    expected = functions.scores(np.repeat(np.arange(1000, dtype=np.float32)[:, None], 3, 1))
    assert np.array_equal(np.load("y.npy"), expected)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("breaking_off", "rows cannot be read: ZeroDivisionError: no more"),
        ("broken", "the source cannot be opened: LookupError: nothing there"),
    ],
)
def test_what_a_source_raises_is_an_error_of_the_input(engine, place, source, message):
    with pytest.raises(InputError, match=message) as caught:
        penstock.predict("scores", model(source), "y.npy", engine=engine)
    assert isinstance(caught.value.__cause__, (ZeroDivisionError, LookupError))


def test_what_another_file_system_raises_is_an_error_of_the_input(engine, place):
    class Shut(fsspec.AbstractFileSystem):
        protocol = "shut"

        def info(self, path, **_):
            raise RuntimeError("no credentials")

    fsspec.register_implementation("shut", Shut, clobber=True)
    with pytest.raises(InputError, match="cannot be opened: RuntimeError: no credentials"):
        penstock.predict("scores", "shut://there/x.npy", "y.npy", engine=engine)


def test_a_map_whose_outputs_are_called_otherwise_by_row(x, engine, place):
    with pytest.raises(InputError, match="map: outputs differ between rows"):
        penstock.predict(
            "scores", np.arange(9.0)[:, None], "y.npy", engine=engine, map=model("names_by_row")
        )


def test_labels_beside_rows_are_not_for_the_model(x, engine):
    rows = [(row, n % 3) for n, row in enumerate(x)]
    assert np.array_equal(penstock.predict("scores", rows, engine=engine), functions.scores(x))


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_no_loaders_where_nothing_is_to_be_decoded(x, engine, place, suffix):
    with open(f"x.{suffix}", "wb") as file:
        sink = open_sink(file.name)
        sink.write(file, {"x": x}, np.arange(len(x)) if sink.keeps_keys else None)
    columns = {} if suffix == "npy" else {"inputs": "x"}
    given = penstock.predict("scores", f"x.{suffix}", "y.npy", engine=engine, loaders=2, **columns)
    assert (given.written, given.loaders) == (1000, 0)


def test_images_good_and_broken_through_loaders(place):
    files = fill(place / "images")
    report = penstock.predict(model("named"), "images", "y.parquet", size=(24, 32), max_batch=4)
    columns, keys = read("y.parquet")
    bad = [name for name in files if name.startswith("bad_")]
    source = open_source("images", size=(24, 32))
    chunk = source.read(0, len(files))
    assert keys == [key for key, good in zip(chunk.keys, chunk.good, strict=True) if good]
    good = chunk.columns[""][chunk.good]
    assert np.array_equal(columns["total"], functions.named(good)["total"])
    assert sorted(str(line["key"]) for line in errors("y.parquet")) == sorted(
        f"images/{name}" for name in bad
    )
    assert report.kinds == {"decode": len(bad)}
    assert report.rows == len(files)
    assert report.loaders >= 1, "as many as are behind, which depends on the machine"


def test_a_row_that_kills_its_loader_fails_alone(place):
    source = f"{FUNCTIONS.with_name('fragile.py')}:rows"
    report = penstock.predict(model("scores"), source, "y.npy", max_batch=8, chunk=16)
    assert (report.written, report.kinds) == (38, {"decode": 2})
    assert np.array_equal(np.load("y.npy")[:, 1], np.delete(np.arange(40.0), [11, 13]))
    assert [(line["row"], line["key"]) for line in errors("y.npy")] == [
        (11, "row 11"),
        (13, "row 13"),
    ]
    assert "ended twice as it read this row alone" in str(errors("y.npy")[0]["message"])


def test_images_have_the_size_that_the_model_wants(place):
    fill(place / "images")
    seen = penstock.Model(model("named"), inputs=("float32", (6, 5, 1)), max_batch=8)
    penstock.predict(seen, "images/photo*", "y.npy", outputs="total", max_errors=0)
    pixels = open_source("images/photo*", size=(6, 5), mode="L").read(0, 9).columns[""]
    assert np.array_equal(np.load("y.npy"), functions.named(pixels)["total"])


def test_files_as_they_are_for_a_model_that_decodes(place):
    files = fill(place / "images")
    seen = penstock.Model(model("texts"), inputs=("string", ()))
    penstock.predict(seen, "images", "y.jsonl")
    lines = [json.loads(line) for line in Path("y.jsonl").read_text().splitlines()]
    assert {line["key"]: line["output"] for line in lines} == {
        f"images/{name}": len(data) for name, data in files.items()
    }


@pytest.mark.timeout(120)
def test_a_keras_model(place):
    fill(place / "images")
    report = penstock.predict(model("network"), "images/photo*", "y.parquet", max_batch=4)
    columns, keys = read("y.parquet")
    assert keys == ["images/photo1.jpg", "images/photo2.JPEG", "images/photo10.png"]
    assert np.allclose(columns["output"].sum(1), 1, atol=1e-5)
    assert report.plan["mode"] != "python"


@pytest.mark.timeout(120)
def test_the_best_two_classes_in_the_graph(place):
    fill(place / "images")
    seen = penstock.Model(model("network"), postprocess=model("best_two"), max_batch=4)
    penstock.predict(seen, "images/photo*", "y.parquet")
    columns, _ = read("y.parquet")
    assert columns["score"].shape == columns["place"].shape == (3, 2)
    assert (columns["score"][:, 0] >= columns["score"][:, 1]).all()
    penstock.predict(model("network"), "images/photo*", "all.npy", max_batch=4)
    every = np.load("all.npy")
    assert np.array_equal(columns["place"], np.argsort(-every, 1)[:, :2])


@pytest.mark.timeout(120)
def test_the_engine_of_a_job_is_made_ready_for_one_size_alone():
    seen = penstock.Model(model("network"), compile="frozen", ladder=(1, 2, 4), max_batch=8)
    with serving(seen, {}) as served:
        until(lambda: all(worker.warm for worker in served.client.statistics().workers))
        (told,) = served.client.statistics().models
        assert told.facts["ladder"] == told.facts["rungs"] == [8]
        assert served.plan()["max_batch"] == 8


@pytest.mark.parametrize("kind", ["table", "images"])
def test_a_source_that_is_not_on_this_machine(x, place, kind):
    Path("there").mkdir()
    with serving_files(place / "there") as web:
        if kind == "table":
            table(x)
            Path("x.parquet").rename("there/x.parquet")
            what, options = web.url("x.parquet"), {"inputs": "x", "key": "id"}
        else:
            fill(place / "there")
            names = ["photo1.jpg", "bad_text.jpg", "photo2.JPEG", "photo10.png"]
            what, options = [web.url(name) for name in names], {"size": 8}
        report = penstock.predict(model("named"), what, "y.parquet", **options)
        again = penstock.predict(model("named"), what, "y.parquet", **options)
    assert again.computed == 0
    columns, keys = read("y.parquet")
    if kind == "table":
        assert np.array_equal(columns["total"], functions.named(x)["total"])
        assert (keys[-1], report.loaders) == ("row 999", 0)
    else:
        assert keys == [what[0], *what[2:]]
        assert report.kinds == {"decode": 1}
        assert report.loaders >= 1


def test_an_output_that_is_not_on_this_machine(x, engine, place):
    out = "memory://offline/y.parquet"
    with pytest.raises(ConfigError, match="work"):
        penstock.predict("scores", x, out, engine=engine)
    for _ in range(2):
        report = penstock.predict("scores", x, out, engine=engine, work="work")
    assert (report.rows, report.computed) == (1000, 0)
    columns, _ = read(out)
    assert np.array_equal(columns["output"], functions.scores(x))
