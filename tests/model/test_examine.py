"""What is found out about a model: state, rows that depend on each other, samples, modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.errors import ModelLoadError
from tests.model.graphs import compiled, graph
from tests.model.networks import network
from tests.model.tensorflow_process import in_tensorflow


def _mean_over_rows(x: Any) -> Any:
    import tensorflow as tf

    return x - tf.reduce_mean(x, axis=0)


def _softmax_over_rows(x: Any) -> Any:
    import tensorflow as tf

    return tf.nn.softmax(x, axis=0)


def _neighbour(x: Any) -> Any:
    import tensorflow as tf

    return x + 1e-2 * tf.roll(x, 1, axis=0)


@pytest.mark.parametrize("call", [_mean_over_rows, _softmax_over_rows, _neighbour])
@in_tensorflow
def test_rows_that_influence_each_other_are_not_batched(call: Any) -> None:
    made = compiled(graph(call))
    assert not made.batched
    assert "a row's answer is another one among" in made.facts()["unbatched"]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    _, (output,) = made(x, 2)
    np.testing.assert_allclose(output, call(x), rtol=1e-5)
    assert made.padded(5) == 5


@in_tensorflow
def test_a_batch_norm_in_training_mode_is_not_batched_nor_tried() -> None:
    model = network("conv")
    before = [value.copy() for value in model.get_weights()]
    call = graph(
        lambda x: model(x, training=True), ("float32", (12, 12, 3)), ("float32", (3,)), keep=model
    )
    made = compiled(call)
    assert not made.batched
    assert "its graph changes variables" in made.facts()["unbatched"]
    assert "AssignVariableOp" in made.facts()["unbatched"]
    assert made.facts()["mode"] == "function"
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@in_tensorflow
def test_a_counter_counts_only_its_callers() -> None:
    import tensorflow as tf

    count = tf.Variable(0.0)
    made = compiled(graph(lambda x: x + count.assign_add(1.0), keep=count))
    assert not made.batched
    for wanted in (1.0, 2.0, 3.0):
        _, (output,) = made(np.zeros((2, 3), np.float32), 2)
        assert output[0, 0] == wanted
    with pytest.raises(ModelLoadError, match=r"'frozen' cannot be had.*changes variables"):
        compiled(graph(lambda x: x + count.assign_add(1.0), keep=count), compile="frozen")


@in_tensorflow
def test_random_numbers_are_not_batched() -> None:
    import tensorflow as tf

    made = compiled(graph(lambda x: x + tf.random.uniform(tf.shape(x))))
    assert "draws random numbers" in made.facts()["unbatched"]
    inner = tf.function(lambda x: x + tf.random.normal(tf.shape(x)))
    made = compiled(graph(lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: inner(x), lambda: x)))
    assert "RandomStandardNormal" in made.facts()["unbatched"]


@in_tensorflow
def test_a_reason_of_the_loaders_is_passed_on() -> None:
    made = compiled(graph(lambda x: x, stateful="it says so itself"))
    assert made.facts()["unbatched"] == "it says so itself"
    made = compiled(graph(lambda x: x), batched=False)
    assert "batched=False" in made.facts()["unbatched"]


@in_tensorflow
def test_indices_of_small_tables_are_made_up_small_enough() -> None:
    import tensorflow as tf

    table = tf.constant(np.arange(6, dtype=np.float32).reshape(2, 3))
    for dtype in ("int32", "int64", "uint8"):
        call = graph(lambda x: tf.gather(table, tf.cast(x, tf.int32)), (dtype, ()))
        assert compiled(call, compile="frozen").facts()["notes"] == []


@in_tensorflow
def test_encoded_images_are_made_up() -> None:
    import tensorflow as tf

    def decode(image: Any) -> Any:
        return tf.reduce_mean(tf.cast(tf.io.decode_image(image), tf.float32))

    call = graph(
        lambda x: tf.map_fn(decode, x, fn_output_signature=tf.float32),
        ("string", ()),
        ("float32", ()),
    )
    made = compiled(call)
    assert made.facts()["latency"].keys() == {"1", "32"}
    assert made.facts()["notes"] == ["XLA was not tried: it knows no strings"]
    assert made.batched


@in_tensorflow
def test_a_model_that_takes_nothing_that_we_can_make_up_is_trusted() -> None:
    import tensorflow as tf

    call = graph(
        lambda x: tf.strings.to_number(tf.strings.substr(x, 100, 1))[:, None] * tf.ones(3),
        ("string", ()),
    )
    made = compiled(call)
    facts = made.facts()
    assert facts["mode"] == "frozen"
    assert facts["latency"] == {}
    assert "rows not checked for independence: the model takes none" in facts["notes"][0]
    assert made.batched
    given = np.array([b"x" * 100 + b"7"] * 2, object)
    assert made(given, 2)[1][0].tolist() == [[7.0] * 3] * 2


def rows_of_the_users() -> Any:
    return np.array([b"x" * 100 + b"7", b"x" * 100 + b"8"], object)


def rows_that_do_not_fit() -> Any:
    return np.zeros((2, 4), np.float32)


def no_rows() -> Any:
    return np.zeros((0, 3), np.float32)


@in_tensorflow
def test_samples_of_the_users() -> None:
    import tensorflow as tf

    call = graph(
        lambda x: tf.strings.to_number(tf.strings.substr(x, 100, 1))[:, None] * tf.ones(3),
        ("string", ()),
    )
    made = compiled(call, sample=f"{__name__}:rows_of_the_users")
    assert made.facts()["latency"].keys() == {"1", "32"}
    plain = graph(lambda x: x)
    with pytest.raises(
        ModelLoadError, match=r"sample '.*rows_that_do_not_fit': .*expected float32"
    ):
        compiled(plain, sample=f"{__name__}:rows_that_do_not_fit")
    with pytest.raises(ModelLoadError, match="it has no rows"):
        compiled(plain, sample=f"{__name__}:no_rows")
    with pytest.raises(ModelLoadError, match="has no 'absent'"):
        compiled(plain, sample=f"{__name__}:absent")
    with pytest.raises(ModelLoadError, match="out of range"):
        compiled(call, sample=f"{__name__}:bad_words")


def bad_words() -> Any:
    return np.array([b"x", b"y"], object)


@in_tensorflow
def test_strings_are_kept_away_from_xla_which_would_abort_the_process() -> None:
    import tensorflow as tf

    call = graph(lambda x: tf.strings.length(x), ("string", ()), ("int32", ()))
    assert compiled(call).facts()["mode"] in ("frozen", "function")
    for mode in ("xla", "frozen-xla"):
        with pytest.raises(ModelLoadError, match=rf"'{mode}' cannot be had: it computes with str"):
            compiled(call, compile=mode)


@in_tensorflow
def test_what_xla_would_not_raise_is_known() -> None:
    import tensorflow as tf

    checked = graph(lambda x: tf.debugging.check_numerics(x, "not a number"))
    assert (
        "XLA was not tried: it would drop the model's own checks (Assert)"
        in (compiled(checked, max_batch=2).facts()["notes"])
    )
    table = tf.constant(np.arange(6, dtype=np.float32).reshape(2, 3))
    lookup = graph(lambda x: tf.gather(table, x), ("int32", ()))
    facts = compiled(lookup, max_batch=2, compile="xla").facts()
    assert facts["notes"] == ["with XLA, an index outside of a table is not an error"]


@in_tensorflow
def test_a_mode_that_raises_is_told_and_not_taken() -> None:
    import keras

    numbers = keras.Input((2,), dtype="int64", name="number")
    model = keras.Model(numbers, keras.layers.IntegerLookup(vocabulary=[1, 0])(numbers))
    call = graph(lambda x: model(x, training=False), ("int64", (2,)), ("int64", (2,)), keep=model)
    facts = compiled(call, max_batch=2).facts()
    assert facts["mode"] in ("function", "frozen")
    assert "LookupTableFindV2" in facts["modes"]["frozen-xla"] + facts["modes"]["xla"]
    with pytest.raises(ModelLoadError, match=r"compile='xla' cannot be had: .*unsupported op"):
        compiled(call, compile="xla")


@in_tensorflow
def test_half_precision_is_compared_less_strictly() -> None:
    import tensorflow as tf

    from penstock.model.operations import Operations

    half = tf.function(lambda x: tf.cast(tf.cast(x, tf.float16) * 3, tf.float32))
    full = tf.function(lambda x: x * 3)
    for function, is_half in ((half, True), (full, False)):
        concrete = function.get_concrete_function(tf.TensorSpec((None, 3)))
        assert Operations(concrete).has_half_precision() == is_half
        assert Operations(concrete).hidden_state() == ""


@in_tensorflow
def test_a_mode_that_differs_is_told_and_not_taken() -> None:
    """Traced, this graph answers something else than uncompiled: so no mode agrees."""
    import tensorflow as tf

    call = graph(lambda x: x if tf.executing_eagerly() else x * 2)
    facts = compiled(call).facts()
    assert facts["mode"] == "function"
    assert "no mode's answers agree with the plain model's" in facts["notes"]
    assert facts["modes"]["frozen"].startswith("wrong at 1 rows")
    with pytest.raises(ModelLoadError, match=r"compile='frozen' cannot be had: wrong at 1 rows"):
        compiled(call, compile="frozen")
    assert compiled(call, compile="frozen", tolerance=1.0).facts()["mode"] == "frozen"
