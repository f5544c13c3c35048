"""The compile modes: the same answers in all of them, and what each needs."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from penstock.config import COMPILE_MODES, Model
from tests.model.graphs import graph
from tests.model.networks import graph_of, network, rows_for
from tests.model.tensorflow_process import in_tensorflow


def _run(modes: Any, mode: str, *arrays: Any) -> list[Any]:
    import tensorflow as tf

    from penstock.model.modes import shapes_of

    run = modes.run(mode, shapes_of(arrays))
    return [tensor.numpy() for tensor in run([tf.constant(array) for array in arrays])]


@pytest.mark.parametrize("kind", ["dense", "conv", "recurrent", "attention", "two"])
@in_tensorflow
def test_every_mode_answers_as_the_model_does(kind: str) -> None:
    from penstock.model.modes import Modes

    model = network(kind)
    made = graph_of(Model(model))
    modes = Modes(made)
    rows = rows_for(kind, 4)
    wanted = model(rows if len(rows) > 1 else next(iter(rows.values())), training=False)
    if not isinstance(wanted, dict):
        wanted = {"": wanted}
    for mode in COMPILE_MODES:
        for count in (4,) if mode.endswith("xla") else (1, 4):
            given = [rows[spec.name][:count] for spec in made.inputs]
            outputs = _run(modes, mode, *given)
            for spec, output in zip(made.outputs, outputs, strict=True):
                np.testing.assert_allclose(
                    output, wanted[spec.name][:count], rtol=1e-4, atol=1e-5, err_msg=mode
                )
    assert modes.needs_sizes == ""


@in_tensorflow
def test_one_function_for_all_sizes_but_one_for_each_with_xla() -> None:
    from penstock.model.modes import Modes

    modes = Modes(graph(lambda x: x * 2))
    for mode, functions in (("function", 1), ("frozen", 1), ("xla", 2), ("frozen-xla", 2)):
        runs = {modes.run(mode, ((rows, 3),)) for rows in (1, 4, 1, 4)}
        assert len(runs) == functions, mode


@in_tensorflow
def test_a_graph_that_must_know_its_sizes_is_traced_for_each() -> None:
    from penstock.model.modes import Modes

    modes = Modes(graph(lambda x: x + float(int(x.shape[0]))))
    for mode in COMPILE_MODES:
        for rows in (1, 4):
            (output,) = _run(modes, mode, np.zeros((rows, 3), np.float32))
            assert output.tolist() == [[rows] * 3] * rows
    assert "TypeError" in modes.needs_sizes


@in_tensorflow
def test_tables_are_not_frozen_but_found() -> None:
    import keras

    from penstock.model.modes import Modes

    words = keras.Input((), dtype="string", name="word")
    numbers = keras.layers.StringLookup(vocabulary=["a", "b"], name="look")(words)
    model = keras.Model(words, keras.layers.Embedding(5, 2)(numbers))
    modes = Modes(graph_of(Model(model)))
    given = np.array([b"b", b"a", b"zzz"], object)
    wanted = model(keras.ops.convert_to_tensor(["b", "a", "zzz"]))
    for mode in ("function", "frozen"):
        np.testing.assert_allclose(_run(modes, mode, given)[0], wanted)
    modes.settle("frozen")
    del model, words, numbers
    gc.collect()
    np.testing.assert_allclose(_run(modes, "frozen", given)[0], wanted)


@in_tensorflow
def test_a_frozen_model_needs_its_variables_no_longer() -> None:
    from penstock.model.modes import Modes

    model = network("dense")
    rows = rows_for("dense")["vector"]
    wanted = model(rows).numpy()
    modes = Modes(graph_of(Model(model)))
    _run(modes, "frozen", rows)
    modes.settle("frozen-xla")
    gone = weakref.ref(model.layers[0].kernel)
    del model
    gc.collect()
    assert gone() is None
    np.testing.assert_allclose(_run(modes, "frozen-xla", rows)[0], wanted, rtol=1e-5)


@in_tensorflow
def test_python_that_depends_on_tensors_is_traced() -> None:
    from penstock.model.modes import Modes
    from tests.model import graphs

    modes = Modes(graphs.graph(_halved_until_small))
    (output,) = _run(modes, "frozen", np.array([[16.0, 2.0, 1.0]], np.float32))
    assert output.max() == 1.0


def _halved_until_small(x: Any) -> Any:
    import tensorflow as tf

    while tf.reduce_max(x) > 1.0:
        x = x / 2.0
    return x
