"""One test body, two engines: the one in this process and a real one answer alike."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading

import numpy as np
import pytest

import penstock
from penstock import errors
from penstock.testing import LocalEngine, running

MODELS = {
    name: f"penstock.testing.models:{name}"
    for name in ("double", "raise_on_negative", "checksum", "exit_on_13", "sleep", "Loaded")
}


@pytest.fixture(scope="module", params=["local", "real"])
def engine(request):
    """All the models; WorkerLost is injected where there is no process to lose."""
    if request.param == "local":
        with LocalEngine(MODELS) as local:
            local.faults.lose_worker_on(lambda row: row == 13, model="exit_on_13")
            yield local
    else:
        with running(MODELS) as real:
            yield real


@pytest.fixture(params=["local", "real"])
def start(request):
    """Starts an engine of one's own; all are closed afterwards."""
    opened = []

    def begin(models, **settings):
        manager = (
            LocalEngine(models, **settings)
            if request.param == "local"
            else running(models, **settings)
        )
        opened.append(manager)
        return manager.__enter__()

    yield begin
    for manager in opened:
        manager.__exit__(None, None, None)


def public_methods(kind: type) -> dict[str, object]:
    return {
        name: member
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize("name", sorted(public_methods(penstock.Client)))
def test_has_every_method_of_a_client_with_its_signature(name):
    theirs = inspect.signature(getattr(penstock.Client, name)).parameters
    ours = inspect.signature(getattr(LocalEngine, name)).parameters
    assert list(ours.items())[: len(theirs)] == list(theirs.items())
    extra = list(ours.values())[len(theirs) :]
    assert all(parameter.default is not inspect.Parameter.empty for parameter in extra)


@pytest.mark.parametrize("name", sorted(public_methods(penstock.Engine)))
def test_has_every_method_of_an_engine(name):
    assert callable(getattr(LocalEngine, name))


def test_is_a_client_to_code_that_asks():
    with LocalEngine(lambda x: x) as engine:
        assert isinstance(engine, penstock.Client)


@pytest.mark.parametrize(
    "x",
    [
        np.arange(6, dtype=np.float32).reshape(3, 2),
        np.arange(200 * 3).reshape(200, 3),
        np.zeros((0, 4), np.float64),
        np.arange(12).reshape(3, 4)[:, ::2],
        np.arange(4, dtype=">i4"),
        np.ones((2, 3), np.complex64),
        np.arange(5, dtype=np.uint8),
        np.ones((2, 0), np.float32),
    ],
    ids=["plain", "many", "none", "strided", "big-endian", "complex", "scalars", "empty-rows"],
)
def test_arrays_come_back_doubled(engine, x):
    y = engine.predict(x, model="double")
    assert y.shape == x.shape
    assert y.dtype == x.dtype.newbyteorder("=")
    np.testing.assert_array_equal(y, x + x)


def test_dicts_of_arrays(engine):
    x = {"a": np.ones((4, 2), np.float32), "b": np.arange(4)}
    y = engine.predict(x, model="double")
    assert list(y) == ["a", "b"]
    np.testing.assert_array_equal(y["b"], [0, 2, 4, 6])


def test_lists_and_texts(engine):
    np.testing.assert_array_equal(engine.predict([1, 2], model="double"), [2, 4])
    y = engine.predict(np.array(["ab", "ç"]), model="double")
    assert y.tolist() == [b"abab", "çç".encode()]


def test_answers_are_the_callers_to_keep_and_change(engine):
    x = np.ones((2, 2))
    first = engine.predict(x, model="double")
    first[:] = 7
    np.testing.assert_array_equal(engine.predict(x, model="double"), 2)
    np.testing.assert_array_equal(x, 1)


@pytest.mark.parametrize(
    ("x", "options", "expected"),
    [
        (np.float32(1), {"model": "double"}, "first axis is rows"),
        ({}, {"model": "double"}, "empty dict"),
        ({"a": np.ones(2), "b": np.ones(3)}, {"model": "double"}, "3 rows"),
        (np.ones(2, "datetime64[s]"), {"model": "double"}, "cannot be sent"),
        (np.ones(2), {"model": "nope"}, "no model 'nope'"),
        (np.ones(2), {}, "several models"),
        (np.ones(2), {"model": "double", "priority": 40_000}, "priority"),
        (np.ones(2), {"model": "double", "deadline": float("nan")}, "deadline"),
        ([[1], [2, 3]], {"model": "double"}, "not an array"),
    ],
)
def test_input_errors(engine, x, options, expected):
    with pytest.raises(errors.InputError, match=expected):
        engine.predict(x, **options)


def test_masks_are_refused(engine):
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    with pytest.raises(errors.InputError, match="without a mask"):
        engine.predict(masked, model="double")
    with pytest.raises(errors.InputError, match="without a mask"):
        engine.predict([masked, masked], model="double")
    with pytest.raises(errors.InputError, match="without a mask"):
        list(engine.map([masked], model="double"))
    none = np.ma.array([1.0, 2.0])
    np.testing.assert_array_equal(engine.predict(none, model="double"), [2.0, 4.0])


def test_a_row_that_raises_is_a_model_error_with_the_remote_traceback(engine):
    with pytest.raises(errors.ModelError, match="a negative value") as caught:
        engine.predict(np.array([-1.0]), model="raise_on_negative")
    assert "raise_on_negative" in str(caught.value.__cause__)
    assert not caught.value.retryable


def test_some_rows_fail_and_the_others_are_kept(engine):
    x = np.array([1.0, -1.0, 3.0, -5.0] * 20)
    with pytest.raises(errors.RowsFailed) as caught:
        engine.predict(x, model="raise_on_negative")
    failed = caught.value
    assert failed.rows == 80
    assert set(failed.errors) == set(range(1, 80, 2))
    assert {type(error) for error in failed.errors.values()} == {errors.ModelError}
    np.testing.assert_array_equal(failed.results, np.where(x < 0, 0, 2 * x))


def test_a_row_that_kills_its_worker_is_lost_alone(engine):
    with pytest.raises(errors.RowsFailed) as caught:
        engine.predict(np.array([1.0, 13.0, 3.0]), model="exit_on_13")
    assert {row: type(error) for row, error in caught.value.errors.items()} == {
        1: errors.WorkerLost
    }
    np.testing.assert_array_equal(caught.value.results, [2, 0, 6])
    with pytest.raises(errors.WorkerLost, match="alone"):
        engine.predict(np.array([13.0]), model="exit_on_13")


def test_a_deadline_that_passes(engine):
    with pytest.raises(errors.DeadlineExceeded):
        engine.predict(np.ones(1), model="double", deadline=0)
    with pytest.raises(errors.DeadlineExceeded):
        engine.predict(np.array([0.3]), model="sleep", deadline=0.05)
    np.testing.assert_array_equal(engine.predict(np.ones(1), model="double", deadline=30), [2])


def test_submit_returns_a_future(engine):
    future = engine.submit(np.ones(2), model="double")
    assert isinstance(future, concurrent.futures.Future)
    np.testing.assert_array_equal(future.result(10), [2, 2])
    assert not future.cancel()


def test_futures_can_be_waited_for_together(engine):
    futures = [engine.submit(np.full(1, n), model="double") for n in range(10)]
    done, waiting = concurrent.futures.wait(futures, 20)
    assert len(done) == 10
    assert not waiting


def test_a_callback_may_ask_again(engine):
    seen = []
    there = threading.Event()

    def ask_again(future):
        seen.append(engine.predict(future.result(), model="double"))
        there.set()

    engine.submit(np.ones(1), model="double").add_done_callback(ask_again)
    assert there.wait(20)
    np.testing.assert_array_equal(seen, [[4]])


def test_asyncio(engine):
    async def ask():
        return await asyncio.gather(
            *(engine.predict_async(np.full(2, n), model="double") for n in range(5)),
            engine.predict_async(np.array([-1.0]), model="raise_on_negative"),
            return_exceptions=True,
        )

    *answers, error = asyncio.run(ask())
    np.testing.assert_array_equal(answers, [[2 * n, 2 * n] for n in range(5)])
    assert isinstance(error, errors.ModelError)


def test_map_keeps_the_order(engine):
    rows = (np.array([n, n]) for n in range(300))
    answers = list(engine.map(rows, model="double", window=16))
    np.testing.assert_array_equal(answers, [[2 * n, 2 * n] for n in range(300)])


def test_map_as_they_come_and_with_errors(engine):
    rows = [{"a": np.float32(n)} for n in range(20)]
    answers = engine.map(rows, model="double", ordered=False)
    assert sorted(float(answer["a"]) for answer in answers) == [2.0 * n for n in range(20)]
    mixed = engine.map([1.0, -1.0, 2.0], model="raise_on_negative", return_errors=True)
    kinds = [type(answer).__name__ for answer in mixed]
    assert kinds == ["float64", "ModelError", "float64"]
    with pytest.raises(errors.ModelError):
        list(engine.map([1.0, -1.0], model="raise_on_negative"))
    with pytest.raises(errors.InputError, match="window"):
        list(engine.map([1.0], model="double", window=0))


def test_threads_share_it(engine):
    def ask(seed):
        x = np.random.default_rng(seed).random((5, 8))
        return np.array_equal(engine.predict(x, model="double"), x + x)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(64)))


