"""Parquet and Arrow."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.data import open_source
from penstock.data.tables import ParquetGroups
from penstock.errors import ConfigError, InputError

FLOATS = pa.float32()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "table.parquet"


def _column(place: Path, column: pa.Array, **options: Any) -> tuple[np.ndarray, dict[int, str]]:
    pq.write_table(pa.table({"c": column}), place, row_group_size=2)
    chunk = open_source(place, **options).read(0, 99)
    return chunk.columns["c"], {failure.row: failure.kind for failure in chunk.failures}


@pytest.mark.parametrize(
    "kind", ["int8", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64", "bool"]
)
def test_numbers(place: Path, kind: str) -> None:
    wanted = np.array([0, 1, 1, 0, 1]).astype(kind)
    array, failed = _column(place, pa.array(wanted))
    assert array.dtype == kind
    assert np.array_equal(array, wanted)
    assert not failed


def test_rows_of_a_group_are_told_to_be_read_together(place: Path) -> None:
    _column(place, pa.array(np.arange(5)))
    assert open_source(place).together == 2
    images = pa.array([b"no image"] * 7)
    pq.write_table(pa.table({"c": images}), place, row_group_size=3)
    assert open_source(place, images="c", size=8).together == 3
    np.save(place.with_name("x.npy"), np.arange(5))
    assert open_source(place.with_name("x.npy")).together == 1


def test_texts_and_what_has_no_number(place: Path) -> None:
    assert _column(place, pa.array(["a", "é"]))[0].tolist() == ["a", "é"]
    assert _column(place, pa.array(["a", "é", "a"]).dictionary_encode())[0].tolist() == [
        "a",
        "é",
        "a",
    ]
    assert _column(place, pa.array([b"a\0", b"\xff"]))[0].tolist() == [b"a\0", b"\xff"]
    day = datetime.date(2020, 2, 29)
    assert _column(place, pa.array([day]))[0].tolist() == ["2020-02-29"]
    assert _column(place, pa.array([decimal.Decimal("1.50")]))[0].tolist() == ["1.50"]
    pq.write_table(pa.table({"c": pa.array([{"a": 1}]), "d": pa.array([1])}), place)
    with pytest.raises(InputError, match=r"column 'c' is struct<a: int64>.* leave it out"):
        open_source(place)
    assert open_source(place, columns="d").read(0, 9).columns["d"].tolist() == [1]


def test_nulls_fail_unless_filled(place: Path) -> None:
    column = pa.array([1, None, 3])
    array, failed = _column(place, column)
    assert array.tolist() == [1, 0, 3]
    assert array.dtype == "int64"
    assert failed == {1: "null"}
    assert _column(place, column, fill={"c": 9}) == (pytest.approx([1, 9, 3]), {})
    assert _column(place, pa.array(["a", None]))[0].tolist() == ["a", ""]


def test_nulls_in_lists_are_filled_but_no_list_that_is_null(place: Path) -> None:
    lists = pa.array([[1, None], None, [3, 4]])
    array, failed = _column(place, lists, fill={"c": 9})
    assert array.tolist() == [[1, 9], [0, 0], [3, 4]]
    assert failed == {1: "null"}


def test_a_failed_row_is_named_if_its_key_can_be_read(place: Path) -> None:
    pq.write_table(pa.table({"id": [0, 1, None, 0], "x": [None, None, 1.5, 2.5]}), place)
    chunk = open_source(place, key="id").read(0, 9)
    assert [(f.row, f.key) for f in chunk.failures] == [(0, 0), (1, 1), (2, "#2")]


@pytest.mark.parametrize("kind", [pa.list_(FLOATS, 2), pa.list_(FLOATS), pa.large_list(FLOATS)])
def test_lists(place: Path, kind: pa.DataType) -> None:
    array, failed = _column(place, pa.array([[1, 2], [3, 4], [5, 6]], kind))
    assert array.dtype == "float32"
    assert array.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert not failed
    array, failed = _column(place, pa.array([[1, 2], None, [5, None], [7, 8]], kind))
    assert failed == {1: "null", 2: "null"}
    assert array.tolist() == [[1, 2], [0, 0], [0, 0], [7, 8]]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.list_(pa.int16())),
        pa.list_(pa.list_(pa.int16(), 3)),
        pa.list_(pa.list_(pa.int16()), 2),
        pa.list_(pa.list_(pa.int16(), 3), 2),
    ],
)
def test_lists_of_lists(place: Path, kind: pa.DataType) -> None:
    wanted = np.arange(24, dtype=np.int16).reshape(4, 2, 3)
    array, failed = _column(place, pa.array(wanted.tolist(), kind))
    assert array.dtype == "int16"
    assert np.array_equal(array, wanted)
    assert not failed


def test_lists_of_another_length_fail(place: Path) -> None:
    column = pa.array([[1, 2], [3], [], [4, 5], [6, 7, 8]])
    array, failed = _column(place, column)
    assert failed == {1: "shape", 2: "shape", 4: "shape"}
    assert array.tolist() == [[1, 2], [0, 0], [0, 0], [4, 5], [0, 0]]


def test_features_give_shapes_and_dtypes(place: Path) -> None:
    wanted = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    flat = pa.array(wanted.reshape(2, 6).tolist())
    array, _ = _column(place, flat, features={"c": ("float32", (2, 3))})
    assert array.dtype == "float32"
    assert np.array_equal(array, wanted)
    raw = pa.array([row.tobytes() for row in wanted] + [b"short"])
    array, failed = _column(place, raw, features={"c": ("float32", (2, 3))})
    assert np.array_equal(array[:2], wanted)
    assert failed == {2: "shape"}


def test_only_the_row_groups_that_are_needed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"c": np.arange(100), "d": np.arange(100)}), place, row_group_size=10)
    source = open_source(place, columns=["c"])
    read: list[tuple[int, tuple[str, ...]]] = []
    plain = ParquetGroups.read

    def counted(self: ParquetGroups, group: int, names: tuple[str, ...]) -> Any:
        read.append((group, tuple(names)))
        return plain(self, group, names)

    monkeypatch.setattr(ParquetGroups, "read", counted)
    for at in range(42, 58, 4):
        assert source.read(at, at + 4).columns["c"].tolist() == list(range(at, at + 4))
    assert read == [(4, ("c",)), (5, ("c",))]


def test_arrow_is_mapped(tmp_path: Path) -> None:
    table = pa.table({"c": np.arange(1000)})
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=300)
    source = open_source(tmp_path / "a.arrow")
    before = pa.total_allocated_bytes()
    column = source.read(310, 590).columns["c"]
    assert column.tolist() == list(range(310, 590))
    assert pa.total_allocated_bytes() - before < 1000


def test_bad_files_and_names(place: Path, tmp_path: Path) -> None:
    for data in (b"", b"PAR1 no it is not"):
        place.write_bytes(data)
        with pytest.raises(InputError, match="expected a Parquet file"):
            open_source(place)
        (tmp_path / "a.arrow").write_bytes(data)
        with pytest.raises(InputError, match="expected an Arrow IPC file"):
            open_source(tmp_path / "a.arrow")
    pq.write_table(pa.table({"c": [1.5]}), place)
    with pytest.raises(InputError, match=r"has no column 'x'; it has \['c'\]"):
        open_source(place, columns=["x"])
    with pytest.raises(InputError, match=r"no column 'id' to take keys from; there are \['c'\]"):
        open_source(place, key="id")
    with pytest.raises(InputError, match="keys are texts or whole numbers; column 'c' is float64"):
        open_source(place, key="c")
    with pytest.raises(ConfigError, match="unknown option delimiter; expected columns, key"):
        open_source(place, delimiter=";")


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.jsonl"])
def test_what_is_said_of_columns_that_are_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    table = pa.table({"a": [1.5, 2.5], "b": [1, 2]})
    if name == "t.parquet":
        pq.write_table(table, name)
    elif name == "t.csv":
        Path(name).write_text("a,b\n1.5,1\n2.5,2\n")
    else:
        Path(name).write_text('{"a": 1.5, "b": 1}\n{"a": 2.5, "b": 2}\n')
    with pytest.raises(ConfigError, match=r"fill: there is no column 'z'; there are \['a', 'b'\]"):
        open_source(name, fill={"z": 0})
    with pytest.raises(ConfigError, match=r"fill: expected a dict of name: value, got \[1\]"):
        open_source(name, fill=[1])
    if name != "t.jsonl":  # whose rows need not all have all fields
        with pytest.raises(ConfigError, match="features: there is no column 'z'"):
            open_source(name, features={"z": "float32"})
    assert len(open_source(name, columns=["a"], fill={"b": 0})) == 2


def test_numbers_that_features_have_no_place_for_fail(place: Path) -> None:
    array, failed = _column(place, pa.array([1, 300, -5, None]), features={"c": "int8"})
    assert array.tolist() == [1, 0, -5, 0]
    assert failed == {1: "type", 3: "null"}
    fractions = pa.array([2.0, 2.5, float("nan"), 2.0**63, -(2.0**63)])
    array, failed = _column(place, fractions, features={"c": "int64"})
    assert array.tolist() == [2, 0, 0, 0, -(2**63)]
    assert failed == {1: "type", 2: "type", 3: "type"}
    pairs = pa.array([[1, 2], [3, -1], [5, 6]])
    array, failed = _column(place, pairs, features={"c": ("uint8", (2,))})
    assert array.tolist() == [[1, 2], [0, 0], [5, 6]]
    assert failed == {1: "type"}
    assert _column(place, pa.array([1.1]), features={"c": "float16"})[1] == {}


def test_what_is_wrong_with_a_file_is_told_with_its_name(place: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"c": [1]}), place)
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"c": ["a"]}), other)
    with pytest.raises(InputError, match=r"other\.parquet: column 'c': expected int64, got string"):
        open_source([place, other])
    data = bytearray(place.read_bytes())
    data[4:24] = b"\xff" * 20
    other.write_bytes(data)
    with pytest.raises(InputError, match=r"other\.parquet: rows cannot be decoded \(.*page header"):
        open_source(other).read(0, 1)
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["c", "c"])
    pq.write_table(twice, place)
    with pytest.raises(InputError, match="two columns of one name"):
        open_source(place)


def test_features_have_one_shape(place: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"features: 'c': expected rows of one shape, got float32"
    ):
        _column(place, pa.array([[1.0]]), features={"c": ("float32", (None,))})


def test_a_table_in_memory_with_lists(place: Path) -> None:
    table = pa.table({"c": [[1.0, 2.0], [3.0, 4.0]], "d": ["a", None]})
    assert open_source(table, columns=["c"]).read(0, 2).columns["c"].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(InputError, match="column 'd': expected numbers or texts, got a NoneType"):
        open_source(table)
