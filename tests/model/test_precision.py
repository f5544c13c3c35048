"""Saved models in other precisions: what they compute in, what they answer, what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.config import Model
from penstock.errors import ModelLoadError
from penstock.model.drift import Drift, drift_of
from penstock.model.rounding import Tried, decide
from tests.model.graphs import rewrite
from tests.model.networks import graph_of, network, rows_for
from tests.model.tensorflow_process import in_tensorflow

MIXED = ["mixed_float16", "mixed_bfloat16"]
KINDS = ["dense", "conv", "recurrent", "attention", "two"]


def _saved(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.keras"
    network(kind).save(path)
    return path


def _answers(graph: Any, kind: str) -> list[Any]:
    import tensorflow as tf

    rows = rows_for(kind)
    tensors = [tf.constant(rows[spec.name or next(iter(rows))]) for spec in graph.inputs]
    return [tensor.numpy() for tensor in graph.call(tensors)]


def _operations(graph: Any) -> Any:
    from penstock.model.modes import Modes
    from penstock.model.operations import Operations

    modes = Modes(graph)
    return Operations(modes.traced(modes.open))


@pytest.mark.parametrize("kind", KINDS)
@in_tensorflow
def test_a_saved_model_in_half_precision(tmp_path: Path, kind: str) -> None:
    own = graph_of(Model(_saved(tmp_path, kind)))
    wanted = _answers(own, kind)
    for precision in MIXED:
        graph = own.at(precision)
        assert _operations(graph).has_half_precision()
        assert graph.inputs == own.inputs
        assert graph.outputs == own.outputs
        got = _answers(graph, kind)
        assert [output.dtype for output in got] == [np.float32] * len(wanted)
        drift = drift_of(got, wanted)
        assert 0 < drift.largest < 0.1
    exact = own.at("float32")
    assert not _operations(exact).has_half_precision()
    assert not _operations(own).has_half_precision()  # the model itself is as it was
    assert drift_of(_answers(exact, kind), wanted).largest == 0


@in_tensorflow
def test_nested_models_and_what_is_left_alone() -> None:
    import keras

    inner = network("conv")
    pixels = keras.Input((12, 12, 3), dtype="uint8", name="pixels")
    scaled = keras.layers.Rescaling(1 / 255, name="scaled")(pixels)
    wide = keras.layers.Dense(2, dtype="float64", name="wide")(inner(scaled))
    model = keras.Model(pixels, wide)
    from penstock.model.precision import computing

    with computing(model, "mixed_bfloat16"):
        policies = {layer.name: layer.dtype_policy.name for layer in model._flatten_layers()}
        assert model.weights[0].dtype == "float32"
    assert policies["scaled"] == "float32"
    assert policies["wide"] == "float64"
    assert {policies[layer.name] for layer in inner.layers[1:]} == {"mixed_bfloat16"}
    assert {layer.dtype_policy.name for layer in inner._flatten_layers()} == {"float32"}


@in_tensorflow
def test_a_model_saved_in_mixed_precision_can_be_had_in_float32(tmp_path: Path) -> None:
    import keras

    vector = keras.Input((4,), name="vector")
    hidden = keras.layers.Dense(6, dtype="mixed_float16")(vector)
    held = keras.layers.Dense(3, dtype="float32", name="held")(hidden)
    model = keras.Model(vector, held)
    model.save(tmp_path / "mixed.keras")
    own = graph_of(Model(tmp_path / "mixed.keras"))
    assert _operations(own).has_half_precision()
    assert not _operations(own.at("float32")).has_half_precision()
    from penstock.model.precision import computing

    with computing(model, "mixed_bfloat16"):
        assert model.get_layer("held").dtype_policy.name == "float32"


@in_tensorflow
def test_a_model_of_the_users_class_is_traced_for_each_precision() -> None:
    import keras

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.dense(x)

    model = Own()
    model(np.zeros((1, 4), np.float32))
    own = graph_of(Model(model, inputs=("float32", (4,))))
    assert _operations(own.at("mixed_float16")).has_half_precision()
    assert not _operations(own).has_half_precision()


@in_tensorflow
def test_what_has_no_other_precision_is_refused_with_the_reason(tmp_path: Path) -> None:
    import tensorflow as tf

    from penstock.model.load import load

    folder = tmp_path / "saved"
    network("dense").export(folder, verbose=False)
    with pytest.raises(ModelLoadError, match=r"'mixed_float16' cannot be had: a SavedModel"):
        load(Model(folder, precision="mixed_float16"))
    with pytest.raises(ModelLoadError, match=r"'int8' cannot be had: Keras quantizes Dense"):
        graph_of(Model(_headless(tmp_path))).at("int8")
    function = tf.function(lambda x: x, input_signature=[tf.TensorSpec((None, 3))])
    from penstock.model.assemble import assemble

    graph = assemble(Model("test:function"), function)
    with pytest.raises(ModelLoadError, match=r"cannot be had: a function computes in"):
        graph.at("float32")


def _headless(folder: Path) -> Path:
    import keras

    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3)])
    model.save(folder / "headless.keras")
    return folder / "headless.keras"


@in_tensorflow
def test_keras_2_is_refused() -> None:
    tf_keras = pytest.importorskip("tf_keras")
    graph = graph_of(Model(network("dense", tf_keras)))
    with pytest.raises(ModelLoadError, match=r"it is a model of Keras 2"):
        graph.at("mixed_float16")


@in_tensorflow
def test_int8_quantizes_a_copy(tmp_path: Path) -> None:
    own = graph_of(Model(_saved(tmp_path, "dense")))
    wanted = _answers(own, "dense")
    quantized = own.at("int8")
    assert 0 < drift_of(_answers(quantized, "dense"), wanted).largest < 0.2
    assert drift_of(_answers(own, "dense"), wanted).largest == 0


@in_tensorflow
def test_int8_that_gains_nothing_or_answers_otherwise_is_refused(tmp_path: Path) -> None:
    from penstock.model import pace, trial
    from penstock.model.load import load

    model = Model(_saved(tmp_path, "dense"), precision="int8", compile="function", max_batch=4)
    times = iter([2e-3, 1e-3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
        patch.setattr(pace, "alone", lambda call, **_: next(times))
        with pytest.raises(ModelLoadError, match=r"gains nothing: 2 ms .* where float32 takes 1"):
            load(model)
        times = iter([1e-3, 2e-3])
        with pytest.MonkeyPatch.context() as wrong:
            wrong.setattr(trial, "drift_of", lambda got, wanted: Drift(130.0, 40.0, None, 8))
            wrong.setattr(pace, "alone", lambda call, **_: 1e-3)
            with pytest.raises(ModelLoadError, match=r"answers otherwise: drift 1.3e\+02 at most"):
                load(model)
        facts = load(model).facts()
    assert facts["precision"] == "int8"
    assert 0 < facts["drift"]["int8"]["largest"] < 0.2
    assert facts["drift"]["int8"]["nanoseconds"] == 1_000_000


@in_tensorflow
def test_the_drift_is_in_the_facts_and_the_second_start_needs_no_model(tmp_path: Path) -> None:
    from penstock.model.load import load

    path = _saved(tmp_path, "conv")
    model = Model(path, precision="mixed_bfloat16", compile="frozen", max_batch=4)
    rows = rows_for("conv")["image"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
        first = load(model)
        first.warm_up()
        second = load(model)
        other = load(dataclasses.replace(model, precision=""))
        rewrite(first, mode="steam")
        anew = load(model)  # its stored graph is there, but not how to run it
    assert not anew.facts()["cached"]
    assert anew.facts()["precision"] == "mixed_bfloat16"
    told = first.facts()
    assert told["precision"] == "mixed_bfloat16"
    assert 0 < told["drift"]["mixed_bfloat16"]["largest"] < 0.1
    assert 0 <= told["drift"]["mixed_bfloat16"]["same_class"] <= 1
    assert not told["cached"]
    assert second.facts()["cached"]
    assert second.facts()["precision"] == "mixed_bfloat16"
    assert not other.facts()["cached"]
    (one,), (two,), (exact,) = (made(rows[:4], 4)[1] for made in (first, second, other))
    np.testing.assert_array_equal(one, two)
    assert one.dtype == exact.dtype
    assert 0 < drift_of([one], [exact]).largest < 0.1


@in_tensorflow
def test_auto_takes_what_is_faster_and_close_enough_and_says_so(tmp_path: Path) -> None:
    from penstock.model import pace
    from penstock.model.load import load

    path = _saved(tmp_path, "conv")

    def started(tolerance: float, *seconds: float) -> Any:
        times = iter(seconds)  # of float32, bfloat16, float16
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PENSTOCK_CACHE", str(tmp_path / f"cache-{tolerance}-{seconds}"))
            patch.setattr(pace, "alone", lambda call, **_: next(times))
            model = Model(path, precision="auto", compile="frozen", tolerance=tolerance)
            return load(model).facts(), load(model).facts()

    facts, again = started(0.5, 3e-3, 1e-3, 2e-3)
    assert facts["precision"] == again["precision"] == "mixed_bfloat16"
    assert facts["drift"].keys() == {"mixed_bfloat16", "mixed_float16"}
    assert "3 × as fast as float32" in facts["reasons"]["precision"]
    assert again["cached"]
    assert started(0.5, 3e-3, 2e-3, 1e-3)[0]["precision"] == "mixed_float16"
    assert started(0.5, 1e-3, 1e-3, 1e-3)[0]["precision"] == "float32"
    between = (
        facts["drift"]["mixed_float16"]["largest"] + facts["drift"]["mixed_bfloat16"]["largest"]
    ) / 2
    assert started(between, 3e-3, 1e-3, 2e-3)[0]["precision"] == "mixed_float16"
    assert started(1e-9, 3e-3, 1e-3, 2e-3)[0]["precision"] == "float32"


def test_nothing_beyond_the_tolerance_is_ever_taken() -> None:
    near, far = Drift(0.01, 0.001, 1.0, 8), Drift(0.03, 0.01, 0.5, 8)
    assert decide(1.0, {"a": Tried(0.1, far), "b": Tried(0.5, near)}, 0.02)[0] == "b"
    taken, why = decide(1.0, {"a": Tried(0.1, far)}, 0.02)
    assert taken == "float32"
    assert "drifts by more than 0.02" in why
    assert decide(1.0, {"a": Tried(0.99, near)}, 0.02)[0] == "float32"
    assert decide(1.0, {}, 0.02)[0] == "float32"


def test_drift_is_measured_as_agreement_is_and_counts_classes() -> None:
    wanted = [np.array([[1.0, 2.0], [4.0, 3.0]], np.float32)]
    got = [np.array([[1.0, 2.0], [3.0, 3.5]], np.float32)]
    drift = drift_of(got, wanted)
    assert drift.largest == pytest.approx(1 / (4 + 2.5))
    assert drift.mean == pytest.approx((1 / 6.5 + 0.5 / 5.5) / 4)
    assert drift.same_class == 0.5
    broken = drift_of([np.array([[1.0, np.inf], [4.0, 3.0]], np.float32)], wanted)
    assert broken.to_json()["largest"] == "inf"
    assert "infinite" in str(broken)
    assert drift_of([np.zeros((2, 3, 2))], [np.zeros((2, 3, 2))]).same_class is None
