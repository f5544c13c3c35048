"""Weights that are no numbers are found in one call, by name, wherever they lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.model.tensorflow_process import in_tensorflow
from tests.train.learning import network, process_of_two_cpus, rows, two_cpus


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with process_of_two_cpus():
        yield


def hidden(weight: Any, value: float) -> Any:
    """The weight with that in its last place; returns what it was."""
    before = np.array(weight.numpy())
    spoilt = before.copy()
    spoilt.reshape(-1)[-1] = value
    weight.assign(spoilt)
    return before


@pytest.mark.parametrize("mirrored", [False, True])
@in_tensorflow
def test_the_first_weights_that_are_no_numbers_are_named(mirrored: bool) -> None:
    import contextlib

    import tensorflow as tf

    from penstock.train.soundness import Soundness

    two_cpus()
    devices = ["CPU:0", "CPU:1"]
    scope = tf.distribute.MirroredStrategy(devices).scope() if mirrored else None
    with scope or contextlib.nullcontext():
        model = network()
    soundness, weights = Soundness(), model.trainable_variables
    for _ in range(2):  # as it is looked first, and as it is looked from then on
        assert soundness.spoilt(soundness.look(weights)) is None
        for weight in weights:
            for value in (np.nan, np.inf, -np.inf):
                before = hidden(weight, value)
                assert soundness.spoilt(soundness.look(weights)) == weight.path
                weight.assign(before)
    kept = [hidden(weights[at], np.nan) for at in (3, 1)]
    assert soundness.spoilt(soundness.look(weights)) == weights[1].path
    weights[1].assign(kept[1])
    assert soundness.spoilt(soundness.look(weights)) == weights[3].path


@in_tensorflow
def test_all_are_looked_at_in_one_call_that_is_traced_once() -> None:
    from penstock.train.soundness import Soundness

    two_cpus()
    model = network()
    soundness, weights = Soundness(), model.trainable_variables
    found = [soundness.look(weights) for _ in range(4)]
    assert [each.shape for each in found] == [(4,)] * 4  # no more to wait for than that
    assert soundness._function.experimental_get_tracing_count() == 1
    function = soundness._function
    model.layers[0].trainable = False  # as callbacks do that let layers learn one after another
    weights = model.trainable_variables
    for _ in range(2):
        assert soundness.look(weights).shape == (2,)
    hidden(model.layers[0].kernel, np.nan)  # learns no more, and is not looked at
    assert soundness.spoilt(soundness.look(weights)) is None
    before = hidden(model.layers[1].bias, np.nan)
    assert soundness.spoilt(soundness.look(weights)) == model.layers[1].bias.path
    model.layers[1].bias.assign(before)
    assert soundness._function is not function
    assert soundness._function.experimental_get_tracing_count() == 1
    weights = []
    assert [soundness.spoilt(soundness.look(weights)) for _ in range(2)] == [None, None]


@in_tensorflow
def test_weights_that_are_whole_numbers_are_sound() -> None:
    import keras

    from penstock.train.soundness import Soundness

    two_cpus()
    kinds = ("int32", "float32", "bfloat16", "float16")
    weights = [keras.Variable(np.ones(3), dtype=kind, name=kind) for kind in kinds]

    soundness = Soundness()
    for _ in range(2):
        assert soundness.spoilt(soundness.look(weights)) is None
    for variable in reversed(weights[1:]):
        variable.assign(np.array([1, np.nan, 1], "float32"))
        assert soundness.spoilt(soundness.look(weights)) == variable.path


@in_tensorflow
def test_an_epoch_looks_once_before_anybody_waits() -> None:
    import penstock
    from penstock.train.loop import Loop
    from penstock.train.soundness import Soundness

    two_cpus()
    told: list[str] = []
    functions: list[Any] = []
    look, logs = Soundness.look, Loop._logs

    def looked(self: Any, weights: Any) -> Any:
        told.append("look")
        found = look(self, weights)
        functions.append(self._function)
        return found

    def waited(self: Any) -> Any:
        told.append("wait")
        return logs(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Soundness, "look", looked)
        patch.setattr(Loop, "_logs", waited)
        patch.setattr(Loop, "_look_now_and_then", lambda self: None)
        penstock.train.fit(network(), *rows(), batch_size=8, epochs=4, verbose=0)
    assert told == ["look", "wait"] * 4
    assert functions[0] is None  # who trains for an epoch traces nothing for it
    assert {id(each) for each in functions[1:]} == {id(functions[-1])}
    assert functions[-1].experimental_get_tracing_count() == 1
