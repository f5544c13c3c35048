from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.data import open_sink, open_source, reopen
from penstock.data.arrays import awaited, brought
from penstock.errors import ConfigError, InputError
from tests.data.pictures import fill

FACTORY = """
import numpy as np

def some():
    return ({"n": row} for row in range(5))

def arrays():
    return {"x": np.arange(6)}

def nothing():
    return 3

value = 1
"""


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("nowhere.parquet", "there is no file or folder at nowhere.parquet"),
        ("empty", r"no files to read in 'empty'; expected some that end in \.jpg, \.jpeg"),
        ("notes.txt", r"notes.txt: expected a suffix that is known \(\.jpg.*or format="),
        ("mixed", r"files of one kind, got csv \(mixed/a.csv\), images \(mixed/b.jpg\)"),
        ("a.parquet.gz", "expected a suffix that is known"),
        ("broken.npy", "expected a .npy file"),
        ("objects.npy", "pickled objects, which are not opened"),
        ("short.npy", "expected a .npy file"),
        ("broken.npz", "expected a .npz file"),
        ("uneven.npz", r"expected as many rows in every array, got \{'a': 2, 'b': 3\}"),
        ("scalar.npy", "rows along the first axis, got a scalar"),
        ("no_such_module:f", "no module 'no_such_module', named by"),
        ("made.py:missing", "expected a function that returns rows, got None"),
        ("made.py:value", "expected a function that returns rows, got 1"),
        ("made.py:nothing", "got a builtins.int"),
        ("gone.py:f", "there is no file gone.py"),
        (3, "expected files .* got a builtins.int"),
        ({}, "got an empty dict"),
        ({"a": np.arange(2), "b": np.arange(3)}, "expected as many rows"),
        (np.float32(1), "got a scalar"),
        (np.array([{}], object), "expected numbers or texts, got a dict"),
        (np.array(["2020"], "M8[D]"), r"dtype datetime64\[D\] is none of bool"),
    ],
)
def test_what_cannot_be_opened(
    what: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("empty")
    os.mkdir("mixed")
    for name in (
        "notes.txt",
        "mixed/a.csv",
        "mixed/b.jpg",
        "a.parquet.gz",
        "broken.npy",
        "broken.npz",
    ):
        Path(name).write_text("a,b\n")
    np.save("objects.npy", np.array([{}], object), allow_pickle=True)
    np.save("scalar.npy", 3)
    np.save("short.npy", np.arange(100))
    os.truncate("short.npy", 200)
    np.savez("uneven.npz", a=np.arange(2), b=np.arange(3))
    Path("made.py").write_text(FACTORY)
    with pytest.raises(InputError, match=words):
        open_source(what)


def test_formats_and_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="format: expected one of images, npy"):
        open_source(tmp_path, format="pictures")
    with pytest.raises(ConfigError, match="only for files"):
        open_source(np.arange(3), format="npy")
    with pytest.raises(ConfigError, match="arrays: unknown option sise; expected key"):
        open_source(np.arange(3), sise=3)
    (tmp_path / "a.data").write_text("x\n1\n")
    source = open_source(tmp_path / "a.data", format="csv")
    assert source.read(0, 1).columns["x"].tolist() == [1]
    assert open_source(source) is source


def test_factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("made.py").write_text(FACTORY)
    source = open_source("made.py:some")
    assert not source.seekable
    assert [chunk.columns["n"].tolist() for chunk in source.chunks(2)] == [[0, 1], [2, 3], [4]]
    assert source.read(1, 3).columns["n"].tolist() == [1, 2]  # begun anew
    assert len(open_source("made.py:arrays")) == 6
    description, before = source.describe(), source.fingerprint()
    monkeypatch.chdir("/")
    assert reopen(description).fingerprint() == before
    (tmp_path / "made.py").write_text(FACTORY.replace("range(5)", "range(6)"))
    assert reopen(description).fingerprint() != before


def test_functions_are_factories() -> None:
    def counted() -> Iterator[int]:
        yield from range(4)

    source = open_source(counted)
    assert source.read(2, 9).columns[""].tolist() == [2, 3]
    assert source.read(0, 1).columns[""].tolist() == [0]


