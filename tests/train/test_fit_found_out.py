"""What is found out by trying does not change what is learnt: micro-batches, XLA, remat."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import DeviceMemoryError, WorkerLost
from tests.model.tensorflow_process import in_tensorflow
from tests.train.learning import furthest, network, process_of_two_cpus, rows, two_cpus

_SETTINGS: dict[str, Any] = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with process_of_two_cpus():
        yield


def reference(*middle: Any) -> Any:
    model = network("adam", *middle)
    return model, model.fit(*rows(), **_SETTINGS)


@pytest.mark.parametrize("step", [0, 6])
@in_tensorflow
def test_out_of_memory_in_mid_run_halves_the_micro_batch_and_goes_on(step: int) -> None:
    import tensorflow as tf

    import penstock
    from penstock.train.step import TrainStep

    two_cpus()
    wanted, history = reference()
    take, taken = TrainStep.__call__, []

    def short_of_memory(self: Any, iterator: Any) -> Any:
        if len(taken) == step and self._micros < 4:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating a tensor")
        taken.append(self._micros)
        return take(self, iterator)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainStep, "__call__", short_of_memory)
        got = penstock.train.fit(network("adam"), *rows(), **_SETTINGS)
    assert taken == [1] * step + [4] * (10 - step)
    assert got.report["micros"] == 4
    assert got.report["micro_batch"] == 2
    assert got.report["out_of_memory"] == [{"micros": 2}, {"micros": 4}]
    assert furthest(got.model, wanted) < 2e-6
    np.testing.assert_allclose(got.history["loss"], history.history["loss"], rtol=1e-5)


@pytest.mark.parametrize(("strategy", "accumulate"), [("one", 1), ("one", 2), ("mirrored", 1)])
@in_tensorflow
def test_a_step_that_ran_out_of_memory_in_its_middle_leaves_nothing_behind(
    strategy: str, accumulate: int
) -> None:
    """Neither in statistics nor in random seeds nor in metrics: as if it had failed at once."""
    import keras
    import tensorflow as tf

    import penstock
    from penstock.train.step import TrainStep

    two_cpus()
    calls: list[int] = []
    failing = 6  # in its third step; of two pieces the second

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def hard_to_differentiate(x: Any) -> Any:
        def fails() -> Any:
            calls.append(1)
            if len(calls) == failing:
                raise MemoryError  # in TensorFlow's words a ResourceExhaustedError
            return np.float32(1)

        return x, lambda dy: dy * tf.numpy_function(fails, [], tf.float32)

    class Hard(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return hard_to_differentiate(x)

    def trained() -> Any:
        keras.utils.set_random_seed(7)
        dropout = functools.partial(keras.layers.Dropout, 0.3, seed=1)
        model = network("adam", Hard, keras.layers.BatchNormalization, dropout)
        options = {**_SETTINGS, "strategy": strategy, "accumulate": accumulate}
        return penstock.train.fit(model, *rows(), **options)

    take, taken = TrainStep.__call__, []

    def at_once(self: Any, iterator: Any) -> Any:
        if len(taken) == at and self._micros == accumulate:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating a tensor")
        taken.append(self._micros)
        return take(self, iterator)

    pieces = accumulate * (2 if strategy == "mirrored" else 1)
    at = (failing - 1) // pieces
    got = trained()
    failing = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainStep, "__call__", at_once)
        wanted = trained()
    assert got.report["out_of_memory"] == wanted.report["out_of_memory"]
    assert taken == [accumulate] * at + [2 * accumulate] * (10 - at)
    every = zip(got.model.variables, wanted.model.variables, strict=True)
    for one, two in every:
        np.testing.assert_allclose(one.numpy(), two.numpy(), atol=1e-6, err_msg=one.path)
    assert int(got.model._loss_tracker.variables[1].numpy()) == 37  # the rows of the last epoch
    assert got.history["accuracy"] == wanted.history["accuracy"]
    np.testing.assert_allclose(got.history["loss"], wanted.history["loss"], rtol=1e-6)


@in_tensorflow
def test_a_worker_with_several_devices_takes_the_rows_of_all_of_them_in_parts() -> None:
    """Its step on two CPUs, for workers of several need several GPUs."""
    import keras
    import tensorflow as tf

    import penstock
    from penstock.train import assembly
    from penstock.train.apart import Parts, WorkersStep

    two_cpus()
    wanted, history = reference()
    calls: list[int] = []

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def hard_to_differentiate(x: Any) -> Any:
        def fails() -> Any:
            calls.append(1)
            if len(calls) == 5:
                raise MemoryError
            return np.float32(1)

        return x, lambda dy: dy * tf.numpy_function(fails, [], tf.float32)

    class Hard(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return hard_to_differentiate(x)

    told: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        parts = Parts(told.append)
        patch.setattr(assembly, "TrainStep", functools.partial(WorkersStep, parts=parts))
        got = penstock.train.fit(
            network("adam", Hard), *rows(), strategy="mirrored", accumulate=2, **_SETTINGS
        )
        assert told == [2]  # two rows a piece: one at a time, then
        calls[:], parts.count = [1] * 4, 4
        with pytest.raises(DeviceMemoryError, match="a step of one row does not fit"):
            penstock.train.fit(network("adam", Hard), *rows(), strategy="mirrored", **_SETTINGS)
    assert furthest(got.model, wanted) < 2e-6
    np.testing.assert_allclose(got.history["loss"], history.history["loss"], rtol=1e-5)
    np.testing.assert_allclose(got.history["accuracy"], history.history["accuracy"])


@in_tensorflow
def test_what_ran_out_of_memory_on_the_way_back_is_not_counted() -> None:
    import keras
    import tensorflow as tf

    import penstock

    two_cpus()
    calls: list[int] = []

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def hard_to_differentiate(x: Any) -> Any:
        def fails() -> Any:
            calls.append(1)
            if len(calls) in (3, 4):
                raise MemoryError  # in TensorFlow's words a ResourceExhaustedError
            return np.float32(1)

        return x, lambda dy: dy * tf.numpy_function(fails, [], tf.float32)

    class Hard(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return hard_to_differentiate(x)

    got = penstock.train.fit(network("adam", Hard), *rows(), **_SETTINGS | {"epochs": 1})
    assert got.report["micros"] == 4
    assert len(calls) == 2 + 2 + 3 * 4  # two steps, two attempts, and the rest in four pieces each
    accuracy = got.model._compile_metrics.metrics[0]
    assert [int(each.count.numpy()) for each in (got.model._loss_tracker, accuracy)] == [37, 37]


@in_tensorflow
def test_validation_takes_the_pieces_of_training_and_smaller_ones_where_they_do_not_fit() -> None:
    import keras
    import tensorflow as tf

    import penstock
    from penstock.train import validation

    two_cpus()
    x, y = rows()
    data = {"validation_data": (x[:21], y[:21])}
    wanted = network("adam").fit(x, y, **_SETTINGS, **data)
    fits, heard = 2, []
    take = validation._Step.__call__

    def short_of_memory(self: Any, iterator: Any) -> Any:
        if 8 // (self._weighing.pieces) > fits:
            self._function(iterator)  # as far as it came
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating a tensor")
        return take(self, iterator)

    class Hears(keras.callbacks.Callback):  # type: ignore[misc]
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            heard.append(batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation._Step, "__call__", short_of_memory)
        got = penstock.train.fit(
            network("adam"), x, y, accumulate=2, callbacks=[Hears()], **_SETTINGS, **data
        )
        fits = 0
        with pytest.raises(DeviceMemoryError, match="validation of one row at a time"):
            penstock.train.fit(network("adam"), x, y, **_SETTINGS, **data)
    assert heard == [0, 1, 2] * 2
    for name in ("val_loss", "val_accuracy"):
        np.testing.assert_allclose(got.history[name], wanted.history[name], rtol=1e-5)


@in_tensorflow
def test_a_worker_that_runs_out_of_memory_leaves_word_for_the_next_start(tmp_path: Path) -> None:
    """One of two, whose peer is not needed for that."""
    import dataclasses

    from penstock.train.assembly import Assembly
    from penstock.train.keeping import Keeper
    from penstock.train.options import Options
    from penstock.train.strategies import place

    two_cpus()
    alone = place("one")
    parts = Assembly(None, dataclasses.replace(alone, worker=1, workers=2), Options(), 8, 2)
    for folder, why in ((None, "start again with accumulate=4"), (tmp_path, "all take 4")):
        options = Options(checkpoints=folder)
        parts._keeper = Keeper(options, alone)
        with pytest.raises(DeviceMemoryError, match=f"worker 1 of 2 ran out of memory.*{why}"):
            parts._smaller(None, MemoryError())
    assert [parts._keeper.micros(batch_size) for batch_size in (8, 16)] == [4, 1]
    anew = {"checkpoints": tmp_path, "resume": False}
    assert Keeper(Options(attempt=1, **anew), alone).micros(8) == 4  # it was left by the same run
    for attempt in (0, 1):
        assert Keeper(Options(attempt=attempt, **anew), alone).micros(8) == 1


@in_tensorflow
def test_a_single_row_that_does_not_fit_is_told() -> None:
    import tensorflow as tf

    import penstock
    from penstock.train.step import TrainStep

    def never_enough(self: Any, iterator: Any) -> Any:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating a tensor")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainStep, "__call__", never_enough)
        with pytest.raises(DeviceMemoryError, match="a step of one row does not fit"):
            penstock.train.fit(network("adam"), *rows(), **_SETTINGS)


@in_tensorflow
def test_the_micro_batch_is_the_largest_that_fits() -> None:
    """A device that holds three rows: a fake, for CPUs do not tell of their memory."""
    import keras

    import penstock
    from penstock.train import choosing

    two_cpus()

    class ThreeRows:
        rows = 0

        def limit(self) -> int:
            return 1000

        def held(self) -> int:
            return 100

        def forget(self) -> None:
            pass

        def peak(self) -> int:
            return 100 + 250 * self.rows

    device, cut = ThreeRows(), choosing._rows

    def counted(part: Any, size: int) -> Any:
        device.rows = size
        return cut(part, size)

    def dropout() -> Any:
        return keras.layers.Dropout(0.0, seed=1)

    wanted, _ = reference(dropout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "memory_of", lambda _: device)
        patch.setattr(choosing, "_rows", counted)
        model = network("adam", dropout)
        got = penstock.train.fit(model, *rows(), micro_batch="auto", **_SETTINGS)
        again = {
            accumulate: penstock.train.fit(
                network("adam", dropout), *rows(), accumulate=accumulate, remat="auto", **_SETTINGS
            )
            for accumulate in (1, 4)
        }
    assert (got.report["micros"], got.report["micro_batch"]) == (3, 3)
    assert furthest(got.model, wanted) < 2e-6
    # Recomputed is what does not fit as it is: eight rows at a time do not, two do.
    assert {n: each.report["remat"] for n, each in again.items()} == {1: True, 4: False}
    assert max(furthest(each.model, wanted) for each in again.values()) < 2e-6
    plain = penstock.train.fit(network("adam"), *rows(), micro_batch="auto", **_SETTINGS)
    assert plain.report["micros"] == 1  # a CPU holds all


@in_tensorflow
def test_both_ways_are_tried_on_steps_that_count() -> None:
    import penstock
    from penstock.train import assembly, choosing

    two_cpus()
    wanted, _ = reference()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "compiled_at_first", lambda *_: "auto")
        patch.setattr(choosing, "Contest", functools.partial(choosing.Contest, timed=2, worth=0.0))
        got = penstock.train.fit(network("adam"), *rows(), **_SETTINGS)
    assert furthest(got.model, wanted) < 2e-6
    assert got.report["steps"] == 10
    assert got.report["jit"] in (True, False)
    assert got.report["jit_trial"]


@in_tensorflow
def test_xla_is_left_out_where_it_does_not_pay_or_cannot() -> None:
    import keras
    import tensorflow as tf

    import penstock

    two_cpus()
    x, y = rows(40)

    class Halved(keras.layers.Layer):  # type: ignore[misc]
        """Outside of training by Python, which XLA cannot compile."""

        def call(self, inputs: Any, training: Any = None) -> Any:
            if training:
                return inputs / 2
            halves = tf.numpy_function(lambda z: z / np.float32(2), [inputs], tf.float32)
            return tf.ensure_shape(halves, inputs.shape)

    shown = []
    for jit in ("auto", True):
        got = penstock.train.fit(
            network("adam", Halved), x, y, jit=jit, validation_data=(x, y), **_SETTINGS
        )
        assert got.report["jit"] is (jit is True)
        shown.append(got.history["val_loss"])
    np.testing.assert_allclose(*shown, rtol=1e-5)
    plain = penstock.train.fit(network("adam"), x, y, **_SETTINGS)
    assert plain.report["jit"] is False


@in_tensorflow
def test_what_is_computed_again_teaches_the_same() -> None:
    import penstock

    two_cpus()
    wanted, history = reference()
    for strategy, accumulate in (("one", 1), ("mirrored", 2)):
        got = penstock.train.fit(
            network("adam"),
            *rows(),
            remat=True,
            strategy=strategy,
            accumulate=accumulate,
            **_SETTINGS,
        )
        assert furthest(got.model, wanted) < 2e-6
        assert got.report["remat"] is True
        np.testing.assert_allclose(got.history["loss"], history.history["loss"], rtol=1e-5)


@in_tensorflow
def test_a_profile_is_written_and_summed_up(tmp_path: Path) -> None:
    import penstock

    got = penstock.train.fit(
        network("adam"), *rows(32 * 8), batch_size=8, verbose=0, profile=tmp_path
    )
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert got.report["profile"] == summary
    assert sum(summary["shares"].values()) == pytest.approx(1.0, abs=0.02)


@in_tensorflow
def test_a_lost_peer_is_told_as_such() -> None:
    from dataclasses import replace

    import tensorflow as tf

    import penstock
    from penstock.train import running
    from penstock.train.running import _peers
    from penstock.train.strategies import Place

    def lost(place: Any) -> None:
        with _peers(place):
            said = 'Graph execution error:\n\n  File "here.py", line 3\n\nSocket closed\n'
            raise tf.errors.UnavailableError(None, None, said)

    alone = Place(None, "multiworker")
    with pytest.raises(tf.errors.UnavailableError):
        lost(alone)
    with pytest.raises(
        WorkerLost, match=r"worker 1 of 2 has lost another one .*training: Socket closed$"
    ):
        lost(replace(alone, worker=1, workers=2))

    def build() -> Any:  # in the scope, where its variables go to all workers
        raise tf.errors.UnavailableError(None, None, "Socket closed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "place", lambda *_: replace(alone, kind="one", workers=2))
        with pytest.raises(WorkerLost, match="worker 0 of 2 has lost another one"):
            penstock.train.fit(build, *rows())
