"""What cannot be trained rightly is refused, and says why."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock.errors import ConfigError, InputError, TrainingError
from penstock.train.options import Options, asked
from tests.model.tensorflow_process import in_tensorflow
from tests.train.learning import WIDTH, network, process_of_two_cpus, rows, two_cpus


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with process_of_two_cpus():
        yield


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number from 1"),
        ({"epochs": 1.5}, "epochs must be"),
        ({"strategy": "tpu"}, "strategy must be one of .*'mirrored'.*not 'tpu'"),
        ({"reduce": "tree"}, "reduce must be one of"),
        ({"precision": "float16"}, "precision must be one of"),
        ({"shard": "rows"}, "shard must be one of"),
        ({"jit": "yes"}, "jit must be"),
        ({"clip_norm": 0.0}, "clip_norm must be above 0"),
        ({"micro_batch": "big"}, "micro_batch must be 'auto' or a number"),
        ({"micro_batch": 4, "accumulate": 2}, "give one of them"),
        ({"seed": -1}, "seed must be"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"remat": "some"}, "remat must be"),
        ({"strategy": None}, "strategy must be one of 'auto', .*, not None"),
        ({"timeout": "60"}, "timeout must be above 0 seconds, not '60'"),
        ({"clip_norm": "1"}, "clip_norm must be above 0, not '1'"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        asked({}, **options)


def test_the_environment_fills_what_is_not_given() -> None:
    environ = {"PENSTOCK_TRAIN_CHECKPOINTS": "/c", "PENSTOCK_TRAIN_PROFILE": "/p"}
    options = asked(environ, checkpoints="/mine")
    assert (options.checkpoints, options.profile, options.summary) == ("/mine", "/p", None)
    waiting = {"PENSTOCK_TRAIN_TIMEOUT": "7.5"}
    assert [asked(waiting).timeout, asked(waiting, timeout=9).timeout] == [7.5, 9]
    assert asked({}, timeout=None).timeout == 600


def test_numbers_of_numpy_are_numbers() -> None:
    options = asked({}, batch_size=np.int64(32), micro_batch=np.int32(4), clip_norm=np.float32(2))
    assert (
        json.dumps([options.batch_size, options.micro_batch, options.clip_norm]) == "[32, 4, 2.0]"
    )


def test_each_call_of_a_script_has_a_folder_of_its_own() -> None:
    environ = {"PENSTOCK_TRAIN_CHECKPOINTS": "/each", "PENSTOCK_TRAIN_SUMMARY": "/s"}
    with pytest.raises(ConfigError):
        asked(environ, epochs=0)  # which does not count
    every = [asked(environ) for _ in range(3)]
    assert [options.checkpoints for options in every] == ["/each", "/each/fit-2", "/each/fit-3"]
    assert {options.summary for options in every} == {"/s"}
    assert asked(environ, checkpoints="/mine").checkpoints == "/mine"
    assert asked(environ).checkpoints == "/each/fit-4"


def test_rows_of_a_micro_batch_say_how_many_there_are() -> None:
    assert asked({}, micro_batch=7).micros(100, workers=2, replicas=2) == 4
    assert asked({}, accumulate=3).micros(100, workers=2, replicas=2) == 3


def refused(model: Any, why: str, data: Any = None, **options: Any) -> None:
    import penstock

    settings = {"batch_size": 8, "verbose": 0, "accumulate": 2, **options}
    with pytest.raises(ConfigError, match=why):
        penstock.train.fit(model, *(data or rows()), **settings)


@in_tensorflow
def test_models_whose_pieces_cannot_be_weighed() -> None:
    import keras

    from penstock.train.servers import _check as check_of_servers

    two_cpus()
    summed = keras.losses.SparseCategoricalCrossentropy(reduction="sum")
    penalty = network("sgd", lambda: keras.layers.Dense(4, kernel_regularizer="l2"), loss=summed)
    refused(penalty, "penalties on weights")
    active = network("sgd", lambda: keras.layers.Dense(4, activity_regularizer="l2", name="active"))
    refused(active, "'active' has an activity regularizer")
    none = keras.losses.SparseCategoricalCrossentropy(reduction=None)
    refused(network("sgd", loss=none), "one way to reduce")

    def recurrent() -> Any:
        layers = [keras.layers.GRU(4, stateful=True, name="going"), keras.layers.Dense(1)]
        made = keras.Sequential([keras.Input(batch_shape=(4, 5, 3)), *layers])
        made.compile("sgd", "mse")
        return made

    series = (np.zeros((16, 5, 3)), np.zeros((16, 1)))
    refused(recurrent, "'going': stateful=True .*a step of 2 pieces .*accumulate=1", data=series)
    refused(recurrent, "a step of 2 pieces", data=series, strategy="mirrored", accumulate=1)
    alone = types.SimpleNamespace(num_replicas_in_sync=1)
    with pytest.raises(ConfigError, match=r"'going': .*steps that 2 workers take at the same time"):
        check_of_servers(recurrent(), Options(), alone, False, workers=2)
    check_of_servers(recurrent(), Options(), alone, False, workers=1)
    inputs = keras.Input((WIDTH,))
    outputs = [keras.layers.Dense(3)(inputs), keras.layers.Dense(3)(inputs)]
    model = keras.Model(inputs, outputs)
    model.compile("sgd", [keras.losses.MeanSquaredError(), keras.losses.MeanAbsoluteError("sum")])
    x, _ = rows()
    refused(model, "one way to reduce all losses", data=(x, (x[:, :3], x[:, :3])))


@in_tensorflow
def test_models_that_cannot_be_trained_here() -> None:
    import keras

    two_cpus()
    refused(keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(3)]), "must be compiled")
    refused(lambda rate: rate, "wants rate")
    refused(lambda: 3, "got int")
    refused("model.keras", "must be a Keras model, or a function .*got str")
    accumulating = network()
    accumulating.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "mse")
    refused(accumulating, "accumulate=n")
    scaled = network()
    scaled.compile(keras.optimizers.SGD(loss_scale_factor=8.0), "mse")
    refused(scaled, "loss_scale_factor, by which it divides")

    class Stepping(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            return {}

    stepping = Stepping([keras.Input((WIDTH,)), keras.layers.Dense(3)])
    stepping.compile("sgd", "mse")
    refused(stepping, "train_step of its own")

    class Testing(keras.Sequential):  # type: ignore[misc]
        def test_step(self, data: Any) -> Any:
            return super().test_step(data)

    class Telling(keras.Sequential):  # type: ignore[misc]
        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            told = super().compute_metrics(x, y, y_pred, sample_weight)
            return {**told, "largest": keras.ops.max(y_pred)}

    for kind, why in ((Testing, "test_step of its own"), (Telling, "returns 'largest', which is")):
        made = kind([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
        made.compile("sgd", "sparse_categorical_crossentropy")
        refused(made, why, validation_data=rows(9))
    weights: Any = {"a": 1.0}
    refused(network(), "class_weight must be by class, 0, 1, …; got 'a'", class_weight=weights)
    refused(network(), "class_weight must be a dict.*; got a list", class_weight=[1.0, 2.0])


@in_tensorflow
def test_data_of_which_there_is_not_enough() -> None:
    import tensorflow as tf

    import penstock

    two_cpus()
    x, y = rows(32)

    def batches(*more: Any) -> Iterator[Any]:
        yield x[:8], y[:8]
        yield (x[8:], y[8:], *more)

    none = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).filter(lambda x, y: False)
    given: list[tuple[str, Any, dict[str, Any]]] = [
        ("gone through once, and 2 epochs need it", (batches(),), {}),
        ("gone through once, and 2 epochs need it", (x, y), {"validation_data": batches()}),
        ("at least one row to train on", (none,), {}),
        ("at least one row to validate on", (x, y), {"validation_data": none}),
        ("^expected at least one row, got none", (x[:0], y[:0]), {}),
        ("^validation_data: expected at least", (x, y), {"validation_data": (x[:0], y[:0])}),
        ("y: expected targets for the loss", (x,), {}),
        ("y: expected targets for the loss", (x, y), {"validation_data": x}),
        (r"batches of \(x, y\) or .*; got 4 components", (lambda: batches(1, 1),), {}),
    ]
    for why, data, options in given:
        with pytest.raises(InputError, match=why):
            penstock.train.fit(network(), *data, batch_size=8, epochs=2, verbose=0, **options)


@in_tensorflow
def test_what_replicas_would_share_is_refused() -> None:
    """Each of them would count, or take a step, in the same variable."""
    import keras

    two_cpus()
    kept = [keras.metrics.SparseCategoricalAccuracy(name="kept")]
    rate = keras.optimizers.SGD(0.1)
    why = "made outside of the strategy's scope, and would be shared by 2 replicas"
    refused(lambda: network(metrics=kept), f"'kept/.*' was {why}", strategy="mirrored")

    def with_that_optimizer() -> Any:
        model = network()
        model.compile(rate, "sparse_categorical_crossentropy")
        return model

    refused(with_that_optimizer, why, strategy="mirrored", accumulate=1)


@in_tensorflow
def test_what_cannot_be_in_one_step_is_refused() -> None:
    import keras

    two_cpus()
    none = keras.losses.SparseCategoricalCrossentropy(reduction=None)
    refused(network(loss=none), r"must be one number, .*got one of shape \(", accumulate=1)

    def averaging() -> Any:
        model = network()
        averages = keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2)
        model.compile(averages, "sparse_categorical_crossentropy")
        return model

    refused(averaging, "ema_overwrite_frequency, which breaks .*here 2", strategy="mirrored")


@in_tensorflow
def test_a_model_in_stages_has_the_devices_for_itself() -> None:
    import penstock
    from penstock.train import strategies
    from penstock.train.pipeline import stages

    two_cpus()

    def staged() -> Any:
        made = stages(network(), ["CPU:0", "CPU:1"])
        made.compile("sgd", "sparse_categorical_crossentropy")
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategies, "_by_circumstance", lambda found: "mirrored")  # as of two GPUs
        got = penstock.train.fit(staged(), *rows(), batch_size=8, verbose=0)
        assert got.report["strategy"] == "one"
        refused(staged, 'in stages .*strategy="one".*made in the scope of a strategy', accumulate=1)
        patch.setattr(strategies, "_by_circumstance", lambda found: "multiworker")
        refused(staged(), "in stages .*got strategy 'auto', which is 'multiworker' here")
    refused(staged(), "in stages .*strategy=\"one\".*got strategy 'mirrored'", strategy="mirrored")
    with strategies.place("mirrored").scope():
        scoped = staged()
    refused(scoped, "in stages .*made in the scope of a strategy")


@in_tensorflow
def test_strategies_that_cannot_be_had() -> None:
    import tensorflow as tf

    two_cpus()
    refused(network(), "needs a cluster", strategy="multiworker")
    refused(network(), "several workers", strategy="mirrored", reduce="ring")
    refused(network(), "needs GPUs", strategy="mirrored", reduce="nccl")
    refused(
        network(),
        "got CentralStorage",
        strategy=tf.distribute.experimental.CentralStorageStrategy(),
    )


@in_tensorflow
def test_a_loss_that_is_no_number_ends_training() -> None:
    import keras
    import numpy as np

    import penstock

    two_cpus()
    x, y = rows()
    weight = np.ones(len(x))
    weight[20] = np.nan
    with pytest.raises(TrainingError, match=r"the loss is nan .*epoch 1.*expected a finite"):
        penstock.train.fit(network(), x, y, sample_weight=weight, batch_size=8, epochs=3, verbose=0)
    ending = keras.callbacks.TerminateOnNaN()
    done = penstock.train.fit(
        network(),
        x,
        y,
        sample_weight=weight,
        batch_size=8,
        epochs=3,
        shuffle=False,
        verbose=0,
        callbacks=[ending],
    )
    assert done.epoch == [0]
    assert done.report["steps"] == 3


@in_tensorflow
def test_weights_that_are_no_numbers_end_training_although_the_loss_is_one() -> None:
    import keras
    import numpy as np

    import penstock

    two_cpus()
    x, _ = rows()

    class Spoils(keras.callbacks.Callback):  # type: ignore[misc]
        """As a layer does whose activation makes 0 of what is no number."""

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            bias = self.model.trainable_variables[1]
            bias.assign(np.full(bias.shape, np.nan, "float32"))

    layer = keras.layers.Dense(3, activation=lambda z: keras.ops.where(z > 0, z, 0.0))
    model = keras.Sequential([keras.Input((x.shape[1],)), layer])
    model.compile("sgd", "mse")
    with pytest.raises(TrainingError, match=r"the weights '.*bias' are no numbers .*epoch 1"):
        penstock.train.fit(
            model,
            x,
            np.zeros((len(x), 3)),
            batch_size=64,
            epochs=2,
            verbose=0,
            callbacks=[Spoils()],
        )
