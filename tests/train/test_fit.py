"""`fit` ends with the weights and the history of `Model.fit`, however a step is cut."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model.tensorflow_process import in_tensorflow
from tests.train.learning import (
    CLASSES,
    ROWS,
    WIDTH,
    furthest,
    network,
    optimizer,
    process_of_two_cpus,
    rows,
    two_cpus,
)


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with process_of_two_cpus():
        yield


def fitted(model: Any, *data: Any, **options: Any) -> Any:
    import penstock

    settings = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0, **options}
    return penstock.train.fit(model, *data, **settings)


def expected(model: Any, *data: Any, **options: Any) -> Any:
    settings = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0, **options}
    return model.fit(*data, **settings)


@functools.cache
def of_one_device(by: str) -> tuple[Any, Any]:
    """A model that `Model.fit` has trained, and its history: once for each optimizer."""
    x, y = rows()
    model = network(by)
    return model, expected(model, x, y, validation_data=(x[:11], y[:11]))


def same_history(got: Any, wanted: Any) -> None:
    assert list(got.history) == list(wanted.history)
    assert got.epoch == wanted.epoch
    for name, values in wanted.history.items():
        np.testing.assert_allclose(got.history[name], values, rtol=2e-5, atol=1e-6, err_msg=name)


# 37 rows in batches of 8: the last has 5, which are fewer than the 8 pieces of two replicas with
# four micro-batches each.
@pytest.mark.parametrize(
    ("by", "strategy", "accumulate"),
    [
        ("sgd", "one", 1),
        ("sgd", "one", 4),
        ("adam", "one", 4),
        ("adamw", "one", 3),
        ("sgd", "mirrored", 1),
        ("sgd", "mirrored", 4),
        ("adam", "mirrored", 4),
        ("adamw", "mirrored", 2),
    ],
)
@in_tensorflow
def test_weights_and_history_are_those_of_one_device(
    by: str, strategy: str, accumulate: int
) -> None:
    two_cpus()
    x, y = rows()
    reference, wanted = of_one_device(by)
    model = network(by)
    got = fitted(
        model,
        x,
        y,
        validation_data=(x[:11], y[:11]),
        strategy=strategy,
        accumulate=accumulate,
    )
    same_history(got, wanted)
    assert furthest(got.model, reference) < 2e-6
    assert furthest(model, reference) < 2e-6  # the caller's own
    assert got.report["replicas"] == (2 if strategy == "mirrored" else 1)
    assert got.report["micros"] == accumulate
    assert got.report["steps"] == 10


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight", "sum"])
@in_tensorflow
def test_sample_weights_count_as_in_one_batch(reduction: str) -> None:
    import keras

    two_cpus()
    x, y = rows()
    weight = np.linspace(0.1, 2.0, len(x)).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(reduction=reduction)
    settings = {"loss": loss, "metrics": [], "weighted_metrics": ["accuracy"]}
    reference = network(**settings)
    more = {"sample_weight": weight, "validation_data": (x[:20], y[:20], weight[:20])}
    wanted = expected(reference, x, y, **more)
    for strategy, accumulate in (("one", 3), ("mirrored", 2)):
        got = fitted(network(**settings), x, y, strategy=strategy, accumulate=accumulate, **more)
        assert furthest(got.model, reference) < 5e-6
        same_history(got, wanted)


@in_tensorflow
def test_class_weights_and_penalties_on_weights() -> None:
    import keras

    two_cpus()
    x, y = rows()
    classes = {0: 0.5, 2: 3.0}

    def model() -> Any:
        return network("sgd", lambda: keras.layers.Dense(5, kernel_regularizer="l2"))

    reference = model()
    wanted = expected(reference, x, y, class_weight=classes)
    got = fitted(model(), x, y, class_weight=classes, strategy="mirrored", accumulate=2)
    assert furthest(got.model, reference) < 2e-6
    same_history(got, wanted)


@in_tensorflow
def test_classes_in_a_column_of_which_only_the_data_tells() -> None:
    import tensorflow as tf

    from penstock.train.weighing import Weighing

    weighing = Weighing(network(), 1, {0: 2.0, 1: 3.0, 2: 5.0})
    spec = tf.TensorSpec((None, None), tf.float32)
    weigh = tf.function(lambda y: weighing.sample_weight(y, None), input_signature=[spec])
    assert weigh([[1.0], [2.0], [0.9999]]).numpy().tolist() == [3.0, 5.0, 3.0]
    assert weigh([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).numpy().tolist() == [3.0, 5.0]
    assert weigh([[-1.0], [1.0], [7.0]]).numpy().tolist() == [1.0, 3.0, 1.0]  # as in Keras


@pytest.mark.parametrize(("by", "clip_norm"), [("adam", None), ("sgd", 0.5)])
@in_tensorflow
def test_a_row_of_an_embedding_that_comes_again_counts_as_one(
    by: str, clip_norm: float | None
) -> None:
    """In one piece as in many, though Keras' optimizers would square each time by itself."""
    import keras

    two_cpus()
    words = np.random.default_rng(5).integers(0, 4, (ROWS, 6))

    def build() -> Any:
        keras.utils.set_random_seed(11)
        layers = [keras.layers.Embedding(9, 5), keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((6,), dtype="int32"), *layers])
        model.compile(optimizer(by), "mse")
        return model

    data = (words, words.sum(axis=1).astype("float32"))
    whole = fitted(build, *data, clip_norm=clip_norm).model
    for options in ({"accumulate": 4}, {"strategy": "mirrored"}, {"jit": True}):
        got = fitted(build, *data, clip_norm=clip_norm, **options).model
        assert furthest(got, whole) < 1e-4, options


