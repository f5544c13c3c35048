"""A process for `test_pipeline`, which has three logical CPUs: prints what it finds as JSON."""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from penstock.errors import ConfigError
from penstock.train import fit
from penstock.train.pipeline import stages

DEVICES = ["CPU:0", "CPU:1", "CPU:2"]
ROWS, BATCH = 70, 23  # the last batch has one row


def network(regularizer: str | None = None) -> Any:
    keras.utils.set_random_seed(3)
    first = x = keras.Input((12,))
    for number in range(6):
        x = keras.layers.Dense(16, activation="tanh", name=f"layer{number}")(x)
        x = keras.layers.Add()([x, keras.layers.Dense(16, activity_regularizer=regularizer)(x)])
    return keras.Model(first, keras.layers.Dense(3, activation="softmax", name="head")(x))


def going() -> Any:
    first = keras.Input(batch_shape=(4, 5, 3))
    x = keras.layers.GRU(4, stateful=True, name="going")(first)
    return keras.Model(first, keras.layers.Dense(1)(x))


def data() -> tuple[Any, Any]:
    rows = np.random.default_rng(0).normal(size=(ROWS, 12)).astype(np.float32)
    return rows, np.arange(ROWS) % 3


def compiled(model: Any, optimizer: str) -> Any:
    made = (
        keras.optimizers.SGD(0.1, momentum=0.9, name="descent")
        if optimizer == "sgd"
        else keras.optimizers.Adam(0.01, name="descent")
    )
    model.compile(made, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def trained(model: Any, way: str) -> list[Any]:
    rows, classes = data()
    options: dict[str, Any] = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
    if way == "penstock":
        fit(model, rows, classes, strategy="one", **options)
    else:
        model.fit(rows, classes, **options)
    return [one.numpy() for one in model.trainable_variables]


def off(ones: list[Any], others: list[Any]) -> float:
    return max(float(np.abs(one - two).max()) for one, two in zip(ones, others, strict=True))


def masked() -> dict[str, float]:
    """Of words of which some are masked, by the number of micro-batches."""
    draw = np.random.default_rng(0)
    words, kinds = draw.integers(0, 3, (ROWS, 5)), draw.integers(0, 3, (ROWS, 5))
    words[:20, 1:] = 0

    def made() -> Any:
        keras.utils.set_random_seed(3)
        inputs = keras.Input((5,), dtype="int32")
        x = keras.layers.Embedding(3, 4, mask_zero=True)(inputs)
        x = keras.layers.Dense(6, activation="tanh")(x)
        return keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(x))

    def told(model: Any, train: Any) -> tuple[Any, float]:
        history = train(model, words, kinds, batch_size=BATCH, shuffle=False, verbose=0).history
        return [one.numpy() for one in model.trainable_variables], history["accuracy"][0]

    wanted, accuracy = told(compiled(made(), "sgd"), keras.Model.fit)
    found = {}
    for count in (1, 4):
        staged = compiled(stages(made(), DEVICES[:2], micro_batches=count), "sgd")
        got, counted = told(staged, functools.partial(fit, strategy="one"))
        found[str(count)] = max(off(wanted, got), abs(counted - accuracy))
    return found


def refusals() -> dict[str, str]:
    found = {}
    regularized = compiled(stages(network("l2"), DEVICES), "sgd")
    tries: dict[str, Any] = {
        "no graph": lambda: stages(keras.Model(), DEVICES),
        "no such layer": lambda: stages(network(), DEVICES, ends=["layer0", "absent"]),
        "wrong order": lambda: stages(network(), DEVICES, ends=["layer3", "layer1"]),
        "too few": lambda: stages(network(), DEVICES, ends=["layer3"]),
        "no GPUs": lambda: stages(network()),
        "XLA": lambda: stages(network(), DEVICES).compile("sgd", "mse", jit_compile=True),
        "stateful": lambda: stages(going(), DEVICES[:2]),
        "added loss": lambda: regularized(data()[0], training=True),
    }
    for name, attempt in tries.items():
        try:
            attempt()
        except ConfigError as error:
            found[name] = str(error)
    return found


def sharded_by_keras() -> list[str]:
    """Where Keras puts a weight that its LayoutMap cuts in two."""
    library = keras.distribution
    mesh = library.DeviceMesh((1, 2), ["batch", "model"], ["cpu:0", "cpu:1"])
    layouts = library.LayoutMap(mesh)
    layouts[".*kernel"] = (None, "model")
    library.set_distribution(library.ModelParallel(layout_map=layouts, batch_dim_name="batch"))
    try:
        weights = network().variables
    finally:
        library.set_distribution(None)
    assert all(type(one._value).__name__ == "ResourceVariable" for one in weights)
    return sorted({one._value.device[-5:] for one in weights})


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
    found: dict[str, Any] = {"off": {}}
    ways = {"sgd": (("keras", True), ("penstock", False)), "adam": (("keras", False),)}
    for optimizer in ways:
        wanted = trained(compiled(network(), optimizer), "keras")
        for way, remat in ways[optimizer]:
            staged = compiled(stages(network(), DEVICES, remat=remat), optimizer)
            found["off"][f"{optimizer}, {way}, remat {remat}"] = off(wanted, trained(staged, way))
    found["masked"] = masked()
    names = staged.devices()
    found["layers"] = [len(names[device]) for device in DEVICES]
    found["weights"] = sorted({one._value.device[-5:] for one in staged.variables})
    kept = [one for one in staged.optimizer.variables if one.shape != ()]
    found["kept beside"] = all(
        slot._value.device == weight._value.device
        for slot, weight in zip(kept[::2], staged.trainable_variables, strict=True)
    )

    @tf.function(autograph=False)
    def step(rows: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(staged(rows, training=True))
        gradients = tape.gradient(loss, [one.value for one in staged.trainable_variables])
        staged.optimizer.apply(gradients)

    graph = step.get_concrete_function(data()[0]).graph.get_operations()
    placed = Counter(one.device[-5:] for one in graph if one.type == "MatMul")
    found["multiplications"] = {device: placed[device] for device in ("", *DEVICES)}
    found["updates without a place"] = sum(
        not one.device for one in graph if "update_" in one.name and one.type in ("Mul", "Sqrt")
    )
    rows = data()[0]
    plain = staged.model(rows, training=False).numpy()
    found["answers"] = float(np.abs(staged.predict(rows, verbose=0) - plain).max())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        staged.model.save(path)
        loaded = keras.models.load_model(path)
        found["saved"] = float(np.abs(loaded.predict(rows, verbose=0) - plain).max())
    found["refused"] = refusals()
    found["keras.distribution"] = sharded_by_keras()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
