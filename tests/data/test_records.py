"""TFRecord, read and written without TensorFlow. `test_tfdata` compares with TensorFlow's own."""

from __future__ import annotations

import gzip
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data import files, open_source
from penstock.data.examples import build, parse
from penstock.data.records import frame
from penstock.errors import InputError


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.one_of(
            st.lists(st.binary(max_size=4), max_size=4),
            st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4).map(
                lambda v: np.array(v, np.int64)
            ),
            st.lists(st.floats(width=32, allow_nan=False), max_size=4).map(
                lambda v: np.array(v, np.float32)
            ),
        ),
        max_size=4,
    )
)
def test_examples_there_and_back(features: dict[str, object]) -> None:
    found = parse(build(features))  # type: ignore[arg-type]
    assert found.keys() == features.keys()
    for name, value in features.items():
        assert list(found[name]) == list(value)  # type: ignore[call-overload]


@given(st.binary(max_size=40))
def test_nonsense_is_a_value_error_or_an_example(data: bytes) -> None:
    try:
        parse(data)
    except ValueError:
        return


def test_numbers_one_by_one() -> None:
    """Old writers do not pack lists."""
    ints = b"\x08\x01\x08\x02"
    floats = b"\x0d" + np.float32(1.5).tobytes() + b"\x0d" + np.float32(2.5).tobytes()

    def entry(name: bytes, kind: int, body: bytes) -> bytes:
        feature = bytes([kind << 3 | 2, len(body)]) + body
        pair = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(feature)]) + feature
        return b"\x0a" + bytes([len(pair)]) + pair

    inner = entry(b"n", 3, ints) + entry(b"f", 2, floats)
    found = parse(b"\x0a" + bytes([len(inner)]) + inner)
    assert found["n"].tolist() == [1, 2]  # type: ignore[union-attr]
    assert found["f"].tolist() == [1.5, 2.5]  # type: ignore[union-attr]


def test_broken_data_fails_its_row_alone(tmp_path: Path) -> None:
    records = [
        build({"x": np.arange(2.0), "b": [b"t"], "on": np.array([row % 2])}) for row in range(4)
    ]
    data = bytearray(b"".join(map(frame, records)))
    size = len(frame(records[0]))
    data[size + 20] ^= 1
    data[3 * size :] = frame(b"\xff\xff\xff")
    data += frame(build({"x": np.arange(3.0), "b": [b"t"], "on": np.array([1])}))
    data += frame(build({"b": [b"t"], "on": np.array([1])}))
    data += frame(
        build({"x": [np.arange(2, dtype=np.float32).tobytes()], "b": [b"u"], "on": np.array([1])})
    )
    (tmp_path / "a.tfrecord").write_bytes(data)
    features = {"x": ("float32", (2,)), "b": "string", "on": "bool"}
    chunk = open_source(tmp_path / "a.tfrecord", features=features).read(0, 99)
    assert [(f.row, f.kind) for f in chunk.failures] == [
        (1, "checksum"),
        (3, "text"),
        (4, "shape"),
        (5, "null"),
    ]
    assert chunk.columns["x"][6].tolist() == [0, 1]
    assert chunk.columns["on"].tolist() == [False, False, False, False, True, True, True]


def test_raw_records(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(frame(b"one") + frame(b"") + frame(b"three"))
    chunk = open_source(tmp_path / "a.tfrecord").read(1, 3)
    assert chunk.columns[""].tolist() == [b"", b"three"]
    assert chunk.keys.tolist() == [1, 2]


@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (frame(b"one") + frame(b"two")[:-1], "ends within a record"),
        (frame(b"one") + frame(b"two")[:5], "at byte 19: the file ends within a record"),
        (frame(b"one") + b"\1" + frame(b"two")[1:], "at byte 19: a length does not match"),
        (gzip.compress(frame(b"one" * 9), mtime=0), "compressed with gzip: unpack it"),
    ],
    ids=["end", "length", "middle", "gzip"],
)
def test_files_of_which_rows_are_lost_are_refused(
    tmp_path: Path, data: bytes, words: str, place: str
) -> None:
    with pytest.raises(InputError, match=words):
        open_source(_written(tmp_path, data, place))


@pytest.mark.parametrize("place", ["local", "memory"])
def test_records_of_all_sizes(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for rows in ([], [bytes([row]) * (row * 7 % 50) for row in range(60)]):
        path = _written(tmp_path, b"".join(map(frame, rows)), place)
        for block in (1, 13, 64):
            monkeypatch.setattr(files.blocks, "__defaults__", (block,))
            assert open_source(path).read(0, 99).columns[""].tolist() == rows


def _written(folder: Path, data: bytes, place: str) -> str:
    if place == "memory":
        fsspec.filesystem("memory").pipe("/records/a.tfrecord", data)
        return "memory://records/a.tfrecord"
    (folder / "a.tfrecord").write_bytes(data)
    return str(folder / "a.tfrecord")
