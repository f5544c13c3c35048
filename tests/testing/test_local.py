"""What only an engine in this process can do: hold, look, go wrong on purpose."""

from __future__ import annotations

import asyncio
import os
import pickle
import select
import signal
import threading

import numpy as np
import pytest

import penstock
from penstock import errors
from penstock.testing import LocalEngine, ManualClock

WAIT = 10


def identity(x):
    return x


@pytest.fixture
def clock():
    return ManualClock()


def test_lambdas_and_closures_are_welcome():
    factor = 3
    with LocalEngine(lambda x: x * factor) as engine:
        np.testing.assert_array_equal(engine.predict(np.ones(2)), [3, 3])
        assert engine.models() == ("model",)


def test_several_functions_by_name():
    engine = LocalEngine({"twice": lambda x: 2 * x, "thrice": lambda x: 3 * x})
    assert engine.predict([1], model="thrice").tolist() == [3]
    assert engine.models() == ("twice", "thrice")


def test_a_model_object_brings_its_settings():
    model = penstock.Model("penstock.testing.models:double", max_batch=2)
    engine = LocalEngine([model])
    engine.predict(np.ones(5))
    assert [batch.rows for batch in engine.batches] == [2, 2, 1]


def test_a_simple_call_starts_no_thread():
    before = threading.active_count()
    engine = LocalEngine(identity)
    engine.predict(np.ones(3), deadline=100)
    engine.submit(np.ones(3)).result()
    list(engine.map([1.0, 2.0]))
    assert threading.active_count() == before


def test_what_is_held_forms_the_batches_of_a_real_engine():
    engine = LocalEngine(identity, max_batch=4)
    with engine.hold():
        futures = [engine.submit(np.full(rows, rows)) for rows in (1, 2, 2, 3)]
        assert engine.queued == 4
        assert not any(future.done() for future in futures)
    assert [batch.parts for batch in engine.batches] == [(1, 2), (2,), (3,)]
    assert [future.result().tolist() for future in futures] == [[1], [2, 2], [2, 2], [3, 3, 3]]
    np.testing.assert_array_equal(engine.batches[0].inputs, [1, 2, 2])


def test_one_batch_at_a_time():
    engine = LocalEngine(identity, max_batch=2)
    engine.hold()
    futures = [engine.submit(np.array([n])) for n in range(3)]
    batch = engine.run_batch()
    assert batch is not None
    assert batch.rows == 2
    assert [future.done() for future in futures] == [True, True, False]
    assert engine.run_batch().rows == 1
    assert engine.run_batch() is None
    engine.release()


def test_higher_priority_goes_first():
    engine = LocalEngine(identity, max_batch=1)
    with engine.hold():
        for priority in (0, 5, -1):
            engine.submit(np.array([priority]), priority=priority)
    assert [int(batch.inputs[0]) for batch in engine.batches] == [5, 0, -1]


def test_shapes_do_not_mix():
    engine = LocalEngine(identity)
    with engine.hold():
        engine.submit(np.ones((1, 2)))
        engine.submit(np.ones((1, 3)))
        engine.submit(np.ones((1, 2)))
    assert sorted(batch.inputs.shape for batch in engine.batches) == [(1, 3), (2, 2)]


def test_rows_are_copied_when_they_are_submitted():
    engine = LocalEngine(identity)
    x = np.ones(2)
    with engine.hold():
        future = engine.submit(x)
        x[:] = 9
    np.testing.assert_array_equal(future.result(), [1, 1])


def test_cancel_takes_a_request_out_of_the_queue():
    engine = LocalEngine(identity)
    with engine.hold():
        first, second = engine.submit(np.ones(1)), engine.submit(np.ones(1))
        assert first.cancel()
        assert engine.queued == 1
    assert first.cancelled()
    assert second.result().tolist() == [1]
    assert engine.statistics().requests.cancelled == 1


