"""The next epoch's data is begun before this one's end is told, where nobody can tell by it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.model.tensorflow_process import in_tensorflow
from tests.train.learning import furthest, network, process_of_two_cpus, rows, two_cpus

_SETTINGS: dict[str, Any] = {"batch_size": 8, "verbose": 0, "seed": 5}


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with process_of_two_cpus():
        yield


class Ended(Exception):
    """What a callback raises."""


def listening(told: list[Any], stops_after: int | None = None, raises: bool = False) -> Any:
    """A callback that hears of epochs, and may end training with one."""
    import keras

    class Listens(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            told.append(("starts", epoch))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            told.append(("ended", epoch))
            if epoch == stops_after and raises:
                raise Ended
            self.model.stop_training = epoch == stops_after

    return Listens()


@contextlib.contextmanager
def noticing(told: list[Any], iterators: list[Any]) -> Iterator[None]:
    """Which epochs' training data is begun, among what is told; iterators are not kept alive."""
    from penstock.train import intake, loop

    def begun(feed: Any, place: Any, epoch: int, start: int = 0) -> Any:
        iterator = intake_of(feed, place, epoch, start)
        told.append(("begun", epoch))
        iterators.append(weakref.ref(iterator))
        return iterator

    intake_of = intake.iterator_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intake, "iterator_of", begun)
        patch.setattr(loop, "iterator_of", begun)
        yield


AHEAD = [
    *(("starts", 0), ("begun", 0), ("begun", 1), ("ended", 0)),
    *(("starts", 1), ("begun", 2), ("ended", 1), ("starts", 2), ("ended", 2)),
]
IN_TIME = [(what, epoch) for epoch in range(3) for what in ("starts", "begun", "ended")]


@pytest.mark.parametrize("strategy", ["one", "mirrored"])
@in_tensorflow
def test_arrays_are_begun_before_the_end_of_an_epoch_is_told(strategy: str) -> None:
    import penstock

    two_cpus()
    told: list[Any] = []
    iterators: list[Any] = []
    options = {**_SETTINGS, "epochs": 3, "strategy": strategy, "callbacks": [listening(told)]}
    with noticing(told, iterators):
        penstock.train.fit(network(), *rows(), **options)
    assert told == AHEAD  # and nothing for an epoch that does not come


@in_tensorflow
def test_what_may_notice_is_begun_when_its_epoch_is() -> None:
    import keras
    import tensorflow as tf

    import penstock

    two_cpus()
    x, y = rows(16)

    class Ends(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, at: int) -> Any:
            return x[8 * at : 8 * at + 8], y[8 * at : 8 * at + 8]

        def on_epoch_end(self) -> None:
            """Something that the next epoch depends on."""

    def batches() -> Iterator[Any]:
        yield x, y

    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    for data in (Ends(), batches, dataset):
        told: list[Any] = []
        with noticing(told, []):
            penstock.train.fit(network(), data, **_SETTINGS, epochs=3, callbacks=[listening(told)])
        assert told == IN_TIME, data


@in_tensorflow
def test_validation_has_the_memory_for_itself() -> None:
    import penstock
    from penstock.train.validation import Validation

    two_cpus()
    told: list[Any] = []
    validate = Validation.__call__

    def validated(self: Any) -> Any:
        logs = validate(self)
        told.append(("validated", None))
        return logs

    with noticing(told, []), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Validation, "__call__", validated)
        penstock.train.fit(
            network(),
            *rows(),
            **_SETTINGS,
            epochs=3,
            validation_data=rows(9),
            validation_freq=2,
            callbacks=[listening(told)],
        )
    assert told == [*AHEAD[:5], ("validated", None), *AHEAD[5:]]


@pytest.mark.parametrize(
    ("strategy", "raises"), [("one", False), ("one", True), ("mirrored", True)]
)
@in_tensorflow
def test_what_nobody_takes_is_dropped_when_training_ends(strategy: str, raises: bool) -> None:
    import gc

    import penstock

    two_cpus()
    told: list[Any] = []
    iterators: list[Any] = []
    last = listening(told, 1, raises)
    options = {**_SETTINGS, "epochs": 4, "strategy": strategy, "callbacks": [last]}
    expected = pytest.raises(Ended) if raises else contextlib.nullcontext()
    with noticing(told, iterators), expected as caught:
        penstock.train.fit(network(), *rows(), **options)
    assert told[-2:] == [("begun", 2), ("ended", 1)]
    if strategy == "mirrored":
        gc.collect()  # what is distributed refers to itself
    assert [each() for each in iterators] == [None] * 3
    assert caught is None or caught.type is Ended  # whose frames are alive until here