@pytest.mark.parametrize("strategy", ["one", "mirrored"])
@in_tensorflow
def test_a_model_that_is_to_run_eagerly_does(strategy: str) -> None:
    import keras
    import tensorflow as tf

    two_cpus()
    seen: list[bool] = []

    class Looking(keras.layers.Layer):  # type: ignore[misc]
        def call(self, values: Any) -> Any:
            seen.append(tf.executing_eagerly())
            return values

    data = rows(20)
    fits = {"validation_data": data, "strategy": strategy}
    got = fitted(network("sgd", Looking, run_eagerly=True), *data, **fits)
    assert seen.count(True) >= 12  # three batches to train on, and to validate, in each epoch
    same_history(got, fitted(network(), *data, **fits))
    assert not tf.config.functions_run_eagerly()


@in_tensorflow
def test_masked_entries_do_not_count() -> None:
    import keras

    two_cpus()
    draw = np.random.default_rng(0)
    x = draw.integers(0, 3, (21, 6))  # 0 is masked: each row has another number of entries
    y = draw.normal(size=(21, 6, 1)).astype("float32")

    def model() -> Any:
        keras.utils.set_random_seed(1)
        made = keras.Sequential(
            [keras.Input((6,)), keras.layers.Embedding(3, 4, mask_zero=True), keras.layers.Dense(1)]
        )
        made.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        return made

    reference = model()
    wanted = expected(reference, x, y, validation_data=(x, y))
    got = fitted(model(), x, y, strategy="mirrored", accumulate=2, validation_data=(x, y))
    assert furthest(got.model, reference) < 2e-6
    same_history(got, wanted)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight"])
@in_tensorflow
def test_targets_of_a_class_that_is_ignored_do_not_count(reduction: str) -> None:
    """Of rows, and of entries of which some are masked besides, in a column or not."""
    import keras

    two_cpus()
    draw = np.random.default_rng(0)

    def model(masked: bool) -> Any:
        keras.utils.set_random_seed(1)
        layers = [keras.Input((6,)), keras.layers.Embedding(3, 4, mask_zero=masked)]
        if not masked:
            layers.append(keras.layers.Flatten())
        made = keras.Sequential([*layers, keras.layers.Dense(CLASSES)])
        loss = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=-1, reduction=reduction
        )
        made.compile(keras.optimizers.SGD(0.5), loss)
        return made

    x = draw.integers(0, 3, (21, 6))
    weight = draw.uniform(size=(21, 1)).astype("float32")
    for masked, shape in ((False, (21,)), (True, (21, 6, 1))):
        y = draw.integers(-1, CLASSES, shape)
        y[:5] = -1  # none of some pieces counts
        more = {"validation_data": (x, y), "sample_weight": weight if masked else weight[:, 0]}
        reference = model(masked)
        wanted = expected(reference, x, y, **more)
        for how in ({"accumulate": 2}, {"strategy": "mirrored"}):
            got = fitted(model(masked), x, y, **how, **more)
            assert furthest(got.model, reference) < 2e-6, (masked, how)
            same_history(got, wanted)


