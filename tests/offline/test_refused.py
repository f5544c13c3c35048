"""What a job refuses: other inputs, models and options, files of others, rows that are missing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.data import open_sink
from penstock.data.shards import WAYS as ALL_WAYS
from penstock.errors import ConfigError, InputError, PenstockError
from penstock.offline.labour import Labour
from penstock.offline.parts import Content
from penstock.offline.settings import WAYS, JobSettings
from tests.data.pictures import fill
from tests.offline.conftest import model
from tests.offline.jobs import errors, recorded


def test_a_finished_job_is_not_done_again(x, place, monkeypatch):
    np.save("x.npy", x)
    monkeypatch.setenv("OFFLINE_COUNT", str(place / "count"))
    for _ in range(2):
        report = penstock.predict(model("counted"), "x.npy", "y.npy")
        assert (report.rows, report.written) == (1000, 1000)
    assert report.computed == 0
    assert sum(map(int, (place / "count").read_text().split())) == 1000


@pytest.mark.parametrize("gone", ["y.npy", "y.keys.npy", "y.npy.errors.jsonl"])
def test_a_finished_job_of_which_a_file_is_gone_says_so(x, engine, place, gone):
    x[17, 0] = -1
    np.save("x.npy", x)
    penstock.predict("picky", "x.npy", "y.npy", engine=engine)
    assert penstock.predict("picky", "x.npy", "y.npy", engine=engine).computed == 0
    Path(gone).unlink()
    with pytest.raises(ConfigError, match=f"{gone} is gone: begin anew with --restart"):
        penstock.predict("picky", "x.npy", "y.npy", engine=engine)
    assert penstock.predict("picky", "x.npy", "y.npy", engine=engine, restart=True).failed == 1
    assert Path(gone).exists()


def test_a_finished_shard_of_which_a_part_is_gone_says_so(x, engine, place):
    np.save("x.npy", x)
    penstock.predict("scores", "x.npy", "y.npy", engine=engine, shard="1/2")
    Path("y.npy.1-of-2.parts/part-0000000.npy").unlink()
    with pytest.raises(ConfigError, match=r"part-0000000.npy is gone: begin anew with --restart"):
        penstock.predict("scores", "x.npy", "y.npy", engine=engine, shard="1/2")


def test_a_changed_input_model_or_option_is_refused(x, engine, place):
    np.save("x.npy", x)
    Path("m.py").write_text("def f(x):\n    return x + x\n")
    penstock.predict("m.py:f", "x.npy", "y.npy")
    before = Path("y.npy").read_bytes()
    with pytest.raises(ConfigError, match=r"other options \(chunk\): put things back"):
        penstock.predict("m.py:f", "x.npy", "y.npy", chunk=64)
    with pytest.raises(ConfigError, match="another model, or other options of it"):
        penstock.predict("m.py:f", "x.npy", "y.npy", max_batch=2)
    Path("m.py").write_text("def f(x):\n    return x + x + 1\n")
    with pytest.raises(ConfigError, match="another model"):
        penstock.predict("m.py:f", "x.npy", "y.npy")
    np.save("x.npy", x[:500])
    with pytest.raises(ConfigError, match="another input and another model"):
        penstock.predict("m.py:f", "x.npy", "y.npy")
    assert Path("y.npy").read_bytes() == before
    assert penstock.predict("m.py:f", "x.npy", "y.npy", restart=True).rows == 500
    assert np.array_equal(np.load("y.npy"), x[:500] + x[:500] + 1)


def test_a_model_that_changed_in_an_engine_of_the_same_name_is_refused(x, place):
    np.save("x.npy", x)
    for text in ("x + x", "x + x + 1"):
        Path("m.py").write_text(f"def f(x):\n    return {text}\n")
        with penstock.Engine(str(place / "m.py:f"), name="same-name") as engine:
            address = str(engine.address)
            if text == "x + x":
                assert penstock.predict("f", "x.npy", "y.npy", engine=address).written == 1000
                assert penstock.predict("f", "x.npy", "y.npy", engine=address).computed == 0
            else:
                with pytest.raises(ConfigError, match="another model"):
                    penstock.predict("f", "x.npy", "y.npy", engine=address)


def test_images_that_are_to_be_read_otherwise_are_another_input(place, x):
    fill(place / "images")
    seen = penstock.Model(model("named"), inputs=("float32", (None, None, 1)), max_batch=8)
    square = penstock.Model(model("named"), inputs=("float32", (6, 6, 1)), max_batch=8)

    def run(what="images/photo*", seen=square, **options):
        return penstock.predict(seen, what, "y.npy", outputs="total", **options)

    run()
    assert run(size=6, mode="L").computed == run(mode="L").computed == 0
    for options in ({"size": 8, "mode": "L"}, {"size": 6}, {"mode": "RGB"}, {"decode": False}):
        with pytest.raises(ConfigError, match="another input"):
            run(**options)
    np.save("x.npy", x)
    with pytest.raises(ConfigError, match="another input"):
        run("x.npy")
    np.save("x.npy", np.zeros((3, 6, 6, 1), np.float32))
    run("x.npy", restart=True)
    with pytest.raises(ConfigError, match="another input"):
        run()
    with pytest.raises(InputError, match="pass size"):
        run(seen=seen, restart=True)
    assert run("x.npy").computed == 0


def test_what_is_said_of_images_goes_before_what_the_model_says(place):
    fill(place / "images")
    seen = penstock.Model(model("named"), inputs=("float32", (6, 6, 3)), max_batch=8)
    assert penstock.predict(seen, "images/photo*", mode="RGB")["total"].shape == (3,)


def test_an_option_that_was_wrong_can_be_put_right_while_nothing_is_done(x, engine, place):
    np.save("x.npy", x)
    with pytest.raises(InputError, match="one column"):
        penstock.predict("named", "x.npy", "y.npy", engine=engine)
    report = penstock.predict("named", "x.npy", "y.npy", engine=engine, outputs="total")
    assert report.written == 1000


@pytest.mark.parametrize("name", ["y.npy", "y.keys.npy", "y.npy.errors.jsonl"])
def test_a_file_of_somebody_else_is_not_written_over(x, engine, place, name):
    Path(name).write_text("mine")
    with pytest.raises(ConfigError, match=f"{name} exists already"):
        penstock.predict("scores", x, "y.npy", engine=engine)
    assert sorted(path.name for path in place.iterdir()) == [name]
    assert Path(name).read_text() == "mine"
    assert penstock.predict("scores", x, "y.npy", engine=engine, restart=True).written == 1000


def test_outputs_of_one_name_in_one_work_folder(x, engine, place):
    for folder in ("a", "b"):
        Path(folder).mkdir()
    penstock.predict("scores", x, "a/y.npy", engine=engine, work="work")
    with pytest.raises(ConfigError, match=r"another output of this name, .*/a/y\.npy"):
        penstock.predict("scores", x, "b/y.npy", engine=engine, work="work")
    assert penstock.predict("scores", x, "a/y.npy", engine=engine, work="work").computed == 0
    Path("c").mkdir()
    penstock.predict("scores", x, "c/y.npy", engine=engine)
    Path("c").rename("d")
    assert penstock.predict("scores", x, "d/y.npy", engine=engine).computed == 0


@pytest.mark.parametrize("rows", [[], iter([])])
def test_nothing_at_all(engine, rows):
    with pytest.raises(InputError, match="the source has no rows"):
        penstock.predict("scores", rows, engine=engine)


def test_an_output_that_the_model_does_not_have_is_refused_before_it_begins(x, place):
    seen = penstock.Model(model("scores"), outputs=("float64", (3,)))
    with pytest.raises(InputError, match=r"no output 'z'; the only one has no name"):
        penstock.predict(seen, x, "y.npy", outputs="z")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": "z"}, "no column 'z'"),
        ({"keep": "z"}, "no column 'z'"),
        ({"outputs": "z"}, "no output 'z'; the only one has no name"),
        ({"shard": "9/8"}, "1/8 to 8/8"),
        ({"shards": "random"}, "shards: expected"),
        ({"shard": "1/2", "shards": "dynamic"}, "within one job"),
        ({"max_errors": -2}, "max_errors"),
        ({"nonsense": 1}, "unknown option 'nonsense'"),
        ({"devices": "cpu"}, "runs already"),
    ],
)
def test_options_that_cannot_be(x, engine, place, options, message):
    with pytest.raises((ConfigError, InputError), match=message):
        penstock.predict("scores", x, "y.npy", engine=engine, **options)


def test_a_kept_column_that_is_called_as_keys_are_is_refused_before_it_begins(place):
    with pytest.raises(ConfigError, match=r"keep: 'key' is what keys are called .* key='key'"):
        penstock.predict("no:model", {"x": [1.0], "key": ["a"]}, "y.csv", keep="key")
    assert list(place.iterdir()) == []


def test_rows_that_do_not_fit_the_model_are_refused_at_once(place):
    seen = penstock.Model(model("scores"), inputs=("float32", (9,)))
    with pytest.raises(InputError, match=r"expected float32 \(rows, 9\)"):
        penstock.predict(seen, np.zeros((5, 7), np.float32), "y.npy")
    assert list(place.iterdir()) == []


def test_a_row_that_gets_lost_is_noticed_and_nothing_is_written(x, engine, place, monkeypatch):
    together = Labour._together

    def careless(self, contents):
        whole = together(self, contents)
        return Content({n: c[1:] for n, c in whole.columns.items()}, whole.keys[1:], whole.rows[1:])

    monkeypatch.setattr(Labour, "_together", careless)
    with pytest.raises(PenstockError, match=r"1,000 rows went in; 999 came out and 0 failed"):
        penstock.predict("scores", x, "y.npy", engine=engine)
    assert not Path("y.npy").exists()


@pytest.mark.parametrize("suffix", ["npy", "parquet", "arrow"])
def test_an_output_that_lacks_rows_is_not_published(x, engine, place, monkeypatch, suffix):
    np.save("x.npy", x)
    sink = type(open_sink(f"y.{suffix}"))
    join = sink.join
    careless = lambda self, parts, file: join(self, list(parts)[1:], file)  # noqa: E731
    monkeypatch.setattr(sink, "join", careless)
    with pytest.raises(PenstockError, match=r"expected 1,000 rows .* but 968 were joined"):
        penstock.predict("scores", "x.npy", f"y.{suffix}", engine=engine, chunk=64)
    assert not Path(f"y.{suffix}").exists()
    monkeypatch.setattr(sink, "join", join)
    report = penstock.predict("scores", "x.npy", f"y.{suffix}", engine=engine, chunk=64)
    assert (report.computed, report.written) == (0, 1000)


def test_too_many_errors_stop_the_job_and_it_can_go_on(x, engine, place):
    np.save("x.npy", x)
    x[::10, 0] = -1
    np.save("x.npy", x)
    with pytest.raises(InputError, match="max_errors is 30"):
        penstock.predict("picky", "x.npy", "y.npy", engine=engine, max_errors=30, chunk=64)
    assert len(errors("y.npy")) > 30
    assert not Path("y.npy").exists()
    report = penstock.predict("picky", "x.npy", "y.npy", engine=engine, chunk=64)
    assert (report.failed, report.written) == (100, 900)
    assert 0 < report.known < 1000
    assert [line["row"] for line in errors("y.npy")] == list(range(0, 1000, 10))


def test_too_many_errors_stop_every_run_also_when_all_is_done(x, engine, place):
    x[::10, 0] = -1
    np.save("x.npy", x)

    def run(most):
        return penstock.predict("picky", "x.npy", "y.npy", engine=engine, max_errors=most, chunk=64)

    known = []
    for most in (30, 30, 99):
        with pytest.raises(InputError, match=f"max_errors is {most}"):
            run(most)
        known.append(recorded("y.npy"))
    assert known[0] == known[1] < known[2]
    with pytest.raises(InputError, match="max_errors is 99"):
        run(99)
    assert not Path("y.npy").exists()
    assert len(errors("y.npy")) == 100
    report = run(100)
    assert (report.failed, report.written) == (100, 900)


class Listed:
    """Rows that can be asked for by number."""

    def __len__(self):
        return 300

    def __getitem__(self, row):
        return {"x": np.full(3, row - 250.0), "id": 1000 + row, "name": f"row {row}"}


def listed():
    return Listed()


def streamed():
    yield from map(Listed().__getitem__, range(300))


@pytest.mark.parametrize("source", ["listed", "streamed"])
def test_other_keys_are_another_input(engine, place, source):
    what = f"{Path(__file__)}:{source}"

    def run(**options):
        return penstock.predict(
            "picky", what, "y.jsonl", engine=engine, inputs="x", chunk=64, **options
        )

    with pytest.raises(InputError, match="max_errors"):
        run(max_errors=0)
    for key in ("id", "name"):
        with pytest.raises(ConfigError, match="another input"):
            run(key=key)
    assert run(key="#row").failed == 250


def test_the_ways_of_sharding_are_those_of_the_data_room():
    assert WAYS == ALL_WAYS


def test_parts_go_to_whoever_is_free_whether_it_is_said_or_not(x, engine, place):
    np.save("x.npy", x)
    for options in ({"shards": "dynamic"}, {}):
        report = penstock.predict("scores", "x.npy", "y.npy", engine=engine, **options)
        assert report.written == 1000
    assert report.computed == 0


def test_every_setting_says_what_it_is():
    assert all(field.metadata["help"] for field in dataclasses.fields(JobSettings))
