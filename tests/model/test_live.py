"""A Keras model of the caller's own process, on its way to a worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.config import Model, models_of
from penstock.errors import ConfigError, ModelLoadError
from penstock.model.live import archived, in_memory
from tests.conditions import descriptors
from tests.model.networks import answers, close, graph_of, network, rows_for
from tests.model.tensorflow_process import in_tensorflow


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize("kind", ["dense", "conv", "two"])
@in_tensorflow
def test_what_is_written_can_be_read_again_and_again(kind: str, library: str) -> None:
    import tf_keras

    from penstock.model.assemble import assemble

    live = network(kind, tf_keras if library == "tf_keras" else None)
    rows = rows_for(kind)
    wanted = live(rows if len(rows) > 1 else next(iter(rows.values())), training=False)
    open_before = descriptors()
    with archived([Model(live, name="mine"), Model("some:function")]) as (models, numbers):
        assert list(numbers) == ["model:mine"]
        assert models[0].name == "mine"
        assert in_memory(str(models[0].source))
        assert models[1].source == "some:function"
        for _ in range(2):
            graph = assemble(models[0], models[0].source)
            got = answers(graph, rows)
            for name in wanted if isinstance(wanted, dict) else [None]:
                close(got if name is None else got[name], wanted if name is None else wanted[name])
        assert graph.key
    assert descriptors() == open_before


@in_tensorflow
def test_the_same_model_has_the_same_key_in_a_file(tmp_path: Any) -> None:
    from penstock.model.assemble import assemble

    live = network("dense")
    live.save(tmp_path / "net.keras")
    with archived([Model(live)]) as (models, _):
        key = assemble(models[0], models[0].source).key
    assert key == graph_of(Model(tmp_path / "net.keras")).key


@in_tensorflow
def test_models_are_recognized_and_named() -> None:
    import keras
    import tf_keras

    assert Model(keras.Sequential(name="score_it")).name == "score_it"
    assert Model(keras.Sequential(name="a b+c")).name == "a-b-c"
    assert Model(tf_keras.Sequential(name="old")).name == "old"
    live = network("dense")
    assert [model.name for model in models_of({"a": live, "b": live})] == ["a", "b"]
    assert models_of({"a": Model(live, max_batch=3)})[0].max_batch == 3
    for other in (keras.layers.Dense(3), object()):
        with pytest.raises(ConfigError, match="a text, a function or a Keras model"):
            Model(other)


@in_tensorflow
def test_functions_of_tensorflow_cannot_be_sent() -> None:
    import tensorflow as tf

    with pytest.raises(ConfigError):
        Model(tf.function(lambda x: x))


@in_tensorflow
def test_what_cannot_travel_is_refused_with_advice() -> None:
    import keras

    class Mine(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x

    class Stubborn(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x

        def get_config(self) -> Any:
            raise NotImplementedError("no config")

    given = keras.Input((3,))
    refused = [
        (keras.Sequential([given, Mine()]), r"classes of yours \(.*Mine\).*module:function"),
        (keras.Sequential([given, Stubborn()]), r"cannot be saved.*no config.*module:function"),
        (
            keras.Sequential([given, keras.layers.Lambda(lambda x: x)]),
            r"Lambda layer.*module:function.*unsafe=True",
        ),
        (keras.Sequential([keras.layers.Dense(3)]), "no weights yet"),
    ]
    before = descriptors()
    for live, complaint in refused:
        with pytest.raises(ModelLoadError, match=complaint), archived([Model(live)]):
            pass
    assert descriptors() == before


@in_tensorflow
def test_a_lambda_travels_when_that_is_allowed() -> None:
    import keras

    from penstock.model.assemble import assemble

    layers = [keras.Input((3,)), keras.layers.Lambda(lambda x: x * 2.0)]
    live = keras.Sequential(layers)
    x = np.ones((2, 3), np.float32)
    with archived([Model(live, unsafe=True)]) as (models, _):
        close(answers(assemble(models[0], models[0].source), x), 2 * x)


@in_tensorflow
def test_losses_of_the_users_stay_behind() -> None:
    """What a model was compiled with is for training: it is not loaded, and not looked at."""
    import keras

    from penstock.model.assemble import assemble

    live = network("dense")
    live.compile("adam", loss=lambda wanted, got: keras.ops.mean(got - wanted))
    x = rows_for("dense")["vector"]
    live.fit(x, np.zeros((5, 3)), verbose=0)
    with archived([Model(live)]) as (models, _):
        close(answers(assemble(models[0], models[0].source), x), live(x))


def test_without_keras_nothing_is_archived() -> None:
    with archived([Model("some:function")]) as (models, numbers):
        assert numbers == {}
        assert models == (Model("some:function"),)
