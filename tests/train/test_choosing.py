"""Memory is measured without taking anything from the data that is to be trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.model.tensorflow_process import in_tensorflow
from tests.train.learning import furthest, network, process_of_two_cpus, rows, two_cpus


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with process_of_two_cpus():
        yield


class FakeMemory:
    """Of a device that holds three rows at a time."""

    rows = 0

    def limit(self) -> int:
        return 1000

    def held(self) -> int:
        return 100

    def forget(self) -> None:
        pass

    def peak(self) -> int:
        return 100 + 250 * self.rows


@in_tensorflow
def test_a_generator_still_has_all_of_its_rows_when_training_begins() -> None:
    import penstock
    from penstock.train import choosing

    two_cpus()
    x, y = rows()
    settings: dict[str, Any] = {"batch_size": 8, "verbose": 0}
    wanted = network("adam")
    wanted.fit(x, y, shuffle=False, **settings)
    device, cut = FakeMemory(), choosing._rows

    def counted(part: Any, size: int) -> Any:
        device.rows = size
        return cut(part, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "memory_of", lambda _: device)
        patch.setattr(choosing, "_rows", counted)
        batches = ((x[at : at + 5], y[at : at + 5]) for at in range(0, len(x), 5))
        got = penstock.train.fit(network("adam"), batches, micro_batch="auto", **settings)
    assert (got.report["micros"], got.report["steps"]) == (3, 5)
    assert furthest(got.model, wanted) < 2e-6


@pytest.mark.parametrize("kind", ["dense", "text", "of any width"])
@in_tensorflow
def test_an_element_is_read_where_zeros_would_not_do(kind: str) -> None:
    import tensorflow as tf

    from penstock.train.choosing import _example
    from penstock.train.feed import feed_for

    two_cpus()
    x = tf.constant(["a"] if kind == "text" else [[1.0, 2.0]])
    shape = {"dense": [None, 2], "text": [None], "of any width": [None, None]}[kind]
    read = []

    def batches() -> Any:
        read.append(kind)
        yield x, tf.constant([3])

    kinds = (tf.TensorSpec(shape, x.dtype), tf.TensorSpec([None], tf.int32))
    made = tf.data.Dataset.from_generator(batches, output_signature=kinds)
    feed = feed_for(made, batch_size=1, replicas=1, worker=(0, 1), micros=1, shuffle=False, seed=0)
    found = _example(feed.dataset(0))
    assert found[0].shape == x.shape
    assert (found[1].shape, found[1].dtype, found[2]) == ([1], tf.int32, None)
    assert bool(read) == (kind != "dense")
