"""Frozen graphs that are kept: for which models, and what a start does with them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.config import Model
from penstock.transport.tensors import structure
from tests.model.networks import network, rows_for
from tests.model.tensorflow_process import in_tensorflow


@contextmanager
def _cache(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(folder / "cache"))
        yield


@contextmanager
def _without_reading_models() -> Iterator[None]:
    def refuse(*arguments: Any) -> Any:
        raise AssertionError("the model was loaded")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.model.assemble.read_archive", refuse)
        patch.setattr("penstock.model.assemble.saved_part", refuse)
        yield


def _graphs(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "models").glob("*.graph"))


def _answer(made: Any, rows: dict[str, Any]) -> Any:
    signature, arrays = made(rows, len(next(iter(rows.values()))))
    answer = structure(signature, arrays)
    return answer if isinstance(answer, dict) else {"": answer}


@pytest.mark.parametrize(
    ("kind", "compile"),
    [
        ("dense", "frozen"),
        ("conv", "frozen"),
        ("recurrent", "frozen"),
        ("attention", "frozen"),
        ("two", "frozen"),
        ("conv", "frozen-xla"),
    ],
)
@in_tensorflow
def test_the_second_start_does_not_load_the_model(tmp_path: Path, kind: str, compile: str) -> None:
    from penstock.model.load import load

    network(kind).save(tmp_path / "net.keras")
    model = Model(tmp_path / "net.keras", max_batch=4, compile=compile)
    rows = rows_for(kind, 3)
    with _cache(tmp_path):
        first = load(model)
        assert _graphs(tmp_path) == []
        first.warm_up()
        (kept,) = _graphs(tmp_path)
        assert kept.stat().st_mode & 0o777 == 0o600
        with _without_reading_models():
            second = load(model)
        assert second.facts()["cached"]
        assert second.spec == first.spec
        second.warm_up()
        one, other = _answer(first, rows), _answer(second, rows)
        assert one.keys() == other.keys()
        for name, value in one.items():
            np.testing.assert_allclose(other[name], value, rtol=1e-5, atol=1e-6)


@in_tensorflow
def test_saved_models_and_changes_of_the_file(tmp_path: Path) -> None:
    from penstock.model.load import load

    network("dense").export(tmp_path / "net", verbose=False)
    model = Model(tmp_path / "net", max_batch=4, compile="frozen")
    with _cache(tmp_path):
        load(model).warm_up()
        with _without_reading_models():
            assert load(model).facts()["cached"]
            with pytest.raises(Exception, match="the model was loaded"):
                load(Model(tmp_path / "net", max_batch=4, compile="frozen", signature="serve"))
        network("conv").export(tmp_path / "net", verbose=False)
        assert not load(model).facts()["cached"]


@pytest.mark.parametrize("damage", [b"", b"{}\nrubbish", None])
@in_tensorflow
def test_a_damaged_graph_is_made_anew(tmp_path: Path, damage: bytes | None) -> None:
    from penstock.model.load import load

    network("dense").save(tmp_path / "net.keras")
    model = Model(tmp_path / "net.keras", max_batch=4, compile="frozen")
    with _cache(tmp_path):
        load(model).warm_up()
        (kept,) = _graphs(tmp_path)
        whole = kept.read_bytes()
        kept.write_bytes(whole[:-3] + b"abc" if damage is None else damage)
        again = load(model)
        assert again.facts()["cached"]  # what was found out is still known
        again.warm_up()
        assert kept.read_bytes()[-100:] == whole[-100:]


def doubled(x: Any) -> Any:
    return x * 2


@in_tensorflow
def test_what_is_not_all_in_its_file_is_not_kept(tmp_path: Path) -> None:
    import keras

    from penstock.model.load import load
    from penstock.model.stored import keepable

    network("dense").save(tmp_path / "net.keras")
    network("dense").save(tmp_path / "net.h5")
    network("dense").export(tmp_path / "saved", verbose=False)
    layers = [keras.Input((4,)), keras.layers.Lambda(lambda x: x * 2)]
    keras.Sequential(layers).save(tmp_path / "code.keras")
    for name, kept in (("net.keras", True), ("saved", True), ("net.h5", False)):
        assert keepable(Model(tmp_path / name), str(tmp_path / name)) == kept
    assert not keepable(Model(tmp_path / "code.keras", unsafe=True), str(tmp_path / "code.keras"))
    assert not keepable(Model("a:b"), doubled)
    stepped = Model(
        tmp_path / "net.keras", postprocess=f"{__name__}:doubled", compile="frozen", max_batch=2
    )
    assert not keepable(stepped, str(tmp_path / "net.keras"))
    with _cache(tmp_path):
        load(stepped).warm_up()
        assert _graphs(tmp_path) == []
        load(Model(tmp_path / "net.keras", compile="function", max_batch=2)).warm_up()
        assert _graphs(tmp_path) == []


@in_tensorflow
def test_the_oldest_go_when_there_is_no_room(tmp_path: Path) -> None:
    from penstock.model import stored

    for number, age in enumerate((30, 10, 20)):
        path = tmp_path / f"{number}.graph"
        path.write_bytes(b"x" * 100)
        os.utime(path, (1e9 - age, 1e9 - age))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "_MOST_ALL", 250)
        stored._make_room(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.graph", "2.graph"]


@in_tensorflow
def test_a_file_that_is_replaced_while_it_is_read_is_not_remembered(tmp_path: Path) -> None:
    from penstock.model import assemble
    from penstock.model.load import load

    path, newer = tmp_path / "m.keras", tmp_path / "newer.keras"
    old, new = network("dense"), network("dense")
    new.set_weights([2 * weight + 1 for weight in old.get_weights()])
    old.save(path)
    new.save(newer)
    rows = rows_for("dense", 3)
    model = Model(path, max_batch=4, compile="frozen")
    read = assemble.read_archive

    def replaced(*arguments: Any) -> Any:
        found = read(*arguments)
        if newer.exists():
            newer.replace(path)
        return found

    with _cache(tmp_path), pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "read_archive", replaced)
        load(model).warm_up()
        assert not newer.exists()
        made = load(model)
        made.warm_up()
        (answer,) = _answer(made, rows).values()
    np.testing.assert_allclose(answer, new(rows["vector"]).numpy(), rtol=1e-4, atol=1e-5)
