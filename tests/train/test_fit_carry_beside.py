"""A model moved into a strategy's scope keeps what is neither in its config nor in its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.model import tensorflow_process
from tests.model.tensorflow_process import in_tensorflow
from tests.train.learning import furthest, network, process_of_two_cpus, rows, two_cpus

SETTINGS: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0}


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with process_of_two_cpus():
        yield
    tensorflow_process.end()  # which remembers the sizes that were reduced here


@pytest.mark.parametrize("when", ["before it is compiled", "when its optimizer is built"])
@in_tensorflow
def test_single_variables_that_are_frozen_stay_so(when: str) -> None:
    import penstock

    two_cpus()
    x, y = rows(32)
    reference, model = network("adam"), network("adam")
    for each in (reference, model):
        if when == "when its optimizer is built":
            each.optimizer.build(each.trainable_variables)
        each.layers[0].bias.trainable = False
    frozen = model.layers[0].bias.numpy()
    for _ in range(2):
        reference.fit(x, y, **SETTINGS)
        got = penstock.train.fit(model, x, y, strategy="mirrored", **SETTINGS)
        assert furthest(model, reference) < 2e-6
    np.testing.assert_array_equal(got.model.layers[0].bias.numpy(), frozen)


@pytest.mark.parametrize("made_in", ["mixed_float16", "float32"])
@in_tensorflow
def test_a_model_keeps_the_precision_that_it_was_made_in(made_in: str) -> None:
    import keras

    import penstock

    two_cpus()
    x, y = rows(32)
    trained_in = {"mixed_float16": "float32", "float32": "mixed_float16"}[made_in]
    try:
        keras.config.set_dtype_policy(made_in)
        model = network("adam")
        keras.config.set_dtype_policy(trained_in)
        before = model.get_weights()
        got = penstock.train.fit(model, x, y, strategy="mirrored", **SETTINGS)
    finally:
        keras.config.set_dtype_policy("float32")
    assert got.model.dtype_policy.name == made_in
    assert [layer.compute_dtype for layer in got.model.layers] == [
        layer.compute_dtype for layer in model.layers
    ]
    assert type(got.model.optimizer) is type(model.optimizer)
    assert furthest(got.model, model) == 0
    assert any((one != two).any() for one, two in zip(before, model.get_weights(), strict=True))


def lookups() -> dict[str, tuple[Callable[[], Any], Any]]:
    """Layers that were adapted, and rows for them."""
    import keras
    import tensorflow as tf

    draw = np.random.default_rng(1)
    words = draw.choice(np.array(["a", "b", "c", "d"]), (32, 3)).astype(object)
    numbers = draw.integers(10, 14, (32, 3))
    texts = np.array([" ".join(row) for row in words], dtype=object)

    def adapted(kind: Any, data: Any, mode: str = "multi_hot") -> Callable[[], Any]:
        def make() -> Any:
            layer = kind(output_mode=mode)
            layer.adapt(tf.constant(data))
            return layer

        return make

    return {
        "strings": (adapted(keras.layers.StringLookup, words), words),
        "integers": (adapted(keras.layers.IntegerLookup, numbers), numbers),
        "texts": (adapted(keras.layers.TextVectorization, texts), texts),
        "weighed": (adapted(keras.layers.TextVectorization, texts, "tf_idf"), texts),
    }


@pytest.mark.parametrize("kind", ["strings", "integers", "texts", "weighed"])
@in_tensorflow
def test_vocabularies_go_along(kind: str) -> None:
    import keras
    import tensorflow as tf

    import penstock

    two_cpus()
    make, x = lookups()[kind]
    y = np.random.default_rng(2).normal(size=(32, 1)).astype("float32")

    def model() -> Any:
        keras.utils.set_random_seed(5)
        inputs = keras.Input(x.shape[1:], dtype="int64" if kind == "integers" else "string")
        made = keras.Model(inputs, keras.layers.Dense(1)(make()(inputs)))
        made.compile("sgd", "mse")
        return made

    reference, moved = model(), model()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    reference.fit(data, shuffle=False, verbose=0)
    got = penstock.train.fit(moved, x, y, strategy="mirrored", **SETTINGS)
    assert furthest(got.model, reference) < 1e-6
    assert furthest(moved, reference) < 1e-6