def test_a_full_queue_refuses():
    engine = LocalEngine(identity, queue_rows=3)
    with engine.hold():
        engine.submit(np.ones(2))
        refused = engine.submit(np.ones(2))
    with pytest.raises(errors.Overloaded, match="2 of 3 rows") as caught:
        refused.result()
    assert caught.value.retryable
    assert engine.statistics().requests.refused == {"overloaded": 1}
    assert engine.predict(np.ones(9)).tolist() == [1] * 9  # an empty one takes whatever comes


def test_a_deadline_passes_by_the_manual_clock(clock):
    engine = LocalEngine(identity, clock=clock)
    engine.hold()
    early = engine.submit(np.ones(1), deadline=1.0)
    late = engine.submit(np.ones(1), deadline=2.0)
    clock.advance(0.999)
    assert not early.done()
    clock.advance(0.001)
    assert isinstance(early.exception(), errors.DeadlineExceeded)
    assert engine.queued == 1
    engine.release()
    assert late.result().tolist() == [1]


def test_a_deadline_passes_while_the_model_runs(clock):
    engine = LocalEngine(identity, clock=clock)
    engine.faults.delay(0.5)
    assert engine.predict(np.ones(1), deadline=0.6).tolist() == [1]
    with pytest.raises(errors.DeadlineExceeded):
        engine.predict(np.ones(1), deadline=0.4)
    assert clock.now() == 1.0


def test_a_deadline_passes_by_the_real_clock():
    engine = LocalEngine(identity)
    engine.hold()
    future = engine.submit(np.ones(1), deadline=0.02)
    assert isinstance(future.exception(WAIT), errors.DeadlineExceeded)


def test_rows_answered_before_the_deadline_are_kept(clock):
    engine = LocalEngine(identity, max_batch=2, clock=clock)
    engine.hold()
    future = engine.submit(np.arange(4), deadline=1.0)
    engine.run_batch()
    clock.advance(1.0)
    failed = future.exception()
    assert isinstance(failed, errors.RowsFailed)
    assert set(failed.errors) == {2, 3}
    np.testing.assert_array_equal(failed.results, [0, 1, 0, 0])


def test_close_fails_what_is_held():
    engine = LocalEngine(identity)
    engine.hold()
    future = engine.submit(np.ones(1))
    engine.close()
    assert isinstance(future.exception(), errors.EngineClosed)
    engine.close()


def test_the_next_calls_fail_as_told():
    engine = LocalEngine(identity)
    engine.faults.fail_next(errors.WorkerLost("gone"), times=2)
    engine.faults.overload()
    for kind in (errors.WorkerLost, errors.WorkerLost, errors.Overloaded):
        with pytest.raises(kind):
            engine.predict(np.ones(1))
    assert engine.predict(np.ones(1)).tolist() == [1]
    assert len(engine.batches) == 1


def test_each_failed_call_has_an_error_of_its_own():
    engine = LocalEngine(identity)
    engine.faults.fail_next(errors.EngineClosed, times=2)
    first, second = (engine.submit(np.ones(1)).exception() for _ in range(2))
    assert first is not second


def test_a_lost_worker_takes_only_the_guilty_rows():
    engine = LocalEngine(lambda x: -x)
    engine.faults.lose_worker_on(lambda row: row == 13)
    with engine.hold():
        innocent = engine.submit(np.array([1, 2]))
        guilty = engine.submit(np.array([3, 13]))
    assert innocent.result().tolist() == [-1, -2]
    failed = guilty.exception()
    assert isinstance(failed, errors.RowsFailed)
    assert isinstance(failed.errors[1], errors.WorkerLost)
    assert failed.results.tolist() == [-3, 0]
    assert [(batch.rows, batch.alone) for batch in engine.batches] == [(4, False)] + 4 * [(1, True)]
    assert engine.statistics().deaths == 2
    engine.faults.clear()
    assert engine.predict(np.array([13])).tolist() == [-13]


