"""Callbacks see what `Model.fit` would show them; on the chief alone they write."""

from __future__ import annotations

import functools
import io
import sys
import types
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.train.options import asked
from tests.model.tensorflow_process import in_tensorflow
from tests.train.learning import network, process_of_two_cpus, rows, two_cpus


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with process_of_two_cpus():
        yield


def recorder() -> Any:
    import keras

    class Recorder(keras.callbacks.Callback):  # type: ignore[misc]
        """Every call, with the logs as numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.calls: list[Any] = []

        def _called(self, name: str, *arguments: Any, logs: Any = None) -> None:
            at = arguments[0] if isinstance(arguments[0], int) else None
            logs = arguments[-1] if logs is None and not isinstance(arguments[-1], int) else logs
            self.calls.append((name, at, dict(logs or {})))

    for moment in ("train", "epoch", "train_batch", "test", "test_batch"):
        for end in ("begin", "end"):
            name = f"on_{moment}_{end}"
            setattr(Recorder, name, functools.partialmethod(Recorder._called, name))
    return Recorder()


@in_tensorflow
def test_of_data_in_batches_it_is_told_how_many_steps_there_will_be() -> None:
    import keras
    import tensorflow as tf

    import penstock

    two_cpus()
    x, y = rows(21)

    class Five(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 5

        def __getitem__(self, at: int) -> Any:
            return x[5 * at : 5 * at + 5], y[5 * at : 5 * at + 5]

    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(21).batch(5)
    for data, batch_size, steps in ((dataset, None, 5), (Five(), None, 5), (dataset, 10, 3)):
        got = recorder()
        penstock.train.fit(network(), data, batch_size=batch_size, callbacks=[got], verbose=0)
        assert got.params == {"verbose": 0, "epochs": 1, "steps": steps}
        assert sum(name == "on_train_batch_end" for name, *_ in got.calls) == steps


@pytest.mark.parametrize("strategy", ["one", "mirrored"])
@in_tensorflow
def test_the_same_calls_with_the_same_logs_as_in_keras(strategy: str) -> None:
    import keras

    import penstock

    class Shares(keras.metrics.Mean):  # type: ignore[misc]
        """Has several results."""

        def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
            super().update_state(y_pred[:, 0])

        def result(self) -> Any:
            return {"share_rest": 1.0 - super().result(), "share_first": super().result()}

    def measured() -> Any:
        return network(metrics=["accuracy", Shares()])

    two_cpus()
    x, y = rows(21)
    settings = {
        "batch_size": 8,
        "epochs": 2,
        "shuffle": False,
        "verbose": 0,
        "validation_data": (x[:9], y[:9]),
    }
    wanted, got = recorder(), recorder()
    measured().fit(x, y, callbacks=[wanted], **settings)
    penstock.train.fit(measured(), x, y, callbacks=[got], strategy=strategy, **settings)
    assert got.params == wanted.params
    assert asked({}).params(3)["verbose"] == 1  # "auto"
    assert [call[:2] for call in got.calls] == [call[:2] for call in wanted.calls]
    for (name, at, logs), (_, _, reference) in zip(got.calls, wanted.calls, strict=True):
        if strategy == "mirrored" and name == "on_test_batch_end":
            continue  # on each replica its own, until the end
        assert list(logs) == list(reference), (name, at)
        for key, value in reference.items():
            assert logs[key] == pytest.approx(value, rel=1e-5, abs=1e-6), (name, at, key)


def fake_tensorboard() -> set[str]:
    """In place of the package `tensorboard`: the names of the scalars that are written."""
    written: set[str] = set()
    module: Any = types.ModuleType("tensorboard.summary.v2")
    module.scalar = lambda name, *_, **__: written.add(name)
    for name in ("tensorboard", "tensorboard.summary"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules[module.__name__] = module
    return written


@in_tensorflow
def test_keras_callbacks_work_under_a_strategy(tmp_path: Path) -> None:
    import keras

    import penstock

    two_cpus()
    x, y = rows()
    rates: list[float] = []
    written = fake_tensorboard()
    history = penstock.train.fit(
        network(),
        x,
        y,
        batch_size=8,
        epochs=6,
        verbose=0,
        strategy="mirrored",
        validation_data=(x, y),
        callbacks=[
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: rates.append(logs["learning_rate"])
            ),
            keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_best_only=True),
            keras.callbacks.CSVLogger(tmp_path / "log.csv"),
            keras.callbacks.TensorBoard(tmp_path / "board"),
            keras.callbacks.EarlyStopping("val_accuracy", min_delta=2.0, patience=1),
        ],
    )
    assert history.epoch == [0, 1]  # stopped early
    np.testing.assert_allclose(rates, [0.05, 0.025], rtol=1e-6)
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3
    assert {"epoch_loss", "epoch_accuracy", "epoch_learning_rate"} <= written
    loaded = keras.models.load_model(tmp_path / "best.keras")
    assert loaded.evaluate(x, y, verbose=0)[0] == pytest.approx(
        min(history.history["val_loss"]), rel=1e-5
    )


@in_tensorflow
def test_a_worker_whose_callbacks_write_nothing_has_no_folder_for_it(tmp_path: Path) -> None:
    """It would be left behind by one that is killed."""
    import tempfile
    from unittest import mock

    import keras

    from penstock.train.callbacks import Listeners

    params = {"verbose": 0, "epochs": 1, "steps": 1}
    with mock.patch.object(tempfile, "tempdir", str(tmp_path)):
        Listeners(network(), [keras.callbacks.EarlyStopping()], params, chief=False, alone=False)
        assert list(tmp_path.iterdir()) == []
        Listeners(network(), [keras.callbacks.CSVLogger("x")], params, chief=False, alone=False)
        assert [place.name[:15] for place in tmp_path.iterdir()] == ["penstock-train-"]


@in_tensorflow
def test_workers_but_the_chief_write_nowhere_and_show_nothing(tmp_path: Path) -> None:
    import keras

    from penstock.train.callbacks import Listeners

    model = network()
    writers = [
        keras.callbacks.ModelCheckpoint(tmp_path / "at-{epoch}.keras"),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
    ]
    params = {"verbose": 1, "epochs": 1, "steps": 1}
    shown = io.StringIO()
    with redirect_stdout(shown):
        listeners = Listeners(model, writers, params, chief=False, alone=False)
        folder = Path(writers[0].filepath).parent.parent
        listeners.tell("train_begin", {})
        listeners.tell("epoch_begin", 0, {})
        listeners.tell("epoch_end", 0, {"loss": 1.0})
        listeners.tell("train_end", {})
        assert [path.name for path in sorted(folder.glob("*/*"))] == ["at-1.keras", "log.csv"]
        listeners.close()
    assert not folder.exists()
    assert list(tmp_path.iterdir()) == []
    assert shown.getvalue() == ""
    restoring = keras.callbacks.BackupAndRestore(tmp_path)
    with pytest.raises(ConfigError, match="checkpoints="):
        Listeners(model, [restoring], params, chief=True, alone=False)


@pytest.mark.parametrize("strategy", ["one", "mirrored"])
@in_tensorflow
def test_what_keras_has_backed_up_is_taken_up_at_its_epoch(tmp_path: Path, strategy: str) -> None:
    import keras

    import penstock

    two_cpus()
    x, y = rows()
    ends = [2]

    class End(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch + 1 in ends:
                raise KeyboardInterrupt

    def fitted(model: Any, *more: Any, **options: Any) -> Any:
        callbacks = [keras.callbacks.BackupAndRestore(tmp_path / "backup"), *more]
        options = {"epochs": 4, "seed": 1, "verbose": 0, "strategy": strategy} | options
        return penstock.train.fit(model, x, y, batch_size=8, callbacks=callbacks, **options)

    with pytest.raises(KeyboardInterrupt):
        fitted(network(), End())
    model = network()
    resumed = fitted(model)
    assert (resumed.epoch, resumed.report["steps"]) == ([2, 3], 10)
    assert int(model.optimizer.iterations) == 20
    assert fitted(model, epochs=1).epoch == [0]  # there is no backup any more
    with pytest.raises(ConfigError, match=r"BackupAndRestore.*checkpoints"):
        fitted(network(), checkpoints=tmp_path / "kept")


@in_tensorflow
def test_logs_are_fetched_when_somebody_looks() -> None:
    from penstock.train.callbacks import Logs

    fetched = []

    def fetch() -> dict[str, float]:
        fetched.append(1)
        return {"loss": 0.5}

    logs = Logs(fetch)
    assert not fetched
    assert logs["loss"] == 0.5
    assert dict(logs) == {"loss": 0.5} == {**logs}
    assert list(logs.items()) == [("loss", 0.5)]
    assert fetched == [1]
    assert dict(Logs(fetch)) == {"loss": 0.5}
    assert {**Logs(fetch)} == {"loss": 0.5}
    assert "loss" in Logs(fetch)
    assert len(Logs(fetch)) == 1


@in_tensorflow
def test_the_chief_shows_a_progress_bar() -> None:
    import penstock

    shown = io.StringIO()
    with redirect_stdout(shown):
        penstock.train.fit(network(), *rows(), batch_size=8, epochs=2, verbose=1)
    assert "Epoch 2/2" in shown.getvalue()
    assert "accuracy" in shown.getvalue()


@in_tensorflow
def test_what_data_and_disks_take_is_not_the_silence_of_a_cluster() -> None:
    """The chief of parameter servers, whose cluster is a fake."""
    from penstock.train.coordinating import Coordinated
    from penstock.train.handing import AsyncLoop
    from penstock.train.loop import Loop, Position
    from penstock.train.options import Options
    from penstock.train.patience import Patience
    from penstock.train.shipping import Carried

    patience, rested = Patience(60.0, list), []
    handed = types.SimpleNamespace(
        patience=patience, hand_out=lambda function, arguments: None, join=lambda: None
    )

    def takes_its_time(*_: Any) -> None:
        rested.append(not patience._watching)

    def slow_rows() -> Iterator[None]:
        yield takes_its_time()

    chief = object.__new__(Coordinated)
    chief._model, chief._options, chief._micros = network(), Options(), 1
    chief._handed = handed
    rows = Carried(None)
    chief._step(rows)(slow_rows())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_save", takes_its_time)
        loop = AsyncLoop(types.SimpleNamespace(), Position(), handed, rows)
        loop._save()
    assert rested == [True] * 2
    assert patience._watching
    patience.__exit__()


@in_tensorflow
def test_what_has_no_effect_with_parameter_servers_is_told() -> None:
    from penstock.train.options import Options
    from penstock.train.servers import _check

    one = types.SimpleNamespace(num_replicas_in_sync=1)
    with pytest.warns(RuntimeWarning, match="profile, remat, jit: of no effect with parameter"):
        _check(network(), Options(profile="seen", remat=True, jit=True), one, False, workers=2)
    _check(network(), Options(), one, False, workers=2)


@in_tensorflow
def test_a_pace_is_of_rows_that_were_there_without_what_the_first_step_took() -> None:
    from penstock.train.feed import feed_for
    from penstock.train.loop import Loop, Position

    x, y = rows(21)
    loop = Loop(types.SimpleNamespace(feed=feed_for(x, y, batch_size=8)), Position())
    for seconds in (60.0, 0.5, 0.5):
        loop._count(seconds)
    loop.seconds["train"] = 61.0
    assert (loop.rows_taken, loop.at.step) == (21, 3)
    assert loop.pace(0.0) == (2.0, 13.0)
    alone = Loop(loop.run, Position())
    alone._count(4.0)
    assert alone.pace(4.0) == (0.25, 2.0)
