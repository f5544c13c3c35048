"""Shares of time: each instant counts once, and a real trace says what the steps did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.train.profile import KINDS, Summary, shares_of
from tests.model.tensorflow_process import in_tensorflow


def test_an_instant_counts_for_the_first_kind_that_goes_on_in_it() -> None:
    going = {
        "compute": [(0.0, 4.0), (3.0, 5.0)],
        "all-reduce": [(4.0, 7.0)],
        "data": [(6.0, 8.0), (-5.0, 1.0)],
    }
    assert shares_of(going, (0.0, 10.0)) == {
        "compute": 0.5,
        "optimizer": 0.0,
        "all-reduce": 0.2,
        "data": 0.1,
        "idle": 0.2,
    }


_times = st.tuples(st.floats(-5, 15), st.floats(0, 8)).map(lambda pair: (pair[0], sum(pair)))


@given(st.dictionaries(st.sampled_from(KINDS[:-1]), st.lists(_times, max_size=5)))
def test_shares_add_up_to_one(going: dict[str, list[tuple[float, float]]]) -> None:
    shares = shares_of(going, (0.0, 10.0))
    assert sum(shares.values()) == pytest.approx(1.0)
    assert all(-1e-3 <= share <= 1.0 for share in shares.values())
    assert list(shares) == list(KINDS)


def _shares(**some: float) -> dict[str, float]:
    shares = dict.fromkeys(KINDS, 0.0) | {name.replace("_", "-"): one for name, one in some.items()}
    return shares | {"compute": 1.0 - sum(some.values())}


def test_what_limits_is_named_with_what_to_try() -> None:
    assert Summary.of(_shares(), 5, 1.0).limit == "compute"
    assert Summary.of(_shares(idle=0.1), 5, 1.0).limit == "compute"
    assert Summary.of(_shares(idle=0.2, data=0.4), 5, 1.0).limit == "data"
    summary = Summary.of(_shares(all_reduce=0.3), 4, 1.0)
    assert summary.limit == "all-reduce"
    assert summary.step_ms == 250
    assert "accumulate" in summary.text()
    assert json.loads(json.dumps(summary.to_json()))["limit"] == "all-reduce"


@in_tensorflow
def test_steps_that_wait_for_data_are_told_from_steps_that_compute(tmp_path: Path) -> None:
    import keras
    import tensorflow as tf

    from penstock.train.profile import Profiler

    model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(1024), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(name="adam")
    optimizer.build(model.trainable_variables)

    @tf.function  # type: ignore[untyped-decorator]
    def step(iterator: object) -> object:
        rows = next(iterator)  # type: ignore[call-overload]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(rows) ** 2)
        gradients = tape.gradient(loss, [one.value for one in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    def slow(rows: object) -> object:
        def wait(numbers: object) -> object:
            import time

            time.sleep(0.05)
            return numbers

        return tf.ensure_shape(tf.numpy_function(wait, [rows], tf.float32), (512, 256))

    def profiled(name: str, data: object) -> Summary:
        iterator = iter(data)  # type: ignore[call-overload]
        profiler = Profiler(tmp_path / name, "adam", first=2, steps=3)
        for number in range(7):
            profiler.watch(number)
            step(iterator)
        profiler.close()
        assert profiler.summary is not None
        return profiler.summary

    quick = tf.data.Dataset.from_tensors(tf.ones((512, 256))).repeat()
    computing = profiled("quick", quick)
    waiting = profiled("slow", quick.map(slow))
    assert computing.steps == waiting.steps == 3
    assert waiting.limit == "data"
    assert waiting.shares["data"] > 0.5 > computing.shares["data"]
    assert computing.shares["compute"] > computing.shares["optimizer"] > 0
    assert list((tmp_path / "quick").rglob("*.xplane.pb"))  # what TensorBoard shows
    assert json.loads((tmp_path / "slow" / "summary.json").read_text()) == waiting.to_json()
    assert "data" in (tmp_path / "slow" / "summary.txt").read_text()


def test_a_run_that_ends_early_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    from penstock.train.profile import Profiler

    profiler = Profiler(tmp_path / "none", first=5)
    for number in range(3):
        profiler.watch(number)
    with pytest.warns(RuntimeWarning, match=r"no profile was written to .*none.* there were 3"):
        profiler.close()
    assert profiler.summary is None
    assert not (tmp_path / "none").exists()