def test_a_lost_worker_ends_an_unbatched_request():
    engine = LocalEngine(identity, batched=False)
    engine.faults.lose_worker_on(lambda row: row == 13)
    with pytest.raises(errors.WorkerLost):
        engine.predict(np.array([1, 13]))


def test_an_interrupt_in_the_model_reaches_the_caller_and_ends_the_call():
    def interrupted(x):
        raise KeyboardInterrupt

    engine = LocalEngine(interrupted, batched=False)
    with pytest.raises(KeyboardInterrupt):
        engine.submit(np.ones(1))
    assert engine.queued == 0


def test_what_waits_behind_an_interrupted_call_is_answered():
    inside, go_on = threading.Event(), threading.Event()

    def interrupted_at_first(x):
        if not go_on.is_set():
            inside.set()
            assert go_on.wait(WAIT)
            raise KeyboardInterrupt
        return x

    def ask_first():
        with pytest.raises(KeyboardInterrupt):
            engine.predict(np.ones(1))

    engine = LocalEngine(interrupted_at_first, batched=False)
    first = threading.Thread(target=ask_first)
    first.start()
    assert inside.wait(WAIT)
    behind = engine.submit(np.array([2.0]))
    go_on.set()
    first.join(WAIT)
    assert behind.result(WAIT).tolist() == [2]


def test_threads_that_ask_at_once_share_batches():
    inside, go_on = threading.Event(), threading.Event()

    def slow_at_first(x):
        inside.set()
        assert go_on.wait(WAIT)
        return x

    engine = LocalEngine(slow_at_first)
    first = threading.Thread(target=engine.predict, args=(np.ones(1),))
    first.start()
    assert inside.wait(WAIT)
    futures = [engine.submit(np.array([float(n)])) for n in range(5)]
    go_on.set()
    assert [future.result(WAIT).tolist() for future in futures] == [[n] for n in range(5)]
    first.join(WAIT)
    assert [batch.rows for batch in engine.batches] == [1, 5]


def test_a_coroutine_waits_while_the_engine_is_held():
    engine = LocalEngine(identity)

    async def ask_and_release():
        engine.hold()
        asked = asyncio.create_task(engine.predict_async(np.ones(1)))
        await asyncio.sleep(0)
        assert not asked.done()
        engine.release()
        return await asyncio.wait_for(asked, WAIT)

    assert asyncio.run(ask_and_release()).tolist() == [1]


def test_a_cancelled_coroutine_leaves_the_queue():
    engine = LocalEngine(identity)

    async def ask_and_cancel():
        with engine.hold():
            asked = asyncio.create_task(engine.predict_async(np.ones(1)))
            await asyncio.sleep(0)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked

    asyncio.run(ask_and_cancel())
    assert engine.batches == []


def test_declared_but_wrong_outputs_are_model_errors():
    with pytest.raises(errors.ModelError, match="expected 2 rows"):
        LocalEngine(lambda x: x[:1], batched=False).predict(np.ones(2))
    with pytest.raises(errors.ModelError, match="got tuple"):
        LocalEngine(lambda x: (x, x)).predict(np.ones(1))


def test_a_class_is_made_once():
    made = []

    class Heavy:
        def __init__(self):
            made.append(self)

        def __call__(self, x):
            return x

    engine = LocalEngine(Heavy)
    engine.predict(np.ones(1))
    engine.predict(np.ones(1))
    assert len(made) == 1


def test_it_does_not_travel():
    with pytest.raises(TypeError, match="one process"):
        pickle.dumps(LocalEngine(identity))


def test_it_works_on_in_a_forked_child():
    engine = LocalEngine(identity)
    with engine.hold():
        child = os.fork()
        if child == 0:
            try:
                engine.release()
                assert engine.predict(np.ones(1)).tolist() == [1]
                os._exit(0)
            finally:
                os._exit(1)
        process = os.pidfd_open(child)
        try:
            assert select.select([process], [], [], WAIT)[0]
        finally:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)
            _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