def test_models_have_names(engine):
    assert engine.client.models() == tuple(MODELS)


def test_statistics_count_what_was_done(start):
    engine = start("penstock.testing.models:raise_on_negative", max_batch=4)
    engine.predict(np.ones(10))
    with pytest.raises(errors.RowsFailed):
        engine.predict(np.array([1.0, -1.0]))
    with pytest.raises(errors.ModelError):
        engine.predict(np.array([-1.0]))
    told = engine.statistics()
    assert told.state == "ready"
    assert told.healthy
    assert told.requests.admitted == 5
    assert (told.requests.done, told.requests.partial, told.requests.failed) == (3, 1, 1)
    assert told.requests.queued == 0
    assert told.batches.rows == 13
    assert sum(told.batches.sizes.values()) == told.batches.count
    assert [model.name for model in told.models] == ["raise_on_negative"]
    assert [worker.state for worker in told.workers] == ["ready"]
    assert [client.outstanding for client in told.clients] == [0]


def test_declared_inputs_are_checked(start):
    engine = start(
        "penstock.testing.models:double",
        inputs={"image": ("float32", (2, None)), "size": ("int64", ())},
    )
    good = {"image": np.ones((1, 2, 3), np.float32), "size": np.array([1])}
    assert set(engine.predict(good)) == {"image", "size"}
    with pytest.raises(errors.InputError, match="missing 'size'"):
        engine.predict({"image": good["image"]})
    with pytest.raises(errors.InputError, match="expected float32"):
        engine.predict({**good, "image": np.ones((1, 3, 3), np.float32)})
    with pytest.raises(errors.InputError, match="2 inputs"):
        engine.predict(np.ones(1))


def test_unbatched_requests_stay_whole(start):
    engine = start("penstock.testing.models:Loaded", batched=False, max_batch=2)
    np.testing.assert_array_equal(engine.predict(np.ones(5)), [1] * 5)
    np.testing.assert_array_equal(engine.predict(np.ones(3)), [2] * 3)


def test_an_unbatched_request_fails_whole(start):
    engine = start("penstock.testing.models:raise_on_negative", batched=False)
    with pytest.raises(errors.ModelError):
        engine.predict(np.array([1.0, -1.0]))


def test_a_closed_engine_says_so(start):
    engine = start("penstock.testing.models:double")
    engine.close()
    with pytest.raises(errors.EngineClosed):
        engine.predict(np.ones(1))
    with pytest.raises(errors.EngineClosed):
        engine.statistics()


def test_a_source_that_does_not_load(start):
    with pytest.raises(errors.ModelLoadError, match="nope"):
        start("penstock.testing.models:nope")
    with pytest.raises(errors.ConfigError, match="max_batch"):
        start("penstock.testing.models:double", max_batch=-1)
