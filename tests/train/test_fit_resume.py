"""A run that is ended anywhere and resumed has the same weights, bit by bit, and history."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from tests.model import tensorflow_process
from tests.model.tensorflow_process import in_tensorflow
from tests.train.learning import furthest, network, rows, two_cpus


@pytest.fixture(scope="module", autouse=True)
def _process_of_its_own() -> Iterator[None]:
    tensorflow_process.end()
    yield
    tensorflow_process.end()


class Ended(Exception):
    """In place of a power cut."""


def model_with_everything() -> Any:
    """Momentum, statistics, dropout: whatever has a state."""
    import keras

    return network(
        "adam", keras.layers.BatchNormalization, lambda: keras.layers.Dropout(0.3, seed=7)
    )


def fitted(folder: Path | None, ended_at: int | None = None, **options: Any) -> Any:
    import keras

    import penstock

    class End(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.steps = 5 * epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.steps + batch + 1 == ended_at:
                raise Ended

    x, y = rows()
    return penstock.train.fit(
        options.pop("model", model_with_everything)(),
        x,
        y,
        batch_size=8,
        epochs=options.pop("epochs", 3),
        seed=5,
        deterministic=True,
        verbose=options.pop("verbose", 0),
        validation_data=(x[:10], y[:10]),
        checkpoints=folder,
        callbacks=[*options.pop("callbacks", ()), End()],
        **options,
    )


@pytest.mark.parametrize(
    ("strategy", "accumulate", "precision"),
    [("one", 1, None), ("mirrored", 2, None), ("one", 1, "mixed_float16")],
)
@in_tensorflow
def test_it_goes_on_as_if_nothing_had_been(
    tmp_path: Path, strategy: str, accumulate: int, precision: str | None
) -> None:
    two_cpus()
    how = {"strategy": strategy, "accumulate": accumulate, "precision": precision}
    whole = fitted(None, **how)
    with pytest.raises(Ended):
        fitted(tmp_path, ended_at=8, checkpoint_every=3, **how)  # in the second epoch, of 5 steps
    with pytest.raises(Ended):
        fitted(tmp_path, ended_at=12, checkpoint_every=3, **how)
    resumed = fitted(tmp_path, **how)
    assert resumed.report["resumed_at_step"] == 10
    assert resumed.report["steps"] == whole.report["steps"] == 15
    assert furthest(resumed.model, whole.model) == 0
    assert resumed.history == whole.history
    assert resumed.epoch == [0, 1, 2]
    after = fitted(tmp_path, **how)  # it is done
    assert after.report["steps"] == 15
    assert furthest(after.model, whole.model) == 0


def with_memories() -> list[Any]:
    """Callbacks that decide by what was before; no improvement is enough for them."""
    import keras

    class Fading(keras.callbacks.Callback):  # type: ignore[misc]
        """Smaller and smaller steps, by its own counting."""

        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def get_state(self) -> int:
            return self.count

        def set_state(self, state: int) -> None:
            self.count = state

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.count += 1
            self.model.optimizer.learning_rate = 0.01 / (1 + self.count)

    patient = {"monitor": "val_loss", "min_delta": 9.0}
    return [
        keras.callbacks.ReduceLROnPlateau(patience=2, factor=0.1, **patient),
        Fading(),
        keras.callbacks.EarlyStopping(patience=4, restore_best_weights=True, **patient),
    ]


@in_tensorflow
def test_callbacks_remember_what_they_did(tmp_path: Path) -> None:
    two_cpus()
    whole = fitted(None, epochs=8, callbacks=with_memories())
    assert whole.epoch == [0, 1, 2, 3, 4]
    for ended_at in (8, 13, 23):
        with pytest.raises(Ended):
            fitted(tmp_path, ended_at=ended_at, epochs=8, callbacks=with_memories())
    resumed = fitted(tmp_path, epochs=8, callbacks=with_memories())
    assert resumed.report["resumed_at_step"] == 20
    assert resumed.history == whole.history
    assert resumed.epoch == whole.epoch
    assert furthest(resumed.model, whole.model) == 0  # those of the first epoch: the best ones
    assert "learning_rate" in whole.history


@in_tensorflow
def test_weights_that_were_swapped_for_their_averages_are_swapped_back(tmp_path: Path) -> None:
    """After an end in the middle of an epoch; and after all of its epochs, to be taken on."""
    import keras

    def averaging() -> Any:
        model = network()
        averages = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
        model.compile(averages, "sparse_categorical_crossentropy")
        return model

    def swapping() -> dict[str, Any]:
        return {
            "model": averaging,
            "callbacks": [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
        }

    two_cpus()
    whole = fitted(None, **swapping())
    with pytest.raises(Ended):
        fitted(tmp_path / "ended", ended_at=8, **swapping())
    fitted(tmp_path / "done", epochs=2, **swapping())
    for folder in ("ended", "done"):
        resumed = fitted(tmp_path / folder, **swapping())
        assert resumed.history == whole.history
        assert furthest(resumed.model, whole.model) == 0, folder
        after = fitted(tmp_path / folder, **swapping())  # nothing is left to do
        assert furthest(after.model, whole.model) == 0, folder


@pytest.mark.parametrize("strategy", ["one", "mirrored"])
@in_tensorflow
def test_layers_that_have_no_seed_draw_on(tmp_path: Path, strategy: str) -> None:
    import keras

    class Noise(keras.layers.Layer):  # type: ignore[misc]
        def call(self, values: Any, training: bool | None = None) -> Any:
            return values + keras.random.normal(keras.ops.shape(values)) if training else values

    two_cpus()
    how = {"strategy": strategy, "model": lambda: network("sgd", Noise)}
    whole = fitted(None, **how)
    with pytest.raises(Ended):
        fitted(tmp_path, ended_at=8, checkpoint_every=3, **how)
    resumed = fitted(tmp_path, **how)
    assert resumed.report["resumed_at_step"] == 6
    assert resumed.history == whole.history
    assert furthest(resumed.model, whole.model) == 0


@in_tensorflow
def test_a_log_goes_on_where_a_run_does(tmp_path: Path) -> None:
    import keras

    two_cpus()
    log = tmp_path / "log.csv"
    log.write_text("of another run")
    for epochs in (1, 3):
        fitted(tmp_path / "kept", epochs=epochs, callbacks=[keras.callbacks.CSVLogger(log)])
    begun = [line.partition(",")[0] for line in log.read_text().splitlines()]
    assert begun == ["epoch", "0", "1", "2"]


@in_tensorflow
def test_the_learning_rate_of_an_epoch_is_set_once(tmp_path: Path) -> None:
    import keras

    class Warm(keras.callbacks.Callback):  # type: ignore[misc]
        """Begins anew with every run."""

        def on_train_begin(self, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.08

    def halved() -> list[Any]:
        return [Warm(), keras.callbacks.LearningRateScheduler(lambda _, rate: rate * 0.5)]

    two_cpus()
    whole = fitted(None, callbacks=halved())
    for ended_at in (8, 12):
        with pytest.raises(Ended):
            fitted(tmp_path, ended_at=ended_at, checkpoint_every=3, callbacks=halved())
    resumed = fitted(tmp_path, callbacks=halved())
    assert resumed.history == whole.history
    assert furthest(resumed.model, whole.model) == 0


@in_tensorflow
def test_other_batches_in_the_middle_of_an_epoch_are_refused(tmp_path: Path) -> None:
    import penstock

    two_cpus()
    with pytest.raises(Ended):
        fitted(tmp_path, ended_at=4, checkpoint_every=3)
    x, y = rows()
    settings = {"seed": 5, "verbose": 0, "checkpoints": tmp_path}
    for count, size, why in ((37, 16, "batch_size 16 where it was 8"), (30, 8, "rows 30 where")):
        with pytest.raises(ConfigError, match=f"of step 3 of an epoch.*{why}"):
            penstock.train.fit(
                model_with_everything(), x[:count], y[:count], batch_size=size, **settings
            )


@in_tensorflow
def test_an_epoch_that_could_not_be_validated_is_kept(tmp_path: Path) -> None:
    import keras

    class Fails(keras.callbacks.Callback):  # type: ignore[misc]
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            raise Ended

    two_cpus()
    whole = fitted(None)
    with pytest.raises(Ended):
        fitted(tmp_path, callbacks=[Fails()])
    resumed = fitted(tmp_path)
    assert resumed.report["resumed_at_step"] == 5
    assert resumed.history == whole.history
    assert furthest(resumed.model, whole.model) == 0


@in_tensorflow
def test_where_a_run_goes_on_is_told(tmp_path: Path) -> None:
    def told(ended_at: int | None, **options: Any) -> str:
        shown = io.StringIO()
        with redirect_stdout(shown), contextlib.suppress(Ended):
            fitted(tmp_path, ended_at=ended_at, checkpoint_every=3, **options)
        return shown.getvalue()

    two_cpus()
    assert "penstock" not in told(7, verbose=2)
    assert told(9) == ""
    words = "penstock: goes on at epoch 2 of 3, step 1 of it, from the checkpoint of step 6 in"
    assert words in told(None, verbose=2)
    words = "penstock: all 3 epochs are done, nothing is left to do (from the checkpoint of step 15"
    assert words in told(None, verbose=2)


@in_tensorflow
def test_a_callback_that_tells_but_does_not_listen(tmp_path: Path) -> None:
    import keras

    class Half(keras.callbacks.Callback):  # type: ignore[misc]
        def get_state(self) -> int:
            return 1

    two_cpus()
    with pytest.raises(ConfigError, match="Half: expected both get_state and set_state"):
        fitted(tmp_path, callbacks=[Half()])


@in_tensorflow
def test_metrics_that_are_vectors_are_kept_as_lists(tmp_path: Path) -> None:
    import keras
    import numpy as np

    import penstock

    two_cpus()
    x, y = rows()
    told = []
    for epochs in (1, 2):
        model = network(loss="categorical_crossentropy", metrics=[keras.metrics.F1Score()])
        got = penstock.train.fit(
            model, x, np.eye(3)[y], batch_size=8, epochs=epochs, verbose=0, checkpoints=tmp_path
        )
        told.append(got.history["f1_score"])
    assert [len(each) for each in told[1]] == [3, 3]
    assert told[1][:1] == told[0]
    assert isinstance(told[1][1][0], float)


@in_tensorflow
def test_weights_that_are_no_numbers_are_not_kept(tmp_path: Path) -> None:
    import keras
    import numpy as np

    import penstock
    from penstock.train.checkpoints import Checkpoints

    two_cpus()
    x, y = rows()
    weight = np.ones(len(x))
    for spoilt, steps in ((False, 5), (True, 8)):
        weight[20] = np.nan if spoilt else 1.0
        got = penstock.train.fit(
            network(),
            x,
            y,
            sample_weight=weight,
            batch_size=8,
            epochs=1 + spoilt,
            shuffle=False,
            verbose=0,
            checkpoints=tmp_path,
            checkpoint_every=8,
            callbacks=[keras.callbacks.TerminateOnNaN()],
        )
        assert got.report["steps"] == steps
    newest = Checkpoints(tmp_path).newest()
    assert newest is not None
    assert newest.step == 5  # not 8, neither that of the step nor that of the epoch
    assert all(np.isfinite(each).all() for each in newest.arrays.values())


@in_tensorflow
def test_the_newest_few_are_kept_and_may_be_left_aside(tmp_path: Path) -> None:
    two_cpus()
    fitted(tmp_path, keep=2)
    assert len(list(tmp_path.glob("*.checkpoint"))) == 2
    anew = fitted(tmp_path, resume=False)
    assert anew.report["resumed_at_step"] is None
    assert anew.epoch == [0, 1, 2]
    with pytest.MonkeyPatch.context() as patch:
        # Begun anew, and started again by the launcher: from its own checkpoints, if it has any.
        for ended_at, attempt, resumed in ((2, "0", None), (8, "1", None), (None, "2", 6)):
            patch.setenv("PENSTOCK_TRAIN_ATTEMPT", attempt)
            with contextlib.suppress(Ended):
                got = fitted(tmp_path, ended_at, resume=False, checkpoint_every=3)
                assert got.report["resumed_at_step"] == resumed
                assert got.report["steps"] == 15
        assert got.report["resumed_at_step"] == 6


@in_tensorflow
def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    two_cpus()
    fitted(tmp_path)
    with pytest.raises(ConfigError, match=r"another model or optimizer: .*expected .*got"):
        fitted(tmp_path, model=lambda: network("adam"))


@pytest.mark.parametrize("strategy", ["one", "mirrored"])
@in_tensorflow
def test_metrics_may_be_others_than_a_checkpoint_has(tmp_path: Path, strategy: str) -> None:
    two_cpus()
    how = {"strategy": strategy}

    def counted_also() -> Any:
        return network("adam", metrics=["accuracy", "sparse_categorical_crossentropy"])

    def counting_none() -> Any:
        return network("adam", metrics=[])

    whole = fitted(None, model=counting_none, **how)
    with pytest.raises(Ended):
        fitted(tmp_path, ended_at=8, checkpoint_every=3, model=lambda: network("adam"), **how)
    told = "middle of epoch 2: of that epoch, all metrics but the loss are counted from step 1 on"
    with pytest.warns(RuntimeWarning, match=told), pytest.raises(Ended):
        fitted(tmp_path, ended_at=12, model=counted_also, **how)
    printed = io.StringIO()
    with redirect_stdout(printed):
        resumed = fitted(tmp_path, model=counting_none, verbose=2, **how)  # from an epoch's end
    assert "metrics are others than the checkpoint's" in printed.getvalue()
    assert resumed.report["resumed_at_step"] == 10
    assert furthest(resumed.model, whole.model) == 0
    assert resumed.history["loss"] == pytest.approx(whole.history["loss"])
    assert [len(resumed.history[name]) for name in ("loss", "accuracy")] == [3, 2]