@in_tensorflow
def test_a_loss_of_the_models_own_is_a_mean_over_rows_whatever_is_masked() -> None:
    import keras

    class Own(keras.Model):  # type: ignore[misc]
        def compute_loss(
            self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True
        ) -> Any:
            return keras.ops.mean(keras.ops.square(y_pred - y))

    two_cpus()
    draw = np.random.default_rng(0)
    x = draw.integers(0, 3, (21, 6))
    x[:5, 1:] = 0
    y = draw.normal(size=(21, 6, 1)).astype("float32")

    def model() -> Any:
        keras.utils.set_random_seed(1)
        inputs = keras.Input((6,), dtype="int32")
        words = keras.layers.Embedding(3, 4, mask_zero=True)(inputs)
        made = Own(inputs, keras.layers.Dense(1)(words))
        made.compile(keras.optimizers.SGD(0.1))
        return made

    reference = model()
    wanted = expected(reference, x, y, validation_data=(x, y))
    for how in ({"accumulate": 2}, {"strategy": "mirrored"}):
        got = fitted(model, x, y, validation_data=(x, y), **how)
        assert furthest(got.model, reference) < 2e-6, how
        same_history(got, wanted)


@in_tensorflow
def test_padding_leaves_statistics_alone() -> None:
    """The last step of 8 pieces has 5 rows: as many as the 5 pieces of the other have."""
    import keras

    two_cpus()
    x, y = rows(5)
    every = [
        fitted(
            network("sgd", keras.layers.BatchNormalization),
            x,
            y,
            strategy="one",
            accumulate=accumulate,
            epochs=3,
        ).model.layers[1]
        for accumulate in (8, 5)
    ]
    for one, other in zip(*(layer.get_weights() for layer in every), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)


@in_tensorflow
def test_the_best_weights_are_not_replaced_by_averages() -> None:
    import keras

    def trained(fit: Any) -> Any:
        model = network()
        optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
        model.compile(optimizer, "sparse_categorical_crossentropy")
        best = keras.callbacks.EarlyStopping(
            "loss", min_delta=9.0, patience=2, restore_best_weights=True
        )
        fit(model, *rows(), epochs=4, callbacks=[best])
        return model

    two_cpus()
    assert furthest(trained(fitted), trained(expected)) < 2e-6


@in_tensorflow
def test_several_inputs_and_outputs() -> None:
    import keras

    two_cpus()
    x, y = rows(32)
    data = {"left": x, "right": x * 2}
    targets = {"kind": y, "size": x[:, :1]}

    def model() -> Any:
        keras.utils.set_random_seed(1)
        left, right = keras.Input((WIDTH,), name="left"), keras.Input((WIDTH,), name="right")
        both = keras.layers.Dense(8, "tanh")(keras.layers.Concatenate()([left, right]))
        outputs = {
            "kind": keras.layers.Dense(CLASSES, "softmax", name="kind")(both),
            "size": keras.layers.Dense(1, name="size")(both),
        }
        made = keras.Model({"left": left, "right": right}, outputs)
        made.compile(
            keras.optimizers.SGD(0.1),
            {"kind": "sparse_categorical_crossentropy", "size": "mse"},
            loss_weights={"kind": 1.0, "size": 0.3},
            metrics={"kind": ["accuracy"], "size": ["mae"]},
        )
        return made

    reference = model()
    wanted = expected(reference, data, targets, validation_data=(data, targets))
    got = fitted(
        model(), data, targets, validation_data=(data, targets), strategy="mirrored", accumulate=2
    )
    same_history(got, wanted)
    assert furthest(got.model, reference) < 2e-6


@in_tensorflow
def test_statistics_are_averaged_by_rows_over_the_replicas() -> None:
    import keras

    two_cpus()
    x, _ = rows(7)  # of one batch: 4 rows on the first replica, 3 on the second
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.Dense(3),
        ]
    )
    model.compile("sgd", "mse")
    got = fitted(model, x, x[:, :3], strategy="mirrored", epochs=1)
    mean, variance = (each.numpy() for each in got.model.layers[0].non_trainable_variables)
    np.testing.assert_allclose(mean, 0.1 * x.mean(axis=0), rtol=1e-4, atol=1e-6)
    of_parts = (4 * x[:4].var(axis=0) + 3 * x[4:].var(axis=0)) / 7
    np.testing.assert_allclose(variance, 0.9 + 0.1 * of_parts, rtol=1e-4)
    for variable in got.model.layers[0].non_trainable_variables:
        copies = [each.numpy() for each in variable.value.values]
        np.testing.assert_array_equal(*copies)


@in_tensorflow
def test_replicas_drop_out_different_places() -> None:
    import keras
    import tensorflow as tf

    two_cpus()
    x = np.ones((8, 64), "float32")
    drawn = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, tf.zeros(64))

    class Remember(keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            if context := tf.distribute.get_replica_context():  # not while it is built
                drawn.insert(tf.cast(context.replica_id_in_sync_group, tf.int64), inputs[0])
            return inputs

    def model() -> Any:
        made = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dropout(0.5), Remember(), keras.layers.Dense(1)]
        )
        made.compile("sgd", "mse")
        return made

    fitted(model, x, x[:, :1], strategy="mirrored", epochs=1)
    first, second = drawn.lookup(tf.constant([0, 1], tf.int64)).numpy()
    assert set(np.unique(first)) == {0.0, 2.0} == set(np.unique(second))
    assert (first != second).any()


