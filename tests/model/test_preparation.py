"""Models that get ready: start after start, with other findings, and with other memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.config import Model
from penstock.errors import ModelLoadError
from penstock.model.peak import NoMemory
from tests.model.graphs import answer, compiled, graph, rewrite
from tests.model.networks import graph_of, network, rows_for
from tests.model.tensorflow_process import in_tensorflow


@in_tensorflow
def test_the_second_start_knows_what_the_first_has_found_out(tmp_path: Path) -> None:
    network("dense").save(tmp_path / "net.keras")
    model = Model(tmp_path / "net.keras", max_batch=4)
    first = _started(tmp_path, model)
    assert not first.cached
    first.warm_up()
    second = _started(tmp_path, model)
    assert second.cached
    assert {**second.facts(), "cached": False, "ladder": []} == {**first.facts(), "ladder": []}
    rows = rows_for("dense")
    np.testing.assert_allclose(answer(first, rows)[""], answer(second, rows)[""], rtol=1e-5)
    for changed in (
        {"max_batch": 5},
        {"compile": "frozen"},
        {"tolerance": 0.1},
        {"batched": False},
    ):
        settings = {"max_batch": 4, **changed}
        assert not _started(tmp_path, Model(tmp_path / "net.keras", **settings)).cached
    network("conv").save(tmp_path / "net.keras")
    assert not _started(tmp_path, Model(tmp_path / "net.keras", max_batch=4)).cached


@in_tensorflow
def test_what_a_cpu_does_is_not_told_of_a_card() -> None:
    from penstock.model.compiled import Compiled

    call, model = graph(lambda x: x * 2), Model("test:graph", max_batch=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
        with pytest.raises(ModelLoadError, match="TensorFlow sees none"):
            Compiled(call, model, thorough=True)
        assert Compiled(call, model).device == "CPU"  # a worker serves all the same


@in_tensorflow
def test_findings_that_do_not_work_any_more_are_made_anew(tmp_path: Path) -> None:
    import tensorflow as tf

    call = graph(lambda x: tf.strings.length(x), ("string", ()), ("int32", ()), key="abc")
    (tmp_path / "cache").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
        first = compiled(call)
        assert compiled(call).cached
        rewrite(first, mode="steam")
        assert not compiled(call).cached
        rewrite(first, unknown=1)
        assert not compiled(call).cached
        assert compiled(call).cached
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0], [1]), 0)
        looked_up = graph(table.lookup, ("int32", ()), ("int32", ()), key="def", keep=table)
        other = compiled(looked_up, compile="function")
        rewrite(other, mode="xla")
        again = compiled(looked_up, compile="function")
        assert not again.cached
        assert again.facts()["mode"] == "function"
        for made in (tmp_path / "cache" / "models").glob("*.json"):
            made.write_text("{")
        assert not compiled(call).cached


@in_tensorflow
def test_a_mode_that_workers_died_of_is_left_alone_but_not_for_ever(tmp_path: Path) -> None:
    call = graph(lambda x: x * 2, key="abc")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(tmp_path))
        entry = compiled(call, max_batch=2)._preparation._entry
        entry.path.unlink()
        for mode in ("xla", "frozen-xla"):
            entry._mark(mode).write_text("tried\ntried\n")
        made = compiled(call, max_batch=2)
        assert made.facts()["modes"].keys() == {"function", "frozen"}
        assert "xla was not tried: workers died of it" in made.facts()["notes"]
        made.warm_up()
        assert not entry.path.exists()  # so that it is found out anew another time


def _started(folder: Path, model: Model) -> Any:
    from penstock.model.compiled import Compiled

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(folder / "cache"))
        return Compiled(graph_of(model), model)


@in_tensorflow
def test_a_start_with_less_memory_cuts_the_ladder_and_one_with_more_searches_anew(
    tmp_path: Path,
) -> None:
    class Card(NoMemory):
        def __init__(self, limit: int) -> None:
            self.limit = lambda: limit

    call = graph(lambda x: x * 2, key="abc")

    def started(limit: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PENSTOCK_CACHE", str(tmp_path))
            patch.setattr("penstock.model.preparation.memory_of", lambda device: Card(limit))
            return compiled(call, compile="xla")

    first = started(0)
    known = {
        "searched": True,
        "max_batch": 64,
        "ladder": [1, 8, 64],
        "memory": {"held": 0, "fixed": 100, "per_row": 10, "limit": 1000, "peaks": {}},
        "reasons": {"max_batch": "256 rows do not fit into the device's memory"},
    }
    rewrite(first, **known)
    assert started(1000).facts()["rungs"] == [1, 8, 64]
    less = started(500)
    assert less.cached
    assert less.max_batch == 32  # not a size that was compiled before, but 8 is far less
    assert less.facts()["rungs"] == [1, 8, 32]
    assert started(1000).max_batch == 64  # what the one with less found out is not kept
    more = started(1300)
    assert not more.cached
    assert more.max_batch == 32
