"""Compiled models at work: the same answers in any company, and at any size."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from penstock.errors import ModelError
from penstock.spec import TensorSpec
from penstock.transport.tensors import address_of
from tests.model.graphs import aligned, answer, compiled, compiled_network, graph
from tests.model.networks import rows_for
from tests.model.tensorflow_process import in_tensorflow

KINDS = ["dense", "conv", "recurrent", "attention", "two"]


def _direct(model: Any, rows: dict[str, Any]) -> dict[str, Any]:
    wanted = model(rows if len(rows) > 1 else next(iter(rows.values())), training=False)
    if not isinstance(wanted, dict):
        wanted = {"": wanted}
    return {name: np.asarray(value) for name, value in wanted.items()}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(kind, {"compile": "frozen", "ladder": (1, 4, 8), "max_batch": 8}) for kind in KINDS]
    + [(kind, {"compile": "function", "max_batch": 8}) for kind in KINDS]
    + [("attention", {"compile": "frozen-xla", "ladder": (2, 8), "max_batch": 8})],
)
@in_tensorflow
def test_a_row_is_answered_alike_alone_among_others_and_padded(
    kind: str, settings: dict[str, Any]
) -> None:
    model, made = compiled_network(kind, **settings)
    made.warm_up()
    rows = rows_for(kind, 8)
    wanted = _direct(model, rows)
    for chosen in ([0], [3], [0, 1, 2], [2, 1, 0], [5, 0, 5, 0, 5], [7, 6, 5, 4, 3, 2, 1, 0]):
        got = answer(made, {name: value[chosen] for name, value in rows.items()})
        assert got.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_allclose(got[name], value[chosen], rtol=1e-4, atol=1e-5)
            assert got[name].flags.c_contiguous
    assert made.batched


@in_tensorflow
def test_a_network_is_measured_and_the_winner_taken() -> None:
    model, made = compiled_network("dense", max_batch=4)
    facts = made.facts()
    times = {mode: told for mode, told in facts["modes"].items() if isinstance(told, dict)}
    assert facts["mode"] in times
    assert "function" in times
    assert all(told.keys() == {"1", "4"} for told in times.values())
    assert facts["latency"].keys() == {"1", "4"}
    assert facts["unbatched"] == ""
    assert not facts["cached"]
    assert made.warm_up()
    assert made.facts()["latency"].keys() == {"1", "2", "4"}
    assert not made.warm_up()
    rows = rows_for("dense")
    np.testing.assert_allclose(answer(made, rows)[""], _direct(model, rows)[""], rtol=1e-4)


@in_tensorflow
def test_sizes_are_padded_where_they_are_compiled() -> None:
    made = compiled(graph(lambda x: x * 2), compile="xla", max_batch=24)
    assert made.facts()["ladder"] == [1, 24]
    assert [made.padded(rows) for rows in (1, 2, 9, 24)] == [1, 24, 24, 24]
    assert made.warm_up()
    assert made.facts()["ladder"] == [1, 2, 4, 8, 16, 24]
    assert [made.padded(rows) for rows in (0, 1, 2, 3, 9, 17, 24, 25)] == [
        0,
        1,
        2,
        4,
        16,
        24,
        24,
        25,
    ]
    x = np.arange(27, dtype=np.float32).reshape(9, 3)
    _, (output,) = made(x, 9)
    np.testing.assert_array_equal(output, x * 2)


@in_tensorflow
def test_the_largest_size_alone_is_made_ready_where_the_settings_say_so() -> None:
    call = graph(lambda x: x * 2)
    for settings in ({"compile": "xla"}, {"compile": "frozen", "ladder": (2, 8)}):
        made = compiled(call, max_batch=24, warm="largest", **settings)
        assert made.facts()["ladder"] == [24]
        assert not made.warm_up()
        assert made.facts()["ladder"] == made.facts()["rungs"] == [24]
        assert [made.padded(rows) for rows in (1, 9, 24)] == [24, 24, 24]
        x = np.arange(27, dtype=np.float32).reshape(9, 3)
        _, (output,) = made(x, 9)
        np.testing.assert_array_equal(output, x * 2)


@in_tensorflow
def test_sizes_are_padded_where_the_settings_say_so_and_else_not() -> None:
    import tensorflow as tf

    call = graph(lambda x: x + tf.cast(tf.shape(x)[0], tf.float32) * 1e-9)
    named = compiled(call, compile="frozen", ladder=(2, 4), max_batch=8)
    named.warm_up()
    assert named.facts()["ladder"] == [2, 4, 8]
    assert [named.padded(rows) for rows in (1, 3, 5)] == [2, 4, 8]
    any_size = compiled(call, compile="frozen", max_batch=8)
    assert any_size.facts()["ladder"] == []
    assert [any_size.padded(rows) for rows in (1, 3, 5)] == [1, 3, 5]


@in_tensorflow
def test_batches_are_served_while_sizes_are_warmed_up() -> None:
    made = compiled(graph(lambda x: x * 2), compile="xla", max_batch=64)
    thread = threading.Thread(target=made.warm_up)
    thread.start()
    served = 0
    while thread.is_alive() or served < 10:
        rows = served % 64 + 1
        x = np.full((rows, 3), served, np.float32)
        size = made.padded(rows)
        assert size >= rows
        _, (output,) = made(np.concatenate([x, x[:1].repeat(size - rows, 0)]), size)
        assert output.tolist() == [[served * 2.0] * 3] * size
        served += 1
    thread.join()
    assert made.padded(3) == 4


@in_tensorflow
def test_the_batch_buffer_goes_in_and_comes_out_without_a_copy() -> None:
    import tensorflow as tf

    made = compiled(graph(tf.identity), compile="function")
    buffer = aligned(np.arange(96, dtype=np.float32).reshape(32, 3))
    _, (output,) = made(buffer[:8], 8)
    assert address_of(output) == address_of(buffer)
    buffer[0, 0] = 77.0
    assert output[0, 0] == 77.0  # so it is to be read before the next batch is gathered


@in_tensorflow
def test_inputs_come_by_name_in_any_order() -> None:
    model, made = compiled_network("two", compile="function")
    rows = rows_for("two", 3)
    wanted = _direct(model, rows)
    for names in (["left", "right"], ["right", "left"]):
        got = answer(made, {name: rows[name] for name in names})
        for name, value in wanted.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-5)


@in_tensorflow
def test_no_rows_are_answered_with_no_rows() -> None:
    import tensorflow as tf

    nothing = np.empty((0, 3), np.float32)
    for settings in ({"compile": "frozen"}, {"compile": "xla"}, {"batched": False}):
        made = compiled(graph(lambda x: tf.reshape(x, [-1, 3]) * 2), max_batch=2, **settings)
        signature, (output,) = made(nothing, 0)
        assert output.shape == (0, 3)
        assert signature == (TensorSpec("float32", (3,)),)
    open_sizes = graph(
        lambda x: tf.repeat(x, 2, axis=1), ("float32", (None,)), ("float32", (None,))
    )
    for settings in ({"compile": "frozen"}, {"compile": "frozen", "ladder": (1, 2)}):
        made = compiled(open_sizes, max_batch=2, **settings)
        signature, (output,) = made(nothing, 0)
        assert output.shape == (0, 6)
        assert signature == (TensorSpec("float32", (6,)),)


@in_tensorflow
def test_strings_in_and_out() -> None:
    import tensorflow as tf

    made = compiled(graph(tf.strings.upper, ("string", (2,)), ("string", (2,))), max_batch=4)
    words = np.array([[b"one", b""], [b"two\0", b"x" * 100]], object)
    signature, (output,) = made(words, 2)
    assert signature == (TensorSpec("string", (2,)),)
    assert output.tolist() == [[b"ONE", b""], [b"TWO\0", b"X" * 100]]
    assert made(words[:0], 0)[1][0].dtype == object


@in_tensorflow
def test_open_sizes_of_inputs() -> None:
    model, made = compiled_network("recurrent", max_batch=4)
    assert "XLA was not tried: it would compile for every new size" in made.facts()["notes"]
    for length in (1, 7, 3):
        rows = {"sequence": rows_for("recurrent", 3)["sequence"][:, :length]}
        np.testing.assert_allclose(answer(made, rows)[""], _direct(model, rows)[""], rtol=1e-4)
    call = graph(lambda x: x * 2, ("float32", (None,)), ("float32", (None,)))
    explicit = compiled(call, max_batch=4, compile="xla")
    for length in (5, 2):
        _, (output,) = explicit(np.ones((3, length), np.float32), 3)
        assert output.tolist() == [[2.0] * length] * 3


@in_tensorflow
def test_what_a_model_should_not_return() -> None:
    import tensorflow as tf

    fewer = compiled(graph(lambda x: x[:1], outputs=("float32", (3,))), batched=False)
    with pytest.raises(ModelError, match=r"expected 4 rows, as many as came in, got 1"):
        fewer(np.ones((4, 3), np.float32), 4)
    other = compiled(graph(lambda x: tf.cast(x, tf.int32)), batched=False)
    with pytest.raises(ModelError, match="the model declares float32"):
        other(np.ones((4, 3), np.float32), 4)


@in_tensorflow
def test_what_a_model_raises_comes_through() -> None:
    import tensorflow as tf

    def checked(x: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_non_negative(x, "negative!")]):
            return tf.identity(x)

    made = compiled(graph(checked), compile="frozen")
    with pytest.raises(tf.errors.InvalidArgumentError, match="negative!") as raised:
        made(-np.ones((2, 3), np.float32), 2)
    assert "StatefulPartitionedCall" not in str(raised.value)
    assert "function_node" not in str(raised.value)
    assert made(np.ones((2, 3), np.float32), 2)[1][0].tolist() == [[1.0] * 3] * 2
