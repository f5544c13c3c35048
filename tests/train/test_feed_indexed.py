"""`PyDataset`s hear of epochs as from Keras, whoever reads them and from where on."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import InputError
from penstock.train.feed import feed_for
from tests.model.tensorflow_process import in_tensorflow
from tests.train.learning import furthest, network, process_of_two_cpus, rows, two_cpus


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with process_of_two_cpus():
        yield


def hearing(name: str, told: list[str], counts: int | None = 3, has_length: bool = True) -> Any:
    """A `PyDataset` that tells of its hooks, each of which changes its rows where they lie."""
    import keras

    x, y = rows(24)

    class Hears(keras.utils.PyDataset):  # type: ignore[misc]
        if has_length:

            def __len__(self) -> int:
                return 3
        else:

            @property
            def num_batches(self) -> int | None:
                return counts

        def __getitem__(self, at: int) -> Any:
            told.append(f"{name} {at}")
            return x[8 * at : 8 * at + 8], y[8 * at : 8 * at + 8]

        def on_epoch_begin(self) -> None:
            told.append(f"{name} begins")
            x[:] *= 0.5

        def on_epoch_end(self) -> None:
            told.append(f"{name} ends")
            if told.count(f"{name} begins"):  # before that, Keras calls it without an epoch
                x[:] += 0.25

    return Hears()


def listening(told: list[str], stops_at: int | None = None) -> Any:
    """A callback that tells when it hears of epochs, and may stop in the middle of one."""
    import keras

    class Listens(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            told.append(f"epoch {epoch}")

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            told.append(f"epoch {epoch} is over")

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps = getattr(self, "steps", 0) + 1
            self.model.stop_training = self.steps == stops_at

    return Listens()


def hooks(told: list[str]) -> list[str]:
    """Without batches, nor what was said to have ended before it began."""
    heard = [each for each in told if not each[-1].isdigit() or each.startswith("epoch")]
    found: list[str] = []
    for at, each in enumerate(heard):
        name, _, what = each.partition(" ")
        mine = [before for before in heard[:at] if before.startswith(f"{name} ")]
        if what != "ends" or (mine and mine[-1] == f"{name} begins"):
            found.append(each)
    return found


@pytest.mark.parametrize(
    ("strategy", "stops_at"), [("one", None), ("mirrored", None), ("one", 5), ("one", 6)]
)
@in_tensorflow
def test_both_hooks_are_called_where_keras_calls_them(strategy: str, stops_at: int | None) -> None:
    import penstock

    two_cpus()
    heard: list[list[str]] = []
    models = [network("adam"), network("adam")]
    ours = functools.partial(penstock.train.fit, models[1], strategy=strategy)
    for model, fit in zip(models, (models[0].fit, ours), strict=True):
        told: list[str] = []
        fit(
            hearing("data", told),
            epochs=3,
            shuffle=False,
            verbose=0,
            validation_data=hearing("held", told),
            callbacks=[listening(told, stops_at)],
        )
        assert model.optimizer.iterations.numpy() == (stops_at or 9)
        heard.append(hooks(told))
    assert heard[1] == heard[0]
    assert furthest(*models) < 2e-6
    if stops_at is None:
        assert heard[1][:6] == [
            *("epoch 0", "data begins", "data ends"),
            *("held begins", "held ends", "epoch 0 is over"),
        ]
        assert len(heard[1]) == 18


def taken(feed: Any, epoch: int, start: int = 0) -> None:
    for _ in feed.dataset(epoch, start):
        pass


@in_tensorflow
def test_whoever_takes_an_epoch_up_finds_it_as_it_was() -> None:
    two_cpus()
    told: list[str] = []
    feed = feed_for(hearing("data", told), shuffle=False)
    told.clear()
    taken(feed, 0)
    feed.ended(0)
    assert told == ["data begins", "data 0", "data 1", "data 2", "data ends"]
    told.clear()
    taken(feed, 1)
    taken(feed.recut(2), 1, 1)  # as after a step that did not fit
    feed.recut(2).ended(1)
    assert hooks(told) == ["data begins", "data ends"]
    later: list[str] = []
    feed = feed_for(hearing("data", later), shuffle=False)
    later.clear()
    taken(feed, 2, 1)  # as from a checkpoint
    assert later[:5] == ["data begins", "data ends"] * 2 + ["data begins"]
    feed.ended(2)
    taken(feed, 3)
    taken(feed, 4)  # though nobody said that the one before was over
    assert hooks(later)[5:] == ["data ends", "data begins", "data ends", "data begins"]


@in_tensorflow
def test_a_number_of_batches_is_as_good_as_a_length() -> None:
    import keras

    two_cpus()
    told: list[str] = []
    feed = feed_for(hearing("data", told, has_length=False), seed=5)
    assert (feed.share.batch_size, feed.likely_steps) == (8, 3)
    told.clear()
    for epoch in range(8):
        taken(feed, epoch)
        feed.ended(epoch)
    assert told.count("data begins") == told.count("data ends") == 8
    orders = [tuple(told[at + 1 : at + 4]) for at in range(0, len(told), 5)]
    assert {tuple(sorted(order)) for order in orders} == {("data 0", "data 1", "data 2")}
    assert len(set(orders)) > 1

    with pytest.raises(InputError, match="infinite: its num_batches is None"):
        feed_for(hearing("data", told, None, has_length=False))
    with pytest.raises(InputError, match="at least one batch"):
        feed_for(hearing("data", told, 0, has_length=False))

    class Neither(keras.utils.PyDataset):  # type: ignore[misc]
        def __getitem__(self, at: int) -> Any:
            return rows(8)

    with pytest.raises(InputError, match="Neither has neither num_batches nor __len__"):
        feed_for(Neither())