@in_tensorflow
def test_only_what_was_begun_of_the_same_feed_epoch_and_step_is_taken() -> None:
    import dataclasses

    from penstock.train import strategies
    from penstock.train.feed import feed_for
    from penstock.train.intake import Ahead

    two_cpus()
    place = strategies.place("one")
    feed = feed_for(*rows(), batch_size=8, seed=1)
    others = [(feed.recut(2), 1, 0), (dataclasses.replace(feed), 1, 0), (feed, 2, 0), (feed, 1, 3)]
    for wanted, epoch, start in others:
        ahead = Ahead()
        ahead.begin(feed, place, 1)
        assert ahead.taken(wanted, epoch, start) is None
        assert ahead.taken(feed, 1, 0) is None  # that one is gone
    ahead = Ahead()
    assert ahead.taken(feed, 1, 0) is None
    ahead.begin(feed, place, 1)
    begun = ahead.taken(feed, 1, 0)
    np.testing.assert_array_equal(next(begun)[0], next(iter(feed.dataset(1)))[0])
    assert ahead.taken(feed, 1, 0) is None


@in_tensorflow
def test_workers_with_arrays_of_their_own_begin_nothing_ahead() -> None:
    """They count what was made ready before padding: of one epoch at a time."""
    from penstock.train.feed import feed_for

    two_cpus()
    for shard, policy, ahead in (("auto", "rows", True), ("off", "off", False)):
        feed = feed_for(*rows(), batch_size=8, worker=(0, 2), shard=shard)
        assert (feed.policy, feed.begins_ahead) == (policy, ahead)


@pytest.mark.parametrize("failing", [5, 9, 10])  # of five steps an epoch the first, last and first
@in_tensorflow
def test_a_step_that_runs_out_of_memory_goes_on_with_the_same_rows(failing: int) -> None:
    import tensorflow as tf

    import penstock
    from penstock.train.step import TrainStep

    two_cpus()
    options = {**_SETTINGS, "epochs": 3}
    wanted = penstock.train.fit(network("adam"), *rows(), **options)
    take, taken = TrainStep.__call__, []

    def short_of_memory(self: Any, iterator: Any) -> Any:
        if len(taken) == failing and self._micros < 2:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating a tensor")
        taken.append(self._micros)
        return take(self, iterator)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainStep, "__call__", short_of_memory)
        got = penstock.train.fit(network("adam"), *rows(), **options)
    assert taken == [1] * failing + [2] * (15 - failing)
    assert furthest(got.model, wanted.model) < 2e-6
    np.testing.assert_allclose(got.history["loss"], wanted.history["loss"], rtol=1e-5)


@pytest.mark.parametrize("strategy", ["one", "copied", "mirrored"])
@in_tensorflow
def test_every_epoch_has_the_rows_of_its_own_order(strategy: str) -> None:
    """Also that to which Keras' BackupAndRestore, or whoever does the same, has gone on."""
    import keras

    import penstock
    from penstock.train import strategies

    two_cpus()
    x, y = rows()

    class GoesOn(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            self.model._initial_epoch = 2

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model._initial_epoch = 0  # too late for this run

    for first, callbacks in ((0, []), (2, [GoesOn()])):
        reference = network("adam")
        for epoch in range(first, 5):
            order = np.random.Generator(np.random.PCG64([5, epoch])).permutation(len(x))
            for at in range(0, len(x), 8):
                reference.train_on_batch(x[order[at : at + 8]], y[order[at : at + 8]])
        with pytest.MonkeyPatch.context() as patch:
            if strategy == "copied":
                patch.setattr(strategies, "_ahead", lambda: "/cpu:0")
            got = penstock.train.fit(
                network("adam"),
                *(x, y),
                **_SETTINGS,
                epochs=5,
                callbacks=callbacks,
                strategy="one" if strategy == "copied" else strategy,
            )
        assert got.epoch == [*range(first, 5)]
        assert furthest(got.model, reference) < 2e-6


@in_tensorflow
def test_an_iterators_end_waits_for_nothing() -> None:
    """TensorFlow's thread that tunes it sleeps for longer and longer, and is waited for."""
    from penstock.train import strategies
    from penstock.train.feed import feed_for
    from penstock.train.intake import iterator_of

    two_cpus()
    feed = feed_for(*rows(), batch_size=8)
    with pytest.MonkeyPatch.context() as patch:
        for device in (None, "/cpu:0"):
            patch.setattr(strategies, "_ahead", lambda device=device: device)
            options = iterator_of(feed, strategies.place("one"), 0)._dataset.options()
            assert options.autotune.enabled is False
