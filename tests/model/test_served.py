"""Keras files behind a real engine: the same answers as without it, from any company."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.config import Model
from penstock.engine.owner import Engine
from penstock.errors import ModelError
from penstock.testing import running, wait_healthy
from tests.conditions import until
from tests.model.networks import network, rows_for
from tests.model.tensorflow_process import in_tensorflow

KINDS = ["conv", "attention", "two"]
ROWS = 20


@in_tensorflow
def save_and_answer(folder: Path) -> dict[str, dict[str, Any]]:
    """Saves the networks; returns what they answer when they are called directly."""
    import tensorflow as tf

    wanted: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        model = network(kind)
        model.save(folder / f"{kind}.keras")
        rows = rows_for(kind, ROWS)
        outputs = model(rows if len(rows) > 1 else next(iter(rows.values())), training=False)
        if not isinstance(outputs, dict):
            outputs = {"": outputs}
        wanted[kind] = {name: np.asarray(value) for name, value in outputs.items()}
    picky = tf.Module()
    picky.__call__ = tf.function(
        lambda x: {"y": tf.debugging.check_numerics(x, "not a number")},
        input_signature=[tf.TensorSpec([None, 2], name="x")],
    )
    tf.saved_model.save(picky, str(folder / "picky"), signatures=picky.__call__)
    return wanted


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def wanted(folder: Path) -> dict[str, dict[str, Any]]:
    return save_and_answer(folder=folder)  # type: ignore[no-any-return, func-returns-value]


@pytest.fixture(scope="module")
def engine(folder: Path, wanted: Any) -> Iterator[Engine]:
    models = [
        Model(folder / "conv.keras", max_batch=8),
        Model(folder / "attention.keras", max_batch=8, compile="frozen", ladder=(1, 4)),
        Model(folder / "two.keras", max_batch=8, compile="function"),
        Model(folder / "picky", max_batch=8, compile="frozen"),
    ]
    with running(models) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_the_model(
    engine: Engine, wanted: dict[str, dict[str, Any]], kind: str
) -> None:
    rows = rows_for(kind, ROWS)

    def ask(first: int, last: int) -> None:
        part = {name: value[first:last] for name, value in rows.items()}
        answer = engine.predict(part if len(part) > 1 else next(iter(part.values())), model=kind)
        answer = answer if isinstance(answer, dict) else {"": answer}
        assert answer.keys() == wanted[kind].keys()
        for name, value in wanted[kind].items():
            np.testing.assert_allclose(answer[name], value[first:last], rtol=1e-4, atol=1e-5)

    ask(0, ROWS)
    ask(3, 3)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: ask(n % ROWS, n % ROWS + 1 + n % 3), range(60)))


def test_only_the_rows_that_raise_fail(engine: Engine) -> None:
    x = np.ones((6, 2), np.float32)
    with pytest.raises(ModelError, match="not a number"):
        engine.predict(np.full((1, 2), np.nan, np.float32), model="picky")
    answers = engine.predict(x, model="picky")
    np.testing.assert_array_equal(answers if not isinstance(answers, dict) else answers["y"], x)


def test_the_engine_knows_what_was_found_out(engine: Engine) -> None:
    def warm() -> Any:
        facts = {model.name: model.facts for model in engine.statistics().models}
        return facts if "2" in facts["picky"]["latency"] else None

    facts = until(warm, 40.0)
    assert facts["conv"]["mode"] in facts["conv"]["modes"]
    assert facts["conv"]["unbatched"] == ""
    assert facts["attention"]["ladder"] == [1, 4, 8]
    assert facts["two"]["mode"] == "function"
    assert all(entry["seconds"] > 0 for entry in facts.values())
    padding = {model.name: model.padding for model in engine.statistics().models}
    assert padding["attention"] > 0  # its ladder was named
    assert padding["two"] == 0


def test_two_workers_answer_from_one_queue_with_what_was_found_out_once(
    folder: Path, wanted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    model = Model(folder / "conv.keras", max_batch=2, compile="frozen")
    (rows,), (answer,) = rows_for("conv", ROWS).values(), wanted["conv"].values()

    def ask(at: int) -> None:
        np.testing.assert_allclose(engine.predict(rows[at : at + 1])[0], answer[at], 1e-3, 1e-5)

    def both() -> bool:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: ask(n % ROWS), range(40)))
        return all(worker.rows for worker in engine.statistics().workers)

    with running(model, devices="cpu", workers=2) as engine:
        wait_healthy(engine)
        until(both, 40.0)
        assert [worker.starts for worker in engine.statistics().workers] == [1, 1]
    assert len(list((tmp_path / "models").glob("*.json"))) == 1
    assert len(list((tmp_path / "models").glob("*.lock"))) == 1  # one waited for the other


def test_a_worker_of_plain_functions_imports_no_tensorflow(folder: Path) -> None:
    code = (
        "import json, sys; import penstock.worker.__main__; import penstock.model.load;"
        "print(json.dumps([name for name in ('tensorflow', 'keras') if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env=dict(os.environ)
    )
    assert json.loads(done.stdout) == []
