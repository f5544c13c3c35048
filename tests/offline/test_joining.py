"""The output is made while parts are still coming, in their order, or at the end all the same."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.data import open_sink
from penstock.data.atomic import temporary
from penstock.errors import InputError
from penstock.offline import ending, filed
from penstock.offline.joining import Joining
from penstock.offline.parts import Content, Facts, PartStore
from penstock.offline.place import Place, place_of
from penstock.offline.settings import JobSettings
from tests.conditions import until
from tests.offline.conftest import model

SUFFIXES = [".parquet", ".arrow", ".npy", ".jsonl", ".tfrecord", ".csv"]


def _parts(folder: Path, suffix: str, count: int = 9) -> tuple[Place, PartStore, dict[int, Facts]]:
    """Some rows each, of which every third part has none."""
    place = place_of(folder / f"out{suffix}", JobSettings(), {})
    store = place.store()
    store.make()
    facts = {}
    for part in range(count):
        rows = np.arange(7 * part, 7 * part + 7) if part % 3 != 1 else np.empty(0, np.int64)
        columns = {"": np.stack([rows * 1.5, rows], 1)}
        facts[part] = store.write(part, Content(columns, rows, rows))
        store.publish(part, facts[part])
    return place, store, facts


def _at_the_end(place: Place, store: PartStore, facts: dict[int, Facts]) -> bytes:
    file = io.BytesIO()
    place.sink.join(store.paths(facts), file)
    return file.getvalue()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_parts_that_come_in_any_order_are_joined_in_theirs(tmp_path: Path, suffix: str) -> None:
    place, store, facts = _parts(tmp_path, suffix)
    joining = Joining(place, store)
    for part in random.Random(3).sample(sorted(facts), len(facts)):
        joining.add(part, facts[part])
    assert joining.finish()
    assert Path(temporary(place.out)).read_bytes() == _at_the_end(place, store, facts)
    joining.drop()
    assert Path(temporary(place.out)).exists()


def test_what_is_there_is_joined_before_the_rest_comes(tmp_path: Path) -> None:
    place, store, facts = _parts(tmp_path, ".npy")
    joining = Joining(place, store)
    for part in range(8):
        joining.add(part, facts[part])
    rows = 7 * 5 * 2 * 8  # bytes of the parts with rows
    hidden = Path(temporary(place.out))
    until(lambda: hidden.exists() and hidden.stat().st_size >= rows)
    assert not Path(place.out).exists()
    joining.drop()
    assert not hidden.exists()


def test_a_part_that_never_came_is_missed(tmp_path: Path) -> None:
    place, store, facts = _parts(tmp_path, ".jsonl")
    joining = Joining(place, store)
    for part in (0, 1, 2, 4, 5):
        joining.add(part, facts[part])
    assert not joining.finish()


def test_a_part_that_cannot_be_read_leaves_the_joining_to_the_end(tmp_path: Path) -> None:
    place, store, facts = _parts(tmp_path, ".parquet")
    Path(store.path(3)).write_bytes(b"no parquet")
    joining = Joining(place, store)
    for part in facts:
        joining.add(part, facts[part])
    assert not joining.finish()
    assert not Path(temporary(place.out)).exists()


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".npy", ".csv"])
def test_parts_that_cannot_be_joined_are_told_while_others_still_come(
    tmp_path: Path, suffix: str
) -> None:
    place, store, facts = _parts(tmp_path, suffix)
    other = {"": np.array([["a text"]] * 7, object)} if suffix != ".csv" else {"else": np.zeros(7)}
    rows = np.arange(14, 21)
    store.publish(2, store.write(2, Content(other, rows, rows)))
    joining = Joining(place, store)
    for part in range(3):
        joining.add(part, facts[part])

    def told() -> bool:
        try:
            joining.add(8, facts[8])
        except InputError as error:
            return "expected" in str(error)
        return False

    until(told)
    assert not joining.finish()
    assert not Path(temporary(place.out)).exists()


def test_nothing_is_joined_of_a_shard(tmp_path: Path) -> None:
    settings = JobSettings(shard="1/2", shards="contiguous")
    place = place_of(tmp_path / "out.npy", settings, {})
    joining = Joining(place, place.store())
    joining.add(0, {"files": [""]})
    assert not joining.finish()


def _npy(folder: Path, number: int, array: Any) -> str:
    path = folder / f"{number}.npy"
    np.save(path, array)
    return str(path)


class Pipe(io.RawIOBase):
    """What can only be written on."""

    def __init__(self) -> None:
        self.data = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += bytes(data)
        return len(data)


@pytest.mark.parametrize(
    "arrays",
    [
        [np.zeros((0, 3), np.float32), np.ones((4, 3), np.float32), np.full((2, 3), 5, "f4")],
        [np.arange(3, dtype=np.int32), np.arange(4, dtype=np.int64) << 40],
        [np.array(["a", "b"]), np.array(["longer"])],
        [np.zeros((0, 2)), np.zeros((0, 2))],
        [np.ones((3, 0), np.float32), np.ones((2, 0), np.float32)],
    ],
    ids=["alike", "wider", "texts", "empty", "no-bytes"],
)
def test_npy_parts_that_come_one_by_one(tmp_path: Path, arrays: list[Any]) -> None:
    paths = [_npy(tmp_path, number, array) for number, array in enumerate(arrays)]
    wanted = np.concatenate(arrays)
    for file in (io.BytesIO(), Pipe()):
        open_sink("out.npy").join((path for path in paths), file)
        data = file.getvalue() if isinstance(file, io.BytesIO) else file.data
        found = np.load(io.BytesIO(data))
        assert found.dtype == wanted.dtype
        assert found.tolist() == wanted.tolist()
        expected = io.BytesIO()
        np.save(expected, wanted)
        assert data == expected.getvalue()


def test_a_job_finds_its_output_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "in.npy", np.arange(6000.0).reshape(1000, 6))
    joined: list[bool] = []

    def watched(*arguments: Any) -> None:
        joined.append(arguments[5])
        ending.write_output(*arguments)

    monkeypatch.setattr(filed, "write_output", watched)
    out = tmp_path / "out.npy"
    penstock.predict(model("scores"), str(tmp_path / "in.npy"), str(out), chunk=64)
    assert joined == [True]
    assert len(np.load(out)) == 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["in.npy", "out.npy", "out.keys.npy", "out.npy.manifest.jsonl"]
    )
