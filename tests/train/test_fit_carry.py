"""A model moved into a strategy's scope keeps all that it has learnt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock.errors import ConfigError
from tests.model.tensorflow_process import in_tensorflow
from tests.train.learning import WIDTH, furthest, network, process_of_two_cpus, rows, two_cpus


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with process_of_two_cpus():
        yield


@in_tensorflow
def test_weights_optimizer_and_settings_go_along() -> None:
    import penstock

    two_cpus()
    x, y = rows(32)
    settings: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0}
    reference, model = network("adam"), network("adam")
    for each in (reference, model):
        each.fit(x, y, epochs=2, **settings)
    model.optimizer.learning_rate = 0.003
    reference.optimizer.learning_rate = 0.003
    reference.fit(x, y, **settings)
    got = penstock.train.fit(model, x, y, strategy="mirrored", **settings)
    assert furthest(got.model, reference) < 2e-6
    assert got.model is not model
    assert int(got.model.optimizer.iterations.numpy()) == 12
    assert float(got.model.optimizer.learning_rate.numpy()) == pytest.approx(0.003)
    again = penstock.train.fit(got.model, x, y, strategy="mirrored", **settings)
    reference.fit(x, y, **settings)
    assert furthest(again.model, reference) < 2e-6


@in_tensorflow
def test_adapted_layers_go_along() -> None:
    import keras

    import penstock

    two_cpus()
    x, y = rows(32)
    x = 5 * x + 3
    settings: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0}
    reference, model = (
        keras.Sequential([keras.Input((WIDTH,)), keras.layers.Normalization(), network("sgd")])
        for _ in range(2)
    )
    for each in (reference, model):
        each.layers[0].adapt(x)
        each.compile("sgd", each.layers[1].loss)
    reference.fit(x, y, **settings)
    got = penstock.train.fit(model, x, y, strategy="mirrored", **settings)
    assert furthest(got.model, reference) < 2e-6
    assert furthest(model, reference) < 2e-6
    answers = [each.predict(x, verbose=0) for each in (reference, got.model, model)]
    np.testing.assert_allclose(answers[1], answers[0], atol=1e-5)
    np.testing.assert_allclose(answers[2], answers[0], atol=1e-5)


@pytest.mark.parametrize("told", ["names", "variables"])
@in_tensorflow
def test_what_does_not_decay_goes_along(told: str) -> None:
    import keras

    import penstock

    two_cpus()
    x, y = rows(32)
    settings: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0}
    reference, model = network(), network()
    for each in (reference, model):
        each.compile(keras.optimizers.AdamW(0.01, weight_decay=5.0), each.loss)
        if told == "names":
            each.optimizer.exclude_from_weight_decay(var_names=["bias"])
        else:
            each.optimizer.exclude_from_weight_decay([each.trainable_variables[0]])
    for _ in range(2):  # the second time with an optimizer that is built
        reference.fit(x, y, **settings)
        got = penstock.train.fit(model, x, y, strategy="mirrored", **settings)
    assert furthest(got.model, reference) < 5e-6


@in_tensorflow
def test_momentum_comes_back_to_the_callers_own_model() -> None:
    import penstock

    two_cpus()
    x, y = rows(32)
    settings: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0}
    reference, model = network("adam"), network("adam")
    for strategy in ("mirrored", "one", "mirrored"):
        reference.fit(x, y, **settings)
        penstock.train.fit(model, x, y, strategy=strategy, **settings)
    assert int(model.optimizer.iterations.numpy()) == 12
    assert furthest(model, reference) < 2e-6


@in_tensorflow
def test_a_strategy_from_code_and_the_scope_of_one() -> None:
    """Although one over the same devices has trained another model here: the numbers that
    TensorFlow gives to all-reduces are the same in both."""
    import keras
    import tensorflow as tf

    import penstock

    two_cpus()
    x, y = rows(16)
    settings: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0}
    reference = network()
    reference.fit(x, y, **settings)
    other = network("adam", lambda: keras.layers.Dense(5))
    penstock.train.fit(other, x, y, strategy="mirrored", **settings)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    given = penstock.train.fit(network(), x, y, strategy=strategy, **settings)
    with strategy.scope():
        model = network()
        found = penstock.train.fit(model, x, y, **settings)
        with pytest.raises(ConfigError, match="in the scope of a strategy"):
            penstock.train.fit(model, x, y, strategy="one", **settings)
    assert found.model is model
    for got in (given, found):
        assert got.report["replicas"] == 2
        assert furthest(got.model, reference) < 1e-6
    for precision, far in ((None, 1e-6), ("mixed_float16", 0.02)):
        one = tf.distribute.OneDeviceStrategy("/cpu:1")
        got = penstock.train.fit(network(), x, y, strategy=one, precision=precision, **settings)
        assert furthest(got.model, reference) < far
        assert "CPU:1" in got.model.weights[0].value.device
    # And back again, to one device.
    reference.fit(x, y, **settings)
    alone = penstock.train.fit(model, x, y, strategy="one", **settings)
    assert furthest(alone.model, reference) < 1e-6
    assert isinstance(alone.model.weights[0].value, tf.Variable)
    assert not hasattr(alone.model.weights[0].value, "values")


@pytest.mark.parametrize(("strategy", "replicas"), [("auto", 2), ("one", 1), ("mirrored", 2)])
@in_tensorflow
def test_a_model_that_was_made_in_a_scope_is_trained_there_or_elsewhere(
    strategy: str, replicas: int
) -> None:
    import tensorflow as tf

    import penstock

    two_cpus()
    x, y = rows(16)
    settings: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0}
    reference = network("adam")
    reference.fit(x, y, **settings)
    theirs = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with theirs.scope():
        model = network("adam")
    got = penstock.train.fit(model, x, y, strategy=strategy, **settings)
    assert got.report["replicas"] == replicas
    assert (got.model is model) == (strategy == "auto")
    for each in (model, got.model):
        assert furthest(each, reference) < 2e-6
        assert int(each.optimizer.iterations.numpy()) == 2


@in_tensorflow
def test_layers_losses_and_models_of_the_callers_own() -> None:
    import keras

    import penstock

    two_cpus()

    class Scaled(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.factor = self.add_weight(shape=(shape[-1],), initializer="ones", name="factor")

        def call(self, inputs: Any) -> Any:
            return inputs * self.factor

    def squared(y_true: Any, y_pred: Any) -> Any:
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)

    def model() -> Any:
        keras.utils.set_random_seed(4)
        made = keras.Sequential([keras.Input((WIDTH,)), Scaled(), keras.layers.Dense(2)])
        made.compile(keras.optimizers.SGD(0.1), squared, metrics=[squared])
        return made

    x, _ = rows()
    reference = model()
    settings: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0}
    reference.fit(x, x[:, :2], **settings)
    got = penstock.train.fit(model(), x, x[:, :2], strategy="mirrored", **settings)
    assert furthest(got.model, reference) < 1e-6
    assert set(got.history) == {"loss", "squared"}


@in_tensorflow
def test_functions_without_a_name_know_what_they_did() -> None:
    import keras

    import penstock

    two_cpus()
    x, y = rows(16)

    def halved(rows: Any) -> Any:
        return doubled(rows) / 4

    made = [
        network(
            "sgd",
            lambda: keras.layers.Lambda(lambda rows: doubled(rows)),
            lambda: keras.layers.Dense(4, activation=lambda rows: keras.ops.tanh(doubled(rows))),
            lambda: keras.layers.Dense(4, activation=halved),
            loss=lambda y, p: doubled(keras.losses.sparse_categorical_crossentropy(y, p)),
        )
        for _ in range(2)
    ]
    settings: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0}
    made[0].fit(x, y, **settings)
    penstock.train.fit(made[1], x, y, strategy="mirrored", **settings)
    assert furthest(*made) < 2e-6


def doubled(rows: Any) -> Any:
    return 2 * rows


@in_tensorflow
def test_a_model_without_weights_yet_is_built_from_the_data() -> None:
    import keras

    import penstock

    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self.first, self.last = keras.layers.Dense(4), keras.layers.Dense(3)

        def call(self, rows: Any) -> Any:
            return self.last(self.first(rows))

    def partly() -> Any:
        model = Own()
        with pytest.warns(UserWarning, match="unbuilt state"):
            model.build((None, WIDTH))
        assert model.built
        return model

    two_cpus()
    x, y = rows()
    for strategies, make in (
        (("mirrored", "one"), lambda: keras.Sequential([*map(keras.layers.Dense, (4, 3))])),
        (("one", "mirrored"), lambda: keras.Sequential([*map(keras.layers.Dense, (4, 3))])),
        (("mirrored", "one"), partly),
    ):
        model = make()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        for times, strategy in enumerate(strategies, 1):
            got = penstock.train.fit(model, x, y, batch_size=8, strategy=strategy, verbose=0)
            assert np.isfinite(got.history["loss"]).all()
            assert len(model.get_weights()) == 4
            assert furthest(got.model, model) == 0
            assert int(model.optimizer.iterations.numpy()) == 5 * times


@in_tensorflow
def test_a_model_that_keras_cannot_make_again_is_refused_with_a_way_out() -> None:
    import keras

    import penstock

    two_cpus()

    class Fixed(keras.Model):  # type: ignore[misc]
        def __init__(self, width: Any) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(len(width))

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

    def model() -> Any:
        made = Fixed(object.__sizeof__ and [1, 2])
        made.compile("sgd", "mse")
        return made

    x, _ = rows()
    data: Any = (x, x[:, :2])

    class Unknown:
        """What JSON cannot hold."""

    odd = model()
    odd.get_config = lambda: {"width": Unknown()}
    with pytest.raises(ConfigError, match="function without arguments"):
        penstock.train.fit(odd, *data, strategy="mirrored", verbose=0)
    got = penstock.train.fit(model, *data, strategy="mirrored", verbose=0)
    assert len(got.history["loss"]) == 1


@in_tensorflow
def test_what_was_learnt_until_ctrl_c_is_kept() -> None:
    import keras

    import penstock

    class Interrupted(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise KeyboardInterrupt

    two_cpus()
    settings = {"batch_size": 8, "shuffle": False, "verbose": 0}
    wanted, model = network(), network()
    wanted.fit(*rows(), epochs=1, **settings)
    with pytest.raises(KeyboardInterrupt):
        penstock.train.fit(
            model, *rows(), epochs=5, strategy="mirrored", callbacks=[Interrupted()], **settings
        )
    assert furthest(model, wanted) < 2e-6
    assert int(model.optimizer.iterations.numpy()) == 5