def test_rows_that_do_not_fit_the_first(tmp_path: Path) -> None:
    rows = [np.zeros(2), np.zeros(3), np.ones(2), "text", np.array([1, 2])]
    chunk = open_source(rows).read(0, 9)
    assert [(f.row, f.kind) for f in chunk.failures] == [(1, "shape"), (3, "shape")]
    assert chunk.columns[""].tolist() == [[0, 0], [0, 0], [1, 1], [0, 0], [1, 2]]
    keyed = open_source([{"id": f"k{row}", "v": row} for row in range(3)], key="id")
    assert keyed.read(1, 9).keys.tolist() == ["k1", "k2"]
    labelled = open_source([(np.zeros(2), 1), (np.ones(2), 0)]).read(0, 2)
    assert labelled.columns["label"].tolist() == [1, 0]


def test_names_that_are_no_text(tmp_path: Path) -> None:
    fill(tmp_path / "good")
    odd = os.fsencode(tmp_path) + b"/\xff.png"
    with open(odd, "wb") as file:
        file.write((tmp_path / "good/photo10.png").read_bytes())
    source = open_source(os.fsdecode(odd), size=4)
    chunk = source.read(0, 1)
    assert reopen(json.loads(json.dumps(source.describe()))).fingerprint() == source.fingerprint()
    for suffix in (".parquet", ".arrow", ".jsonl", ".csv", ".tfrecord"):
        file = io.BytesIO()
        open_sink(f"a{suffix}").write(file, {"x": np.arange(1)}, chunk.keys)
        assert b"udcff.png" in file.getvalue()


def test_what_raises_fails_its_row() -> None:
    from tests.data.collections_of_rows import Squares

    chunk = open_source(Squares()).read(4, 12)
    assert [(f.row, f.kind, f.message) for f in chunk.failures] == [
        (5, "python", "KeyError: 'no square 5'"),
        (11, "python", "KeyError: 'no square 11'"),
    ]
    assert chunk.columns["n"].tolist() == [16, 0, 36, 49, 64, 81, 100, 0]


@pytest.mark.parametrize("dtype", [">f4", "<i2", "U3", "S3", "?"])
def test_arrays_of_any_dtype(tmp_path: Path, dtype: str) -> None:
    array = np.array([1, 0, 1, 12]).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    np.save(tmp_path / "b.npy", np.asfortranarray(np.stack([array, array], 1)))
    for source in (open_source(array), open_source(tmp_path / "a.npy")):
        found = source.read(1, 4).columns[""]
        assert found.dtype.isnative
        assert found.tolist() == array.tolist()[1:]
    assert open_source(tmp_path / "b.npy").read(3, 4).columns[""].tolist() == [
        [array.tolist()[3]] * 2
    ]


def test_npy_and_stored_npz_are_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((1000, 10)))
    np.savez(tmp_path / "b.npz", x=np.zeros((1000, 10)), y=np.arange(1000))
    for name, column in (("a.npy", ""), ("b.npz", "x"), ("b.npz", "y")):
        view = open_source(tmp_path / name).read(10, 20).columns[column]
        assert isinstance(view, np.memmap)
        assert not view.flags.writeable
    assert open_source(tmp_path / "b.npz", key="y").read(5, 7).keys.tolist() == [5, 6]


def test_mapped_rows_are_brought_into_memory_and_others_left_alone(tmp_path: Path) -> None:
    rows = np.arange(64 << 16).astype(np.uint8).reshape(64, 1 << 16)
    np.save(tmp_path / "x.npy", rows)
    (mapped,) = open_source(tmp_path / "x.npy").read(3, 40).columns.values()
    for some in (mapped, mapped[5:9], mapped[::2], mapped[:, 7], mapped[:0]):
        found = brought(some)
        assert np.array_equal(found, some)
        assert not isinstance(found, np.memmap)
    for array in (rows, rows[3:5], rows[:0], np.array(["a"], object)):
        assert brought(array) is array
    changed = np.load(tmp_path / "x.npy", mmap_mode="c")  # a change that no file knows of
    changed[0] = 7
    assert (brought(changed[:1]) == 7).all()
    for some, expected in ((mapped, True), (mapped[::2], False), (rows, False), (changed, False)):
        assert awaited(some) is expected  # whether a file is read where they are only copied
    os.truncate(tmp_path / "x.npy", 1 << 20)
    for bring in (brought, awaited):
        with pytest.raises(InputError, match="is shorter than it was"):
            bring(mapped)


