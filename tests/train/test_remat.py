"""Recomputing: the same gradients and the same state, and less memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from tests.model.tensorflow_process import in_tensorflow

_ROWS = 8
_KINDS = ["residual", "nested", "masked", "two outputs", "half", "shared", "python"]

_WHICH = {"masked": ["words", "inner", "first"], "two outputs": ["middle", "norm"]}


def _residual(blocks: int = 4, width: int = 8, side: int = 16, dropout: float = 0.3) -> Any:
    import keras

    layers = keras.layers
    image = keras.Input((side, side, 3), dtype="uint8")
    x = layers.Conv2D(width, 3, padding="same", name="stem")(layers.Rescaling(1 / 255)(image))
    for number in range(blocks):
        y = layers.BatchNormalization(name=f"norm{number}")(x)
        y = layers.Conv2D(width, 1, activation="relu", name=f"one{number}")(y)
        if dropout:
            y = layers.Dropout(dropout, seed=number, name=f"drop{number}")(y)
        y = layers.Conv2D(width, 1, name=f"two{number}", activity_regularizer="l2")(y)
        x = layers.Add(name=f"add{number}")([x, layers.ReLU()(y)])
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(3, activation="softmax", dtype="float32")(x))


def _model(kind: str) -> tuple[Any, Any]:
    """A model and its input."""
    import keras
    import numpy as np

    random = np.random.default_rng(0)
    layers = keras.layers
    images = random.integers(0, 256, (_ROWS, 16, 16, 3)).astype(np.uint8)
    table = random.normal(size=(_ROWS, 6)).astype(np.float32)
    if kind == "residual":
        return _residual(), images
    if kind == "half":
        keras.config.set_dtype_policy("mixed_float16")
        try:
            return _residual(), images
        finally:
            keras.config.set_dtype_policy("float32")
    if kind == "nested":
        row = keras.Input((16, 16, 3), dtype="uint8")
        inside = keras.Sequential([keras.Input((3,)), layers.Dense(5), layers.Dropout(0.5, seed=1)])
        return keras.Model(row, layers.Dense(2)(inside(_residual()(row)))), images
    if kind == "masked":
        words = keras.Input((7,), dtype="int32")
        x = layers.Embedding(11, 4, mask_zero=True, name="words")(words)
        x = layers.Dense(4, activation="tanh", name="inner")(x)
        x = layers.LSTM(5, return_sequences=True, name="first")(x)
        x = layers.LSTM(5)(x)
        return keras.Model(words, layers.Dense(2)(x)), random.integers(0, 11, (_ROWS, 7))
    if kind == "two outputs":
        row = keras.Input((6,))
        one = layers.Dense(5, activation="tanh")(row)
        two = layers.Dense(5, activation="tanh", name="middle")(one)
        two = layers.BatchNormalization(name="norm")(two)
        three = layers.Dense(4)(layers.Concatenate()([one, two]))
        return keras.Model(row, {"a": three, "b": layers.Dense(1)(one)}), table
    if kind == "shared":
        row, layer = keras.Input((6,)), layers.Dense(6, activation="tanh")
        return keras.Model(row, layers.Dense(1)(layer(layer(layer(row))))), table
    return _of_python(), table


def _of_python() -> Any:
    import keras

    layers = keras.layers

    class Block(layers.Layer):  # type: ignore[misc]
        def __init__(self, number: int) -> None:
            super().__init__(name=f"block{number}")
            self.inside = keras.Sequential(
                [layers.Dense(6, activation="tanh"), layers.Dropout(0.4, seed=number)]
            )
            self.norm = layers.BatchNormalization()

        def build(self, shape: Any) -> None:
            self.inside.build(shape)
            self.norm.build(shape)
            self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

        def call(self, rows: Any) -> Any:  # training comes by Keras's call context alone
            return rows + self.scale * self.norm(self.inside(rows))

    class Network(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = [Block(number) for number in range(3)]
            self.head = layers.Dense(1)

        def call(self, rows: Any) -> Any:
            for block in self.blocks:
                rows = block(rows)
            return self.head(rows)

    network = Network()
    network(keras.ops.zeros((1, 6)))
    return network


def _step(model: Any, forward: Any, rows: Any, start: list[Any], jit: bool) -> tuple[Any, int]:
    """Loss, gradients and state after a step from this start; multiplications in its graph."""
    import keras
    import tensorflow as tf

    for variable, value in zip(model.variables, start, strict=True):
        variable.assign(value)

    @tf.function(jit_compile=jit)  # type: ignore[untyped-decorator]
    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = keras.tree.flatten(forward(batch, training=True))
            loss = sum(tf.reduce_sum(tf.cast(one, tf.float32) ** 2) for one in outputs)
            loss += sum(tf.cast(one, tf.float32) for one in forward.losses)
        return loss, tape.gradient(loss, [one.value for one in model.trainable_variables])

    loss, gradients = step(rows)
    dense = [tf.convert_to_tensor(one).numpy() for one in gradients]
    state = [one.numpy() for one in model.non_trainable_variables]
    operations = step.get_concrete_function(rows).graph.get_operations()
    return (loss.numpy(), dense, state), sum(one.type in ("Conv2D", "MatMul") for one in operations)


@pytest.mark.parametrize(
    ("kind", "jit"), [*((kind, False) for kind in _KINDS), ("residual", True), ("python", True)]
)
@in_tensorflow
def test_gradients_and_state_are_those_of_the_model(kind: str, jit: bool) -> None:
    """Dropout's masks, BatchNorm's statistics, seeds, masks and added losses among them."""
    import keras
    import numpy as np
    import tensorflow as tf

    from penstock.train.remat import remat

    keras.utils.set_random_seed(1)
    model, rows = _model(kind)
    rows = tf.constant(rows)
    again = remat(model, _WHICH.get(kind, True))
    assert [id(one) for one in again.trainable_variables] == [
        id(one) for one in model.trainable_variables
    ]
    start = [one.numpy() for one in model.variables]
    wanted, plain = _step(model, model, rows, start, jit)
    got, more = _step(model, again, rows, start, jit)
    assert jit or more > plain  # something is computed twice
    rounding = 1e-2 if kind == "half" else 2e-4 if jit else 2e-5  # XLA fuses the two unlike
    for one, other in zip(keras.tree.flatten(wanted), keras.tree.flatten(got), strict=True):
        allowed = rounding * max(float(np.abs(one).max()), 1e-3)
        np.testing.assert_allclose(other, one, rtol=0, atol=allowed)


@in_tensorflow
def test_named_layers_are_recomputed_and_no_others() -> None:
    import tensorflow as tf

    from penstock.train.remat import remat

    model, rows = _model("residual")
    start = [one.numpy() for one in model.variables]
    _, plain = _step(model, model, tf.constant(rows), start, jit=False)
    for names, more in ((["one1"], 1), (["one1", "drop1", "two1"], 2), (["one0", "one2"], 2)):
        _, count = _step(model, remat(model, names), tf.constant(rows), start, jit=False)
        assert count - plain == more, names
    for wrong in (["one1", "absent"], [], "one1", 3):
        with pytest.raises(ConfigError, match="remat"):
            remat(model, wrong)
    assert remat(model, False) is model


@in_tensorflow
def test_outside_of_training_it_is_the_model() -> None:
    import numpy as np

    from penstock.train.remat import remat

    model, rows = _model("residual")
    np.testing.assert_array_equal(remat(model, True)(rows), model(rows))


@in_tensorflow
def test_cuts_lie_between_residual_blocks_and_keep_little() -> None:
    import keras

    from penstock.train.cuts import cheapest
    from penstock.train.segments import chain_of

    chain = chain_of(keras.applications.ResNet50(weights=None))
    assert chain is not None
    positions, given = chain.narrow(), chain.given()
    cuts = cheapest(chain.kept(positions), given, positions)
    names = [chain.calls[cut - 1].operation.name for cut in cuts]
    assert len(cuts) > 3
    assert all(name.endswith(("_add", "_out", "_pool")) for name in names)
    kept = sum(chain.kept(cuts))
    largest = max(
        sum(chain.sizes[number] for call in segment.calls for number in call.gives)
        for segment in chain.segments(cuts)
    )
    assert kept + largest < 0.3 * sum(given)


@pytest.mark.slow
def test_peak_memory_falls_in_a_function_and_under_xla(tmp_path: Path) -> None:
    """What the process holds at its peak, and what XLA plans to hold."""
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    done = subprocess.run(
        [sys.executable, "-m", "tests.train.peak_of_a_step", str(tmp_path)],
        env=os.environ | {"XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout.splitlines()[-1])
    for way in ("function", "xla"):
        assert peaks["remat"][way] < 0.6 * peaks["plain"][way], peaks
