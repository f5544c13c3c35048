"""What holds for every source."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data import Chunk, Source, open_source, reopen
from penstock.errors import InputError
from tests.data.collections_of_rows import KINDS, ROWS

_OPEN: dict[str, tuple[Source, Chunk]] = {}


@pytest.fixture(scope="module", params=sorted(KINDS))
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    name: str = request.param
    source = KINDS[name](tmp_path_factory.mktemp("rows"))
    _OPEN[name] = (source, source.read(0, 10 * ROWS))
    return name


def _same(one: Chunk, start: int, whole: Chunk) -> None:
    stop = start + len(one)
    assert one.start == start
    assert list(one.keys) == list(whole.keys[start:stop])
    assert one.columns.keys() == whole.columns.keys()
    for name, array in one.columns.items():
        assert array.dtype == whole.columns[name].dtype
        assert np.array_equal(array, whole.columns[name][start:stop])
    assert one.failures == tuple(f for f in whole.failures if start <= f.row < stop)


def test_reading_from_anywhere_is_reading_a_part_of_the_whole(kind: str) -> None:
    source, whole = _OPEN[kind]
    assert len(whole) == ROWS

    @given(st.lists(st.tuples(st.integers(0, ROWS + 3), st.integers(0, 20)), max_size=6))
    def check(reads: list[tuple[int, int]]) -> None:
        for start, length in reads:
            chunk = source.read(start, start + length)
            assert len(chunk) == max(min(ROWS, start + length) - start, 0)
            _same(chunk, min(start, ROWS) if source.seekable else start, whole)

    check()


def test_columns_are_what_the_signature_says(kind: str) -> None:
    source, whole = _OPEN[kind]
    assert [spec.name for spec in source.signature] == list(whole.columns)
    for spec in source.signature:
        array = whole.columns[spec.name]
        assert array.shape == (ROWS, *spec.shape)
        assert spec.dtype == ("string" if array.dtype == object else array.dtype.name)


def test_into_given_memory(kind: str) -> None:
    source, whole = _OPEN[kind]
    out = {
        name: np.empty_like(array, shape=(20, *array.shape[1:]))
        for name, array in whole.columns.items()
    }
    chunk = source.read(10, 30, out)
    _same(chunk, 10, whole)
    for name, array in chunk.columns.items():
        assert np.shares_memory(array, out[name])


def test_another_process_opens_the_same(kind: str) -> None:
    if kind in ("array", "arrays", "indexed", "list"):
        source = _OPEN[kind][0]
        with pytest.raises(InputError, match="cannot be described"):
            source.describe()
        return
    source, whole = _OPEN[kind]
    text = json.dumps(source.describe())
    again = reopen(json.loads(text))
    assert again.fingerprint() == source.fingerprint()
    _same(again.read(3, 9), 3, whole)
    _same(pickle.loads(pickle.dumps(source)).read(3, 9), 3, whole)


def test_the_fingerprint_is_stable(kind: str) -> None:
    assert _OPEN[kind][0].fingerprint() == _OPEN[kind][0].fingerprint()


def test_chunks_cover_everything_once(kind: str) -> None:
    source, whole = _OPEN[kind]
    sizes = []
    for chunk in source.chunks(7, start=4, stop=33):
        _same(chunk, 4 + sum(sizes), whole)
        sizes.append(len(chunk))
    assert sizes == [7, 7, 7, 7, 1]
    assert sum(len(chunk) for chunk in source.chunks(7)) == ROWS


def test_lengths(kind: str) -> None:
    source = _OPEN[kind][0]
    assert source.seekable == (source.rows is not None)
    if source.seekable:
        assert len(source) == ROWS
    else:
        with pytest.raises(TypeError, match="not known"):
            len(source)


@pytest.mark.parametrize("name", ["images", "parquet", "csv"])
def test_in_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    source = KINDS[name](tmp_path)
    code = (
        "import json, sys; from penstock.data import reopen;"
        "source = reopen(json.loads(sys.argv[1])); chunk = source.read(7, 20);"
        "print(json.dumps([source.fingerprint(), [str(key) for key in chunk.keys],"
        " [failure.row for failure in chunk.failures]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(source.describe())],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    chunk = source.read(7, 20)
    assert json.loads(done.stdout) == [
        source.fingerprint(),
        [str(key) for key in chunk.keys],
        [failure.row for failure in chunk.failures],
    ]


def test_an_iterator_is_gone_through_once() -> None:
    source = open_source(iter(range(ROWS)))
    assert [chunk.columns[""].tolist() for chunk in source.chunks(30)] == [
        list(range(30)),
        list(range(30, ROWS)),
    ]
    with pytest.raises(InputError, match="once: row 0 was asked for after row 39"):
        source.read(0, 1)


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".csv", ".jsonl", ".tfrecord", ".png"])
def test_fingerprints_follow_the_content(tmp_path: Path, suffix: str) -> None:
    from tests.data.collections_of_rows import FEATURES, NUMBERS, write
    from tests.data.pictures import encoded, scene

    if suffix == ".png":
        for row in range(3):
            (tmp_path / f"{row}.png").write_bytes(encoded(scene(9, 9), "PNG"))
        options: dict[str, object] = {"size": 4}
    else:
        write(suffix, tmp_path, {"n": NUMBERS})
        options = {"features": {"n": FEATURES["n"]}} if suffix == ".tfrecord" else {}
    seen = {open_source(tmp_path, **options).fingerprint()}
    assert open_source(tmp_path, **options).fingerprint() in seen
    last = sorted(tmp_path.iterdir())[-1]
    first = sorted(tmp_path.iterdir())[0]
    first.write_bytes(last.read_bytes())
    seen.add(open_source(tmp_path, **options).fingerprint())
    last.unlink()
    seen.add(open_source(tmp_path, **options).fingerprint())
    assert len(seen) == 3


def test_fingerprints_follow_options_and_arrays() -> None:
    array = np.arange(12.0)
    before = open_source(array).fingerprint()
    assert open_source(array.copy()).fingerprint() == before
    array[7] = 0
    assert open_source(array).fingerprint() != before
    both = {"a": array, "b": array}
    assert (
        open_source(both, columns=["a"]).fingerprint()
        != open_source(both, columns=["b"]).fingerprint()
    )


def test_rows_are_read_upwards() -> None:
    with pytest.raises(InputError, match="got 3 to 2"):
        open_source(np.arange(5)).read(3, 2)
    with pytest.raises(InputError, match="at least one row"):
        list(open_source(np.arange(5)).chunks(0))


def test_what_lies_below_a_mask_is_not_read() -> None:
    masked = np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[0, 0], [0, 1]])
    for what in (masked, {"x": masked}):
        with pytest.raises(InputError, match="without a mask"):
            open_source(what)
    chunk = open_source(list(masked)).read(0, 9)
    assert [(failure.row, failure.kind) for failure in chunk.failures] == [(1, "type")]
    assert "without a mask" in chunk.failures[0].message
    assert open_source(masked[:1]).read(0, 9).columns[""].tolist() == [[1.0, 2.0]]
