"""`module:callable`: what it may be, and what becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.config import Model
from penstock.errors import ModelLoadError
from penstock.model.function import Function
from tests.model.networks import answers, close, graph_of
from tests.model.tensorflow_process import in_tensorflow

FILE = str(Path(__file__).parent.parent / "models" / "tensors.py")
ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


def _found(name: str) -> Any:
    from penstock.model.source import resolve

    return resolve(f"{FILE}:{name}")


@pytest.mark.parametrize("name", ["build", "built"])
@in_tensorflow
def test_a_keras_model_or_a_function_that_makes_one(name: str) -> None:
    graph = graph_of(Model(f"{FILE}:{name}"))
    assert graph.inputs == (("float32", (3,), "x"),)
    assert graph.key == ""
    close(answers(graph, ROWS), _found("built")(ROWS))


@in_tensorflow
def test_parameters_with_defaults_are_not_required() -> None:
    assert graph_of(Model(f"{FILE}:build_sized")).outputs == (("float32", (4,), ""),)


@in_tensorflow
def test_a_class_of_models_is_instantiated() -> None:
    with pytest.raises(ModelLoadError, match=r"does not know what it takes.*inputs="):
        graph_of(Model(f"{FILE}:Subclassed"))
    graph = graph_of(Model(f"{FILE}:Subclassed", inputs=("float32", (3,))))
    got = answers(graph, ROWS)
    close(got["y"], np.repeat(ROWS.sum(1, keepdims=True), 2, 1))
    assert got["z"].tolist() == [False, True]
    assert {spec.name: spec.dtype for spec in graph.outputs} == {"y": "float32", "z": "bool"}


@in_tensorflow
def test_a_subclassed_model_that_was_built_knows_its_shape() -> None:
    from penstock.model.assemble import assemble

    model = _found("Subclassed")()
    model(ROWS)
    graph = assemble(Model(model), model)
    assert graph.inputs == (("float32", (3,), ""),)
    close(answers(graph, ROWS)["y"], model(ROWS)["y"])


@in_tensorflow
def test_arguments_of_a_model_are_inputs() -> None:
    spec = ("float32", (3,))
    graph = graph_of(Model(f"{FILE}:TwoArguments", inputs={"right": spec, "left": spec}))
    close(answers(graph, {"left": ROWS, "right": -3 * ROWS}), -2 * ROWS)


@in_tensorflow
def test_a_function_that_takes_anything_needs_a_declaration() -> None:
    with pytest.raises(ModelLoadError, match=r"does not say what it takes.*inputs="):
        graph_of(Model(f"{FILE}:polymorphic"))
    for dtype in ("float32", "int64"):
        graph = graph_of(Model(f"{FILE}:polymorphic", inputs=(dtype, (None,))))
        assert graph.outputs == ((dtype, (None,), ""),)
        close(answers(graph, ROWS.astype(dtype)), 2 * ROWS)


@pytest.mark.parametrize("name", ["signed", "concrete"])
@in_tensorflow
def test_functions_that_say_what_they_take(name: str) -> None:
    graph = graph_of(Model(f"{FILE}:{name}"))
    assert graph.inputs == (("float32", (3,), "x"),)
    got = answers(graph, ROWS)
    close(got["output_0"], ROWS + 1)
    close(got["output_1"], ROWS - 1)
    with pytest.raises(ModelLoadError, match="no signature 'other'"):
        graph_of(Model(f"{FILE}:{name}", signature="other"))


@in_tensorflow
def test_functions_of_several_tensors() -> None:
    numbers = np.array([1, 2], np.int32)
    graph = graph_of(Model(f"{FILE}:signed_dict"))
    assert {spec.name for spec in graph.inputs} == {"a", "b"}
    got = answers(graph, {"a": numbers, "b": ROWS})
    close(got["sum"], ROWS.sum(1) + numbers)
    graph = graph_of(Model(f"{FILE}:signed_pair"))
    assert [spec.name for spec in graph.inputs] == ["x", "n"]
    close(answers(graph, {"x": ROWS, "n": numbers}), ROWS + numbers[:, None])


@in_tensorflow
def test_a_function_that_makes_a_function() -> None:
    close(answers(graph_of(Model(f"{FILE}:make_function")), ROWS), 3 * ROWS)


@in_tensorflow
def test_modules() -> None:
    close(answers(graph_of(Model(f"{FILE}:Module")), ROWS), ROWS + np.array([1, 2, 3]))
    graph = graph_of(Model(f"{FILE}:PlainModule", inputs=("float32", (3,))))
    close(answers(graph, ROWS), 2 * ROWS)


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("plain", ROWS, 2 * ROWS),
        ("anything", ROWS, 2 * ROWS),
        ("make_plain", np.array([3, 4]), np.array([3.0, 4.0])),
        ("PlainModule", ROWS, 2 * ROWS),
    ],
)
@in_tensorflow
def test_plain_functions_stay_plain(name: str, given: Any, wanted: Any) -> None:
    from penstock.model.load import load

    loaded = load(Model(f"{FILE}:{name}"))
    assert isinstance(loaded, Function)
    _, (got,) = loaded(given, len(given))
    np.testing.assert_array_equal(got, wanted)
    if name == "PlainModule":
        return  # with a preprocess it could be traced
    for step in ("preprocess", "postprocess", "signature"):
        with pytest.raises(ModelLoadError, match=f"{step} is for TensorFlow models"):
            load(Model(f"{FILE}:{name}", **{step: f"{FILE}:scale"}))


@in_tensorflow
def test_one_module_is_executed_once() -> None:
    assert _found("built") is _found("built")
