from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data import Sink, open_sink, open_source, tablesinks
from penstock.errors import ConfigError, InputError

ROWS = 30
COLUMNS = {
    "scores": np.random.default_rng(0).normal(size=(ROWS, 2, 3)).astype(np.float32),
    "best": np.arange(ROWS, dtype=np.int32),
    "name": np.array([f'n{row},"é"\n' for row in range(ROWS)], object),
    "half": (np.arange(ROWS) / 3).astype(ml_dtypes.bfloat16),
    "sure": np.arange(ROWS) % 3 == 0,
}
KEYS = np.array([f"images/{row}.jpg" for row in range(ROWS)], object)
SUFFIXES = [".parquet", ".arrow", ".npy", ".jsonl", ".tfrecord", ".csv"]


def _part(sink: Sink, start: int, stop: int) -> bytes:
    file = io.BytesIO()
    columns = {name: array[start:stop] for name, array in COLUMNS.items()}
    if sink.keeps_keys:
        sink.write(file, columns, KEYS[start:stop])
    else:
        sink.write(file, {"scores": columns["scores"]})
    return file.getvalue()


def _joined(sink: Sink, folder: Path, cuts: list[int]) -> bytes:
    parts = []
    for at, (start, stop) in enumerate(zip([0, *cuts], [*cuts, ROWS], strict=True)):
        parts.append(str(folder / f"{at}{sink.suffix}"))
        Path(parts[-1]).write_bytes(_part(sink, start, stop))
    whole = io.BytesIO()
    sink.join(parts, whole)
    return whole.getvalue()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_joined_is_the_same_however_it_was_cut(suffix: str, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("parts")
    sink = open_sink(f"out{suffix}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tablesinks, "GROUP_BYTES", 2000)  # several row groups, not of the parts' size
        whole = _part(sink, 0, ROWS)

        @given(st.lists(st.integers(0, ROWS), max_size=5).map(sorted))
        def check(cuts: list[int]) -> None:
            assert _joined(sink, folder, cuts) == whole

        check()
        if suffix == ".parquet":
            import pyarrow.parquet as pq

            metadata = pq.ParquetFile(io.BytesIO(whole)).metadata
            sizes = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
            assert len(sizes) > 1
            assert len(set(sizes[:-1])) == 1


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_joining_holds_little_more_than_a_group(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow

    monkeypatch.setattr(tablesinks, "GROUP_BYTES", 1 << 18)
    sink: Any = open_sink(f"out{suffix}")
    rows = np.arange(20_000.0)
    parts = [str(tmp_path / f"{part}{suffix}") for part in range(40)]
    for part in parts:
        with open(part, "wb") as file:
            sink.write(file, {"x": rows}, np.arange(len(rows)))
    before, held, write = pyarrow.total_allocated_bytes(), [], sink._write_group

    def watched(writer: Any, table: Any) -> None:
        write(writer, table)
        held.append(pyarrow.total_allocated_bytes() - before)

    monkeypatch.setattr(sink, "_write_group", watched)
    with open(tmp_path / "out", "wb") as file:
        sink.join(parts, file)
    assert len(held) == -(-40 * 20_000 * 16 // tablesinks.GROUP_BYTES)
    assert max(held) < 4 * tablesinks.GROUP_BYTES, "all rows are 49 groups"


@pytest.mark.parametrize("cut", [1, 7, 64])
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_group_of_large_texts_has_fewer_rows(
    suffix: str, cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tablesinks, "GROUP_BYTES", 1 << 14)
    sink: Any = open_sink(f"out{suffix}")
    sizes = np.random.default_rng(1).integers(0, 3000, 200)
    texts = np.array([b"x" * size for size in sizes] * 2, object).reshape(2, 200).T
    groups, write = [], sink._write_group

    def watched(writer: Any, table: Any) -> None:
        write(writer, table)
        groups.append((len(table), table.nbytes))

    parts = []
    for start in range(0, 200, cut):
        parts.append(str(tmp_path / f"{start}{suffix}"))
        with open(parts[-1], "wb") as file:
            sink.write(file, {"x": texts[start : start + cut]}, np.arange(200)[start : start + cut])
    whole, joined = io.BytesIO(), io.BytesIO()
    sink.write(whole, {"x": texts}, np.arange(200))
    monkeypatch.setattr(sink, "_write_group", watched)
    sink.join(parts, joined)
    assert joined.getvalue() == whole.getvalue()
    assert max(size for _, size in groups) < (1 << 14) + 2 * 3000 + 200 * 16
    assert sum(rows for rows, _ in groups) == 200


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl", ".tfrecord", ".csv"])
def test_what_was_written_is_read(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"out{suffix}"
    path.write_bytes(_part(open_sink(path), 0, ROWS))
    shapes = {"scores": ("float32", (2, 3)), "half": "float32", "best": "int64", "sure": "bool"}
    texts = {"name": "string", "key": "string"}
    options: dict[str, Any] = {"features": shapes | texts} if suffix == ".tfrecord" else {}
    if suffix == ".jsonl":
        options = {"features": {"scores": shapes["scores"], "half": "float32"}}
    if suffix == ".csv":
        options = {"features": {f"scores_{i}_{j}": "float32" for i in range(2) for j in range(3)}}
    chunk = open_source(path, key="key", **options).read(0, 99)
    assert not chunk.failures
    assert chunk.keys.tolist() == KEYS.tolist()
    if suffix == ".csv":
        assert np.array_equal(chunk.columns["scores_1_2"], COLUMNS["scores"][:, 1, 2])
    else:
        assert np.array_equal(chunk.columns["scores"], COLUMNS["scores"])
    assert np.array_equal(chunk.columns["best"], COLUMNS["best"])
    assert np.array_equal(chunk.columns["sure"], COLUMNS["sure"])
    assert np.array_equal(chunk.columns["half"], COLUMNS["half"].astype(np.float32))
    names = [n.decode() if isinstance(n, bytes) else n for n in chunk.columns["name"]]
    assert names == COLUMNS["name"].tolist()


def test_npy_is_mapped_and_texts_are_widened(tmp_path: Path) -> None:
    sink = open_sink("out.npy")
    for at, texts in enumerate((["a"], [], ["longer", "é"])):
        with (tmp_path / f"{at}.npy").open("wb") as file:
            sink.write(file, {"": np.array(texts, object)})
    with (tmp_path / "all.npy").open("wb") as file:
        sink.join([str(tmp_path / f"{at}.npy") for at in range(3)], file)
    assert np.load(tmp_path / "all.npy", mmap_mode="r").tolist() == ["a", "longer", "é"]


def test_numbers_are_short_and_a_bare_array_has_a_name() -> None:
    file = io.BytesIO()
    open_sink("a.jsonl").write(file, {"": np.float32([[0.1, 1e-30]])}, np.array([7]))
    assert file.getvalue() == b'{"key": 7, "output": [0.1, 1e-30]}\n'
    assert json.loads(file.getvalue())["output"] == [0.1, 1e-30]
    file = io.BytesIO()
    open_sink("a.csv", key="id", delimiter=";").write(
        file, {"": np.array(["", "a;b"])}, np.arange(2)
    )
    assert file.getvalue() == b'id;output\n0;\n1;"a;b"\n'


def test_texts_in_any_order_of_memory() -> None:
    texts = np.asfortranarray(np.array([["a", b"b"], ["c", b"\xff"]], object))
    file = io.BytesIO()
    open_sink("a.jsonl").write(file, {"t": texts})
    assert file.getvalue() == b'{"t": ["a", "b"]}\n{"t": ["c", "\\\\xff"]}\n'


def test_an_empty_text_alone_is_still_a_row(tmp_path: Path) -> None:
    with (tmp_path / "a.csv").open("wb") as file:
        open_sink("a.csv").write(file, {"t": np.array(["", "x"], object)})
    assert open_source(tmp_path / "a.csv").read(0, 9).columns["t"].tolist() == ["", "x"]


@pytest.mark.parametrize(
    ("suffix", "columns", "words"),
    [
        (".parquet", {"a": np.arange(2), "b": np.arange(3)}, "as many rows each"),
        (".parquet", {}, "as many rows each"),
        (".parquet", {"a": np.array([1j])}, "complex128 has no place"),
        (
            ".parquet",
            {"a": np.array(["a", b"b"], object)},
            "only str or only bytes, got bytes, str",
        ),
        (".npy", {"a": np.arange(2), "b": np.arange(2)}, "hold one column, got a, b"),
        (".npy", {"a": np.array([b"a\0"], object)}, "ends in a nul"),
        (".tfrecord", {"a": np.array([1j])}, "no place in a tf.train.Example"),
        (".tfrecord", {"a": np.array(["a", 5], object)}, "expected texts, got a int"),
        (".tfrecord", {"a": np.uint64([2**63])}, "holds int64, and a number is larger"),
        (".jsonl", {"a": np.array([1j])}, "complex numbers have no place"),
        (".jsonl", {"a": np.array([{"b": 1}], object)}, "numbers or texts, got a dict"),
        (".csv", {"a": np.array(["a", None], object)}, "numbers or texts, got a NoneType"),
    ],
)
def test_what_cannot_be_written(suffix: str, columns: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        open_sink(f"a{suffix}").write(io.BytesIO(), columns)


def test_names_and_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two columns are called 'key'"):
        open_sink("a.csv").write(io.BytesIO(), {"key": np.arange(2)}, np.arange(2))
    with pytest.raises(InputError, match="no place for keys"):
        open_sink("a.npy").write(io.BytesIO(), {"": np.arange(2)}, np.arange(2))
    with pytest.raises(ConfigError, match=r"'a.xlsx': expected one of \.parquet"):
        open_sink("a.xlsx")
    with pytest.raises(ConfigError, match="'xlsx': expected one of parquet, arrow"):
        open_sink("a", format="xlsx")
    with pytest.raises(ConfigError, match="parquet: unknown option level; expected key, compress"):
        open_sink("a.parquet", level=3)
    with pytest.raises(ConfigError, match="npy: unknown option compression; expected key"):
        open_sink("a.npy", compression="gzip")
    for at, name in enumerate("ab"):
        with (tmp_path / f"{at}.csv").open("wb") as file:
            open_sink("a.csv").write(file, {name: np.arange(2)})
    with pytest.raises(InputError, match=r"1\.csv: expected the header b'a\\n', got b'b\\n'"):
        open_sink("a.csv").join([str(tmp_path / "0.csv"), str(tmp_path / "1.csv")], io.BytesIO())