def test_nothing_is_held_open_between_reads(tmp_path: Path) -> None:
    from tests.data.collections_of_rows import FEATURES, write

    for suffix in (".npy", ".parquet", ".arrow", ".csv", ".jsonl", ".tfrecord"):
        write(suffix, tmp_path, {"n": np.arange(40)})
        options = {"features": {"n": FEATURES["n"]}} if suffix == ".tfrecord" else {}
        before = len(os.listdir("/proc/self/fd"))
        source = open_source(tmp_path, format=suffix.lstrip("."), **options)
        rows = sum(len(source.read(at, at + 5)) for at in range(0, 40, 5))
        assert rows == 40
        assert len(os.listdir("/proc/self/fd")) == before, suffix


def test_a_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(10_000))
    (tmp_path / "b.csv").write_text("x\n" + "1\n" * 1000)
    sources = [open_source(tmp_path / name) for name in ("a.npy", "b.csv")]
    for name in ("a.npy", "b.csv"):
        os.truncate(tmp_path / name, 1000)
    for source in sources:
        with pytest.raises(InputError, match="is shorter than it was"):
            source.read(0, 1000)


def test_frames() -> None:
    import pyarrow as pa

    source = open_source(pa.table({"a": [1, 2], "t": ["x", "y"]}), key="t")
    assert source.read(0, 2).keys.tolist() == ["x", "y"]


def test_nothing_heavy_is_loaded_before_it_is_used(tmp_path: Path) -> None:
    fill(tmp_path / "images")
    code = (
        "import sys, numpy as np; from penstock.data import open_source;"
        f"open_source({str(tmp_path / 'images')!r}, size=8).read(0, 2);"
        "open_source(np.arange(3)).read(0, 2);"
        "heavy = {'pyarrow', 'fsspec', 'tensorflow', 'google_crc32c'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    with pytest.raises(
        ConfigError, match=r"needs the package Pillow: pip install 'penstock\[data\]'"
    ):
        open_source(tmp_path, size=8).read(0, 1)


@pytest.mark.parametrize("name", ["mixed.npz", "MIXED.NPZ"])
def test_only_the_arrays_that_are_chosen_must_be_rows(tmp_path: Path, name: str) -> None:
    x = np.arange(6.0).reshape(3, 2)
    with open(tmp_path / name, "wb") as file:
        np.savez(file, x=x, epoch=3, notes=np.array([{}, 1], object))
    assert np.array_equal(open_source(tmp_path / name, columns="x").read(0, 3).columns["x"], x)
    with pytest.raises(InputError, match=r"'epoch': expected a \.npz file \(.* got a scalar"):
        open_source(tmp_path / name)
    np.savez(tmp_path / "one.npz", x=x)
    assert list(open_source(tmp_path / "one.npz").read(0, 3).columns) == [""]
    assert list(open_source(tmp_path / "one.npz", columns=["x"]).read(0, 3).columns) == ["x"]
    given = {"x": x, "notes": [{}, 1, 2], "id": ["a", "b", "c"]}
    chosen = open_source(given, columns=["x"], key="id").read(0, 3)
    assert chosen.keys.tolist() == ["a", "b", "c"]
    with pytest.raises(InputError, match="column 'notes': expected numbers or texts, got a dict"):
        open_source(given)


def test_what_is_no_text_among_texts_fails_its_row() -> None:
    texts = np.array([f"t{row}" for row in range(300)], object)
    texts[[150, 200]] = None, 3.5
    source = open_source({"x": np.arange(300), "t": texts, "k": np.roll(texts, 1)}, key="k")
    chunk = source.read(100, 300)
    told = [(failure.row, failure.key, failure.kind) for failure in chunk.failures]
    assert told == [
        (150, "t149", "null"),
        (151, "#151", "null"),
        (200, "t199", "type"),
        (201, "#201", "type"),
    ]
    assert chunk.failures[0].message == "'t': expected string, got nothing"
    assert chunk.columns["t"][[49, 50, 51]].tolist() == ["t149", "", "t151"]
    narrow = source.only({"x"}).read(100, 300)
    assert [failure.row for failure in narrow.failures] == [151, 201]
    assert list(narrow.columns) == ["x"]
    for key in (None, "x"):
        unnamed = open_source({"x": np.arange(300), "t": texts}, key=key)
        assert [failure.row for failure in unnamed.read(0, 300).failures] == [150, 200]
        assert not unnamed.only({"x"}).read(0, 300).failures
    pairs = np.stack([texts, texts[::-1]], 1)
    assert {failure.row for failure in open_source(pairs).read(0, 300).failures} == {
        99, 149, 150, 200,
    }  # fmt: skip