@in_tensorflow
def test_fewer_rows_than_a_batch_and_than_replicas() -> None:
    two_cpus()
    x, y = rows(1)
    reference = network()
    expected(reference, x, y)
    got = fitted(network(), x, y, strategy="mirrored", accumulate=2)
    assert got.report["steps"] == 2
    assert furthest(got.model, reference) < 1e-6


@in_tensorflow
def test_rows_are_shuffled_anew_each_epoch_by_the_seed() -> None:
    two_cpus()
    x, y = rows()
    runs = [fitted(network(), x, y, shuffle=True, seed=seed).model for seed in (1, 1, 2)]
    assert furthest(runs[0], runs[1]) == 0
    assert furthest(runs[0], runs[2]) > 0


@pytest.mark.parametrize("strategy", ["one", "mirrored"])
@in_tensorflow
def test_the_end_of_a_data_set_of_unknown_length_changes_nothing(strategy: str) -> None:
    """Weights decay, counters and random seeds go on without any data, unless they are kept."""
    import keras
    import tensorflow as tf

    two_cpus()
    x, y = rows()
    reference = network("adamw")
    expected(reference, x, y)
    model = network("adamw", lambda: keras.layers.Dropout(0.0, seed=3))
    data = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda *_: True).batch(5)
    got = fitted(model, data, strategy=strategy, accumulate=2)
    got_weights = [each.numpy() for each in got.model.trainable_variables]
    for one, two in zip(got_weights, reference.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, atol=2e-6)
    assert int(got.model.optimizer.iterations.numpy()) == 10
    assert got.report["steps"] == 10


@pytest.mark.parametrize("strategy", ["one", "mirrored"])
@in_tensorflow
def test_data_of_its_own_ends_for_a_single_worker(strategy: str) -> None:
    import tensorflow as tf

    two_cpus()
    x, y = rows()
    reference = network("adamw")
    expected(reference, x, y)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
    for data in ((x, y), (batches,)):
        got = fitted(network("adamw"), *data, shard="off", strategy=strategy)
        assert got.report["shard"] == "off"
        assert got.report["steps"] == int(got.model.optimizer.iterations.numpy()) == 10
        assert furthest(got.model, reference) < 2e-6


@in_tensorflow
def test_compiled_by_xla_the_weights_are_the_same() -> None:
    two_cpus()
    import keras

    def model() -> Any:
        return network("adam", lambda: keras.layers.Dropout(0.0, seed=1))

    x, y = rows(32)
    reference = model()
    expected(reference, x, y)
    for strategy, accumulate in (("one", 1), ("one", 2), ("mirrored", 1)):
        got = fitted(model(), x, y, strategy=strategy, accumulate=accumulate, jit=True)
        assert got.report["jit"] is True
        assert furthest(got.model, reference) < 1e-5


@in_tensorflow
def test_gradients_are_clipped_after_they_are_summed() -> None:
    import keras

    two_cpus()
    x, y = rows(8)
    reference = network("sgd")
    reference.compile(
        keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.05),
        "sparse_categorical_crossentropy",
    )
    expected(reference, x, y)
    for strategy, accumulate in (("one", 1), ("mirrored", 2)):
        got = fitted(network("sgd"), x, y, clip_norm=0.05, strategy=strategy, accumulate=accumulate)
        assert furthest(got.model, reference) < 1e-6
    assert furthest(fitted(network("sgd"), x, y).model, reference) > 1e-3


@in_tensorflow
def test_data_is_copied_ahead_to_the_device() -> None:
    """To a CPU, here; components that do not exist stay out of it."""
    from penstock.train import strategies

    two_cpus()
    x, y = rows()
    reference = network()
    wanted = expected(reference, x, y, validation_data=(x, y))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategies, "_ahead", lambda: "/cpu:0")
        for accumulate in (1, 2):
            got = fitted(network(), x, y, validation_data=(x, y), accumulate=accumulate)
            same_history(got, wanted)
            assert furthest(got.model, reference) < 1e-6


@in_tensorflow
def test_the_summary_is_written_for_the_launcher(tmp_path: Path) -> None:
    import json
    import os

    path = tmp_path / "summary.json"
    os.environ["PENSTOCK_TRAIN_SUMMARY"] = str(path)
    try:
        got = fitted(network(), *rows())
    finally:
        del os.environ["PENSTOCK_TRAIN_SUMMARY"]
    assert json.loads(path.read_text()) == got.report
