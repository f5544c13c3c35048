"""CSV and JSON lines."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data import lineindex as index
from penstock.data import open_source
from penstock.data.commas import CommaFile
from penstock.errors import ConfigError, InputError

FIELD = st.text('ab1,;"\n é', max_size=5)


@given(
    st.lists(st.lists(FIELD, min_size=2, max_size=2), max_size=12),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(1, 40),
    st.booleans(),
)
def test_csv_is_what_python_reads(
    rows: list[list[str]], end: str, block: int, finished: bool
) -> None:
    file = io.StringIO()
    csv.writer(file, lineterminator=end).writerows([["p", "q"], *rows])
    data = file.getvalue().encode()
    data = data if finished else data.removesuffix(end.encode())
    fsspec.filesystem("memory").pipe("/text/rows.csv", data)
    wanted = list(csv.reader(io.StringIO(data.decode(), newline="")))[1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index.blocks, "__defaults__", (block,))  # rows that lie across blocks
        reader = CommaFile("memory://text/rows.csv", None, {})
    assert reader.rows == len(wanted)
    strings = {"p": "string", "q": "string"}
    source = open_source("memory://text/rows.csv", features=strings)
    for at in range(0, len(wanted), 3):
        columns = source.read(at, at + 3).columns
        assert [list(pair) for pair in zip(columns["p"], columns["q"], strict=True)] == wanted[
            at : at + 3
        ]


def test_a_delimiter_of_several_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('a§b\n"x§\ny"§1\n©§2\n"©"©§3\nz§4\n')
    chunk = open_source(path, delimiter="§").read(0, 9)
    assert not chunk.failures
    assert chunk.columns["a"].tolist() == ["x§\ny", "©", "©©", "z"]
    assert chunk.columns["b"].tolist() == [1, 2, 3, 4]


def test_a_quote_within_a_field_is_a_character(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('name,size\ndisk,5" or 3"\n"a ""b""\nc",2\n')
    source = open_source(tmp_path / "a.csv")
    assert source.read(0, 9).columns["size"].tolist() == ['5" or 3"', "2"]
    assert source.read(1, 9).columns["name"].tolist() == ['a "b"\nc']


def test_types_come_from_the_first_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\ufeffi,f,b,s,m\n1,2,true,x,\n2,2.5,False,y,3\n", "utf-8")
    source = open_source(tmp_path / "a.csv")
    assert {spec.name: spec.dtype for spec in source.signature} == {
        "i": "int64",
        "f": "float64",
        "b": "bool",
        "s": "string",
        "m": "int64",
    }
    chunk = source.read(0, 2)
    assert chunk.columns["b"].tolist() == [True, False]
    assert [(f.row, f.kind, f.message) for f in chunk.failures] == [
        (0, "null", "'m': expected int64, got nothing")
    ]
    filled = open_source(tmp_path / "a.csv", fill={"m": -1}).read(0, 2)
    assert filled.columns["m"].tolist() == [-1, 3]
    assert not filled.failures


def test_bad_rows_fail_alone(tmp_path: Path) -> None:
    lines = [b"id,x", b"a,1", b"b,one", b"c,1,2", b"d", b"", b"e,\xff", b"f,1_0", b'g,"2', b"h,3"]
    (tmp_path / "a.csv").write_bytes(b"\n".join(lines))
    chunk = open_source(tmp_path / "a.csv", features={"x": "float32"}, key="id").read(0, 99)
    assert [(f.key, f.kind) for f in chunk.failures] == [
        ("b", "type"),
        ("#2", "fields"),
        ("#3", "fields"),
        ("#4", "text"),
        ("f", "type"),
        ("#6", "text"),
    ]
    assert chunk.failures[1].message == "expected 2 fields, got 3"
    assert chunk.failures[-1].message == "a quote is not closed"
    assert chunk.keys[0] == "a"


def test_a_row_that_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "LONGEST_ROW", 100)
    (tmp_path / "a.csv").write_text('x\n1\n"' + "never " * 100)
    with pytest.raises(InputError, match="the row at byte 4 is longer"):
        open_source(tmp_path / "a.csv")


def test_headers_and_delimiters(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("1\t2\n3\t4\n")
    assert open_source(tmp_path / "a.tsv", header=["p", "q"]).read(0, 9).columns["q"].tolist() == [
        2,
        4,
    ]
    assert open_source(tmp_path / "a.tsv").signature[0].name == "1"
    with pytest.raises(ConfigError, match="delimiter: expected one character"):
        open_source(tmp_path / "a.tsv", delimiter="ab")
    (tmp_path / "b.csv").write_text("x,x\n1,2\n")
    with pytest.raises(InputError, match="two columns of one name"):
        open_source(tmp_path / "b.csv")
    (tmp_path / "b.csv").write_text("")
    with pytest.raises(InputError, match="names the columns, got no lines"):
        open_source(tmp_path / "b.csv")


def test_many_columns_take_no_longer_than_many_rows(tmp_path: Path) -> None:
    def opened(columns: int) -> float:
        path = tmp_path / f"{columns}.csv"
        line = ",".join(["1.5"] * columns) + "\n"
        path.write_text(
            ",".join(f"c{at}" for at in range(columns)) + "\n" + line * (10**5 // columns)
        )
        began = time.process_time()
        assert len(open_source(path).signature) == columns
        return time.process_time() - began

    assert opened(2000) < 3 * max(opened(200), 0.1)


def test_a_column_without_a_name_is_called_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(",a,\n0,5,x\n1,6,y\n")  # as pandas writes its index
    assert list(open_source(path).read(0, 2).columns) == ["column0", "a", "column2"]


def test_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "2.csv").write_text("a,c\n1,2\n")
    with pytest.raises(InputError, match=r"2\.csv has no column 'b'; it has \['a', 'c'\]"):
        open_source(tmp_path)
    assert open_source(tmp_path, columns=["a"]).read(0, 9).keys.tolist() == [
        f"{tmp_path}/1.csv#0",
        f"{tmp_path}/2.csv#0",
    ]


def test_json_lines(tmp_path: Path) -> None:
    rows: list[object] = [
        {"id": "a", "x": [[1, 2], [3, 4]], "n": 1},
        {"id": "b", "x": [[1.5, 2], [3, 4]], "n": 2},
        {"id": "c", "x": [[1, 2]], "n": 3},
        {"id": "d", "x": [[1, 2], [3]], "n": 3},
        {"id": "e", "n": 3},
        {"id": "f", "x": [["1", "2"], ["3", "4"]], "n": 3},
        {"id": "g", "x": [[1, 2], [3, 4]], "n": 2.5},
        [1],
        {"id": "i", "x": [[1, 2], [3, 4]], "n": 2**70},
        {"id": "j", "x": [[0, 0], [0, 9]], "n": 7, "more": 1},
    ]
    text = "\n".join(json.dumps(row) for row in rows) + "\n\nnonsense"
    (tmp_path / "a.jsonl").write_text(text)
    source = open_source(
        tmp_path / "a.jsonl", key="id", columns=["x", "n"], features={"n": "int64"}
    )
    chunk = source.read(0, 99)
    assert [str(spec) for spec in source.signature] == ["float64 (rows, 2, 2)", "int64 (rows)"]
    assert [(f.key, f.kind) for f in chunk.failures] == [
        ("c", "shape"),
        ("d", "shape"),
        ("e", "null"),
        ("f", "type"),
        ("g", "type"),
        ("#7", "type"),
        ("i", "type"),
        ("#10", "text"),
    ]
    assert chunk.failures[0].message == "'x': expected float64 (2, 2), got int64 (1, 2)"
    assert chunk.columns["x"][9].tolist() == [[0, 0], [0, 9]]
    assert chunk.columns["n"].tolist() == [1, 2, 3, 3, 3, 3, 0, 0, 0, 7, 0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[{"x": 1}, {"x": 2}]\n', "expected an object, got a list"),
        ('{\n  "x": 1\n}\n', "no JSON: Expecting property name"),
    ],
)
def test_a_file_of_json_that_has_no_lines_of_it_is_told_as_that(
    tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(InputError, match=f"x.jsonl: expected a JSON object a line.*{why}"):
        open_source(tmp_path / "x.jsonl")


def test_a_mark_of_the_byte_order_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('"a\nb","c,d"\n1,2\n', encoding="utf-8-sig")
    assert list(open_source(path).read(0, 1).columns) == ["a\nb", "c,d"]
    path.write_text('"x, y",2\n', encoding="utf-8-sig")
    assert open_source(path, header=["a", "b"], key="a").read(0, 1).keys.tolist() == ["x, y"]
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": 1}\n', encoding="utf-8-sig")
    assert open_source(path).read(0, 9).columns["a"].tolist() == [1]


def test_numbers_of_many_digits_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"id,n\n{2**63 - 1},{2**63}\n{-(2**63)},5\n")
    chunk = open_source(path, key="n").read(0, 9)
    assert chunk.columns["id"].tolist() == [2**63 - 1, -(2**63)]
    assert chunk.keys.tolist() == [str(2**63), "5"]
    path = tmp_path / "t.jsonl"
    path.write_text('{"n": 99999999999999999999}\n{"n": {"a": 1}}\n{"n": "t"}\n')
    assert [failure.message for failure in open_source(path).read(0, 9).failures] == [
        "'n': expected string, got int 99999999999999999999",
        "'n': expected string, got dict {'a': 1}",
    ]


@pytest.mark.parametrize(
    ("numbers", "dtype", "failed"),
    [
        ([1, 2**63 + 5, 2**53 + 1], "uint64", []),
        ([2**63 + 5, 1], "uint64", []),
        ([-1, 2**63 + 5, 2**53 + 1], "int64", [1]),
        ([2**63 + 5, -1], "int64", [0]),
        ([1, 2.5], "float64", []),
    ],
)
def test_whole_numbers_of_json_keep_all_their_digits(
    tmp_path: Path, numbers: list[float], dtype: str, failed: list[int]
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f'{{"n": {number}}}\n' for number in numbers))
    source = open_source(path)
    assert [spec.dtype for spec in source.signature] == [dtype]
    chunk = source.read(0, 9)
    assert [failure.row for failure in chunk.failures] == failed
    expected = [0 if row in failed else number for row, number in enumerate(numbers)]
    assert chunk.columns["n"].tolist() == expected


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_numbers_beyond_the_fractions_of_a_column_fail(tmp_path: Path, dtype: str) -> None:
    (tmp_path / "t.csv").write_text("x\n1\n1e300\ninf\n-1e300\n2\n")
    (tmp_path / "t.jsonl").write_text(
        '{"x": 1}\n{"x": 1e300}\n{"x": Infinity}\n{"x": -1e300}\n{"x": 2}\n'
    )
    for name in ("t.csv", "t.jsonl"):
        chunk = open_source(tmp_path / name, features={"x": dtype}).read(0, 9)
        assert [(failure.row, failure.kind) for failure in chunk.failures] == [
            (1, "type"),
            (3, "type"),
        ]
        assert chunk.columns["x"].astype(float).tolist() == [1, 0, float("inf"), 0, 2]


def test_numbers_beyond_all_fractions_fail(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x\n1.5\n1e400\nInf\n")
    chunk = open_source(tmp_path / "t.csv").read(0, 9)
    assert [(failure.row, failure.message) for failure in chunk.failures] == [
        (1, "'x': expected float64, got '1e400'")
    ]
    assert chunk.columns["x"].tolist() == [1.5, 0, float("inf")]
    lines = ('{"x": 1.5}', '{"x": -1e400}', '{"x": Infinity}', '{"x": 2, "y": 1e400}')
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    chunk = open_source(tmp_path / "t.jsonl", columns=["x"]).read(0, 9)
    assert [(failure.row, failure.message) for failure in chunk.failures] == [
        (1, "'x': expected float64, got text '-1e400'")
    ]
    assert chunk.columns["x"].tolist() == [1.5, 0, float("inf"), 2]
