"""Mixed precision: float32 weights, a loss scale that all replicas agree on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.model.tensorflow_process import in_tensorflow
from tests.train.learning import furthest, network, process_of_two_cpus, rows, two_cpus


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with process_of_two_cpus():
        yield


@pytest.mark.parametrize(
    ("precision", "strategy", "accumulate", "jit"),
    [
        ("mixed_float16", "one", 1, False),
        ("mixed_float16", "one", 1, True),
        ("mixed_float16", "mirrored", 2, False),
        ("mixed_bfloat16", "one", 2, False),
    ],
)
@in_tensorflow
def test_weights_stay_near_those_of_float32(
    precision: str, strategy: str, accumulate: int, jit: bool
) -> None:
    import penstock

    two_cpus()
    x, y = rows()
    settings: dict[str, Any] = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    reference = network("adam")
    start = network("adam")
    reference.fit(x, y, **settings)
    model = network("adam")
    got = penstock.train.fit(
        model,
        x,
        y,
        precision=precision,
        strategy=strategy,
        accumulate=accumulate,
        jit=jit,
        **settings,
    )
    assert furthest(got.model, reference) < 0.02 < furthest(got.model, start)
    assert furthest(got.model, reference) > 0  # it did compute in 16 bits
    assert {each.dtype for each in got.model.weights} == {"float32"}
    assert {layer.compute_dtype for layer in got.model.layers} == {"float32"}  # as it came
    assert (got.report["loss_scale"] is None) == (precision == "mixed_bfloat16")
    assert got.report["precision"] == precision


@pytest.mark.parametrize(("strategy", "jit"), [("one", False), ("one", True), ("mirrored", False)])
@in_tensorflow
def test_a_step_that_overflows_changes_nothing_but_the_scale(strategy: str, jit: bool) -> None:
    """In the first batch one row, of one replica, has a weight that float16 cannot bear."""
    import keras

    import penstock
    from penstock.train import scaling

    two_cpus()
    x, y = rows(24)
    weight = np.ones(24, "float32")
    weight[0] = 1e6

    def model() -> Any:
        made = network("sgd")
        made.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy")
        return made

    settings: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0}
    history = penstock.train.fit(
        model(),
        x,
        y,
        sample_weight=weight,
        precision="mixed_float16",
        strategy=strategy,
        jit=jit,
        **settings,
    )
    assert history.report["loss_scale"] == scaling.FIRST / 2
    assert history.report["jit"] == jit
    reference = penstock.train.fit(
        model(), x[8:], y[8:], precision="mixed_float16", strategy=strategy, jit=jit, **settings
    )
    assert furthest(history.model, reference.model) < 1e-4
    assert int(history.model.optimizer.iterations.numpy()) == 2


@in_tensorflow
def test_a_model_that_keras_has_given_a_loss_scale() -> None:
    import keras

    import penstock

    two_cpus()
    x, y = rows()

    def model() -> Any:
        keras.config.set_dtype_policy("mixed_float16")
        try:
            return network("sgd")
        finally:
            keras.config.set_dtype_policy("float32")

    history = penstock.train.fit(
        model, x, y, batch_size=8, epochs=12, verbose=0, strategy="mirrored", seed=1
    )
    assert isinstance(history.model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert history.report["loss_scale"] >= 1.0
    assert history.history["loss"][-1] < history.history["loss"][0]


@in_tensorflow
def test_the_scale_halves_doubles_and_has_bounds() -> None:
    from penstock.train.scaling import LossScale

    scale = LossScale(first=4.0, patience=2)
    seen = []
    for finite in (False, False, False, True, True, True, True, False):
        scale.learn(finite)
        seen.append(scale.to_json()["scale"])
    assert seen == [2.0, 1.0, 1.0, 1.0, 2.0, 2.0, 4.0, 2.0]
    for finite in (True, False, True):  # of steps without rows
        scale.learn(finite, some=False)
    assert scale.to_json() == {"scale": 2.0, "good": 0}
    other = LossScale()
    other.from_json(scale.to_json())
    assert other.to_json() == scale.to_json()


@pytest.mark.parametrize("strategy", ["one", "mirrored"])
@in_tensorflow
def test_the_scale_goes_on_from_one_fit_to_the_next_where_keras_keeps_one(strategy: str) -> None:
    import keras

    import penstock

    two_cpus()
    x, y = rows()
    settings: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0}

    def made() -> Any:
        keras.config.set_dtype_policy("mixed_float16")
        try:
            model = network()
        finally:
            keras.config.set_dtype_policy("float32")
        inner = keras.optimizers.SGD(0.1)
        scaled = keras.optimizers.LossScaleOptimizer(inner, 2.0**22, dynamic_growth_steps=4)
        model.compile(scaled, "sparse_categorical_crossentropy")
        return model

    reference, model = made(), made()
    for _ in range(2):  # too large at first: steps are left out, and fewer the second time
        reference.fit(x, y, **settings)
        got = penstock.train.fit(model, x, y, strategy=strategy, **settings)
        scales = [float(each.optimizer.dynamic_scale) for each in (reference, model)]
        assert scales[1] == got.report["loss_scale"] < 2.0**22
        steps = [int(each.optimizer.iterations) for each in (reference, model)]
        # The gradients of half a batch are larger: they may not fit where the whole one's do.
        apart = 0 if strategy == "one" else 1
        assert abs(math.log2(scales[0] / scales[1])) <= apart
        assert abs(steps[0] - steps[1]) <= apart
    assert furthest(model, reference) < (0.02 if strategy == "one" else 0.2)


@pytest.mark.parametrize("strategy", ["one", "mirrored"])
@in_tensorflow
def test_the_scale_goes_on_from_one_fit_to_the_next_with_a_plain_optimizer(strategy: str) -> None:
    import penstock
    from penstock.train import scaling

    two_cpus()
    x, y = rows(24)
    weight = np.full(24, 1e6, "float32")  # too much for float16, at any scale that is tried here
    model = network()
    settings: dict[str, Any] = {"batch_size": 8, "verbose": 0, "precision": "mixed_float16"}
    settings |= {"strategy": strategy, "sample_weight": weight}
    scales = [penstock.train.fit(model, x, y, **settings).report["loss_scale"] for _ in range(2)]
    assert scales == [scaling.FIRST / 2**3, scaling.FIRST / 2**6]
    model.compile("sgd", "sparse_categorical_crossentropy")  # another optimizer begins anew
    assert penstock.train.fit(model, x, y, **settings).report["loss_scale"] == scales[0]
