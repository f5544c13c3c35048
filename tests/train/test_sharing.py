"""Parts of data that workers read: the chief's steps, taken by a reader in this process."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import ConfigError, InputError, WorkerLost
from tests.model import tensorflow_process
from tests.model.tensorflow_process import in_tensorflow


@pytest.fixture(scope="module", autouse=True)
def _tensorflow_process_ends() -> Iterator[None]:
    yield
    tensorflow_process.end()


def shared(policy: str, data: Any, at_once: int = 3, timeout: float = 0.2) -> tuple[Any, Any]:
    """Two parts, of which worker 0 alone reads; and a function that takes a step."""
    import tensorflow as tf

    from penstock.train.cluster import Cluster
    from penstock.train.feed import feed_for
    from penstock.train.reading import Asked, Reader, spec_of
    from penstock.train.sharing import Own

    whole = feed_for(numbers(4), batch_size=2).dataset(0)
    reader = Reader(0)
    reader.give((data, None, None), None)
    reader.attach()

    def round(function: Any, arguments: Any, most: int | None) -> list[Any]:
        count = at_once if most is None else min(at_once, most)
        returned = [function(*arguments) for _ in range(count)]
        return [types.SimpleNamespace(fetch=each.numpy) for each in returned]

    patience = types.SimpleNamespace(watching=contextlib.nullcontext)
    steps: Any = types.SimpleNamespace(patience=patience, round=round)
    nobody = Cluster(("127.0.0.1:1", "127.0.0.1:2"), ("127.0.0.1:3",), "127.0.0.1:4", "chief")
    asked = Asked("training", policy, 2, 2, 1, False, 0, spec_of(whole))
    spec = whole.element_spec[:3]
    own = Own(asked, spec, tf.distribute.get_strategy(), steps, nobody, timeout)
    taken = tf.Variable(0, dtype=tf.int64)
    function = tf.function(
        lambda *given: own.run(lambda pieces: taken.assign_add(sum_of(pieces)), *given),
        autograph=False,
    )
    return own, (function, taken)


def to_the_end(own: Any, function: Any) -> None:
    while not own.over:
        own.round(function)


def sum_of(pieces: Any) -> Any:
    import tensorflow as tf

    ((_, y, _, _),) = pieces
    return tf.reduce_sum(y)


def numbers(count: int) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.range(count).map(lambda n: (n, n)).batch(2)


@in_tensorflow
def test_a_tensorflow_that_calls_python_otherwise_leaves_reading_to_the_chief() -> None:
    from tensorflow.python.ops import script_ops

    from penstock.train.cluster import Cluster
    from penstock.train.coordinating import Coordinated
    from penstock.train.feed import feed_for
    from penstock.train.options import asked
    from penstock.train.reading import Reader
    from tests.train.learning import network

    cluster = Cluster(("127.0.0.1:1",), ("127.0.0.1:3",), "127.0.0.1:4", "chief")
    coordinator: Any = types.SimpleNamespace(strategy=None)
    data = numbers(7)

    def policy(shard: str) -> str:
        options = asked({}, shard=shard)
        run = Coordinated(network(), coordinator, cluster, options, patience=None)  # type: ignore[arg-type]
        run._seed = 0
        return run._rows((data, None, None), feed_for(data), "training").policy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script_ops, "_py_funcs", object())
        Reader(0).attach()
        assert policy("auto") == policy("chief") == "chief"
        with pytest.raises(ConfigError, match=r'shard="data".*TensorFlow 2.*say shard="chief"'):
            policy("data")


@in_tensorflow
def test_a_step_without_rows_changes_nothing_and_a_part_of_nobody_is_given_up() -> None:
    own, (function, taken) = shared("off", numbers(7))
    own.begin(0)
    with pytest.raises(WorkerLost, match=r"no worker read on in part \[1\].*127.0.0.1:2"):
        to_the_end(own, function)
    assert (own.steps, own.rows, int(taken)) == (4, 7, sum(range(7)))
    assert own.at.tolist() == [[4, 0], [7, 0], [1, 0], [0, 0]]


@in_tensorflow
def test_a_round_ends_where_a_checkpoint_is_due_and_an_epoch_is_taken_up_from_it() -> None:
    own, (function, taken) = shared("off", numbers(8), at_once=9)
    own.begin(0)
    own.round(function, 1)
    assert (own.steps, int(taken)) == (1, 0 + 1)
    own.begin(0, own.at.tolist())
    own.round(function, 2)
    assert (own.steps, int(taken)) == (3, sum(range(6)))


@in_tensorflow
def test_what_differs_between_workers_is_told_and_so_is_what_cannot_be_read() -> None:
    own, (function, _) = shared("data", numbers(8))
    own.begin(0, [[4, 2], [8, 4], [1, 1], [0, 0]])
    assert own.over
    with pytest.raises(ConfigError, match=r"must be given the same data.*\[4, 2\] batches"):
        own.check_ends()
    for fine in ([3, 3], [4, 3]):
        own.begin(0, [fine, [0, 0], [1, 1], [0, 0]])
        own.check_ends()
    own, (function, _) = shared("off", numbers(8).map(lambda x, y: (x, float(y))))
    own.begin(0)
    with pytest.raises(InputError, match=r"could not be read on worker 0: InputError: expected"):
        own.round(function)


@in_tensorflow
def test_what_a_model_with_tables_trains_on_the_chief_reads() -> None:
    """Tables of servers are not found within the branch of a worker's own rows."""
    import keras
    import tensorflow as tf

    from penstock.train.coordinating import Coordinated
    from penstock.train.feed import feed_for
    from penstock.train.options import Options

    words = tf.data.Dataset.from_tensor_slices((["a", "b"] * 4, range(8))).batch(2)
    text = keras.layers.TextVectorization(vocabulary=["a"])
    for layer, asked, expected in (
        (text, "auto", "Carried"),
        (keras.layers.StringLookup(vocabulary=["a"]), "auto", "Carried"),
        (keras.layers.Identity(), "auto", "Own"),
        (text, "data", "a model without tables"),
    ):
        run = object.__new__(Coordinated)
        run._model, run._first, run._seed = keras.Sequential([layer]), True, 0
        run._options, run._coordinator, run._handed = Options(shard=asked), None, None
        run._strategy = tf.distribute.get_strategy()
        run._found = types.SimpleNamespace(size=2)
        feed = feed_for(words)
        if asked == "auto":
            assert type(run._rows((words, None, None), feed, "training")).__name__ == expected
        else:
            with pytest.raises(ConfigError, match=expected):
                run._rows((words, None, None), feed, "training")
