"""Futures, coroutines, streams and threads, through a real engine."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import math
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.client.reader import Reader
from penstock.client.waiting import Latch
from penstock.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineClosed,
    InputError,
    ModelError,
    Overloaded,
    RowsFailed,
)
from penstock.statistics import ClientStatistics
from tests.client.conftest import model
from tests.client.gate import Gate, passing
from tests.conditions import until


def _own(client: penstock.Client) -> ClientStatistics:
    """What the engine knows of this client: it alone has this label."""
    label = client._link.label
    (found,) = [one for one in client.statistics().clients if one.label == label]
    return found


@pytest.fixture
def labelled(engine: penstock.Engine, request: pytest.FixtureRequest) -> Iterator[penstock.Client]:
    """A client that can be told from others in the statistics."""
    with penstock.connect(engine.name, label=request.node.name[:60]) as made:
        yield made


def _occupy(client: penstock.Client, gate: Gate) -> list[Any]:
    """One that runs and one behind it, which the worker may have already: others have to wait."""
    before = client.statistics().requests.admitted
    answers = [client.submit(gate.rows(tag), model="gated") for tag in (1, 2)]
    gate.wait_started()
    until(lambda: client.statistics().requests.admitted == before + 2)
    return answers


# ── order, deadlines, cancelling ───────────────────────────────────────────────────────────────


def test_those_of_higher_priority_go_first(labelled: penstock.Client, gate: Gate) -> None:
    first = _occupy(labelled, gate)
    low = [labelled.submit(gate.rows(tag), model="gated") for tag in (10, 11, 12)]
    high = [labelled.submit(gate.rows(tag), model="gated", priority=5) for tag in (20, 21, 22)]
    lowest = labelled.submit(gate.rows(30), model="gated", priority=-1)
    until(lambda: _own(labelled).outstanding == 9)
    gate.open()
    for answer in [*first, *low, *high, lowest]:
        answer.result(30)
    assert [tag for tag in gate.order if tag > 2] == [20, 21, 22, 10, 11, 12, 30]


def test_clients_take_turns(engine: penstock.Engine, gate: Gate) -> None:
    with (
        penstock.connect(engine.name) as flooder,
        penstock.connect(engine.name) as other,
    ):
        answers = _occupy(flooder, gate)
        before = flooder.statistics().requests.admitted
        answers += [flooder.submit(gate.rows(100 + n), model="gated") for n in range(20)]
        until(lambda: flooder.statistics().requests.admitted == before + 20)
        answers += [other.submit(gate.rows(200 + n), model="gated") for n in range(3)]
        until(lambda: flooder.statistics().requests.admitted == before + 23)
        gate.open()
        for answer in answers:
            answer.result(30)
    places = [gate.order.index(200 + n) for n in range(3)]
    assert places == sorted(places)
    assert places[-1] <= 2 + 6


def test_a_deadline_passes_in_the_queue(labelled: penstock.Client, gate: Gate) -> None:
    first = _occupy(labelled, gate)
    late = labelled.submit(gate.rows(9), model="gated", deadline=0.05)
    with pytest.raises(DeadlineExceeded):
        late.result(30)
    until(lambda: _own(labelled).outstanding == 2)
    gate.open()
    for answer in first:
        answer.result(30)
    assert gate.order == [1, 2]


def test_a_deadline_passes_while_it_runs(labelled: penstock.Client, gate: Gate) -> None:
    """The caller is told at once; the slot stays the engine's until the batch is done."""
    running = labelled.submit(gate.rows(1), model="gated", deadline=0.3)
    with pytest.raises(DeadlineExceeded):
        running.result(30)
    assert _own(labelled).outstanding == 1
    session = labelled._session()
    taken = {id(piece.slot) for piece in session.pending.values()}
    assert len(taken) == 1
    for number in range(3):  # others get other slots
        labelled.submit(passing(number), model="gated")
    slots = {id(piece.slot) for piece in session.pending.values()}
    assert taken < slots
    assert len(slots) == 4
    gate.open()
    until(lambda: _own(labelled).outstanding == 0)
    until(lambda: not session.pending)


def test_a_deadline_that_has_passed_already(labelled: penstock.Client) -> None:
    for deadline in (0, -1.5):
        with pytest.raises(DeadlineExceeded):
            labelled.predict(np.zeros(1), model="identity", deadline=deadline)


def test_a_deadline_that_is_kept(labelled: penstock.Client) -> None:
    for deadline in (60, 1e9, float("inf")):
        assert labelled.predict(np.ones(1), model="doubled", deadline=deadline).tolist() == [2]


def test_a_deadline_of_a_large_call_keeps_what_is_there(
    labelled: penstock.Client, gate: Gate
) -> None:
    inputs = passing(*range(4))
    rows = gate.rows(50)
    mixed = {
        "gate": [*inputs["gate"], *rows["gate"]],
        "tag": np.concatenate([inputs["tag"], rows["tag"]]),
    }
    with pytest.raises((RowsFailed, DeadlineExceeded)) as raised:
        labelled.predict(mixed, model="gated", deadline=0.5)
    gate.open()
    if isinstance(raised.value, RowsFailed):
        assert 4 in raised.value.errors
        assert isinstance(raised.value.errors[4], DeadlineExceeded)
    until(lambda: _own(labelled).outstanding == 0)


def test_cancel_while_queued(labelled: penstock.Client, gate: Gate) -> None:
    first = _occupy(labelled, gate)
    queued = labelled.submit(gate.rows(9), model="gated")
    until(lambda: _own(labelled).outstanding == 3)
    assert queued.cancel()
    assert queued.cancelled()
    assert queued.cancel()
    until(lambda: _own(labelled).outstanding == 2)
    gate.open()
    for answer in first:
        answer.result(30)
    assert gate.order == [1, 2]


def test_cancel_while_running(labelled: penstock.Client, gate: Gate) -> None:
    running = labelled.submit(gate.rows(1), model="gated")
    gate.wait_started()
    assert running.cancel()
    assert _own(labelled).outstanding == 1
    gate.open()
    until(lambda: _own(labelled).outstanding == 0)
    assert running.cancelled()


def test_a_cancelled_answer_raises_our_own_error(labelled: penstock.Client, gate: Gate) -> None:
    running = labelled.submit(gate.rows(1), model="gated")
    assert running.cancel()
    with pytest.raises(Cancelled):
        running.result(1)
    with pytest.raises(concurrent.futures.CancelledError):
        running.exception(1)


def test_an_answer_that_is_there_cannot_be_cancelled(labelled: penstock.Client) -> None:
    answer = labelled.submit(np.ones(2), model="doubled")
    answer.result(30)
    assert not answer.cancel()
    assert not answer.cancelled()
    assert answer.result().tolist() == [2, 2]


def test_waiting_has_a_limit(labelled: penstock.Client, gate: Gate) -> None:
    answer = labelled.submit(gate.rows(5), model="gated")
    for _ in range(2):
        with pytest.raises(concurrent.futures.TimeoutError):
            answer.result(0.02)
    with pytest.raises(concurrent.futures.TimeoutError):
        answer.exception(0)
    assert not answer.done()
    gate.open()
    assert answer.result(30).tolist() == [5]
    assert answer.exception(0) is None


def test_answers_are_futures_like_others(labelled: penstock.Client, gate: Gate) -> None:
    late = labelled.submit(gate.rows(1), model="gated")
    done, waiting = concurrent.futures.wait([late], timeout=0)
    assert (done, waiting) == (set(), {late})
    gate.open()
    soon = [labelled.submit(np.full(1, n), model="identity") for n in range(20)]
    finished = {id(a) for a in concurrent.futures.as_completed([late, *soon], timeout=30)}
    assert len(finished) == 21


def test_answers_nobody_waits_for_free_their_slots(labelled: penstock.Client) -> None:
    for _ in range(500):
        labelled.submit(np.zeros((8, 1000)), model="identity")
    until(lambda: _own(labelled).outstanding == 0)
    assert labelled.predict(np.ones(1), model="doubled").tolist() == [2]


# ── limits ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def small_engine() -> Iterator[penstock.Engine]:
    """An engine that allows little."""
    with penstock.Engine(
        [model("gated", max_batch=1), model("identity"), model("grown", max_batch=128)],
        queue_rows=300,
        client_memory=4 << 20,
        client_requests=50,
    ) as started:
        yield started


def test_a_full_queue_is_overloaded(gate: Gate) -> None:
    with penstock.Engine(model("gated", max_batch=1), queue_rows=6) as engine:
        client = engine.client
        answers = [client.submit(gate.rows(tag)) for tag in range(12)]
        with pytest.raises(Overloaded, match=r"6 of 6 rows") as raised:
            answers[-1].result(30)
        assert raised.value.retryable
        gate.open()
        faults = [answer.exception(30) for answer in answers]
        assert 6 <= faults.count(None) <= 8  # what waits, what runs, and what is about to
        assert {type(fault) for fault in faults} == {Overloaded, type(None)}
        assert client.predict(passing(7)).tolist() == [7]
        assert engine.statistics().requests.refused["overloaded"] >= 1


def test_a_row_larger_than_all_memory_is_refused(small_engine: penstock.Engine) -> None:
    with pytest.raises(InputError, match="client_memory"):
        small_engine.predict(np.zeros((1, 5 << 20), np.uint8), model="identity")


def test_more_than_fits_goes_through_a_window(small_engine: penstock.Engine) -> None:
    x = np.arange(64 << 20, dtype=np.uint8).reshape(64, 1 << 20)
    got = small_engine.predict(x, model="identity")
    np.testing.assert_array_equal(got, x)
    (own,) = small_engine.statistics().clients
    assert own.bytes <= 4 << 20


def test_answers_larger_than_all_memory_come_again_and_again(
    small_engine: penstock.Engine,
) -> None:
    """What was learnt of the first must not make the next impossible."""
    for _ in range(3):
        got = small_engine.predict(np.arange(100.0), model="grown")
        assert got.shape == (100, 10_000)
        np.testing.assert_array_equal(got[:, 7], np.arange(100.0))


def test_callers_wait_for_memory_until_their_deadline(
    small_engine: penstock.Engine, gate: Gate
) -> None:
    client = small_engine.client
    big = np.zeros((1, 3 << 20), np.uint8)
    rows = gate.rows(1)
    held = client.submit({**rows, "more": big}, model="gated")
    gate.wait_started()
    with pytest.raises(DeadlineExceeded):
        client.predict(big, model="identity", deadline=0.05)
    waiting: list[Any] = []
    thread = threading.Thread(target=lambda: waiting.append(client.predict(big, model="identity")))
    thread.start()
    gate.open()
    thread.join(30)
    assert waiting[0].shape == big.shape
    assert held.result(30).tolist() == [1]


def test_more_requests_than_credits_wait(small_engine: penstock.Engine) -> None:
    with penstock.connect(small_engine.name) as client:
        answers = [client.submit(np.full(1, n), model="identity") for n in range(300)]
        assert [float(answer.result(30)[0]) for answer in answers] == list(range(300))


def test_an_answer_that_is_asked_for_again_and_again_comes(
    labelled: penstock.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled.predict(np.array([1.0]), model="doubled")  # from now on the caller reads
    timer = labelled._session().reader._timer
    monkeypatch.setattr(timer, "set", lambda: None)  # it is set anew before it runs out
    answer = labelled.submit(np.array([2.0]), model="doubled")

    def result_now() -> Any:
        with contextlib.suppress(concurrent.futures.TimeoutError):
            return answer.result(timeout=0)

    assert until(result_now).tolist() == [4]


# ── callbacks and threads ──────────────────────────────────────────────────────────────────────


def test_a_callback_may_predict(labelled: penstock.Client) -> None:
    results: list[Any] = []
    done = threading.Event()

    def again(answer: concurrent.futures.Future[Any]) -> None:
        results.append(labelled.predict(answer.result() + 1, model="doubled").tolist())
        done.set()

    labelled.submit(np.array([1.0]), model="doubled").add_done_callback(again)
    assert done.wait(30)
    assert results == [[6.0]]


def test_a_callback_that_raises_hurts_nobody(
    labelled: penstock.Client, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    def fail(answer: Any) -> None:
        raise RuntimeError("on purpose")

    answer = labelled.submit(np.zeros(1), model="identity")
    answer.add_done_callback(fail)
    answer.add_done_callback(lambda _: done.set())
    assert done.wait(30)
    assert labelled.predict(np.zeros(1), model="identity").tolist() == [0]


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit])
def test_callbacks_run_behind_one_that_raises_what_is_no_exception(
    labelled: penstock.Client, gate: Gate, error: type[BaseException]
) -> None:
    queued, done = threading.Event(), threading.Event()

    def leave(_: object) -> None:
        assert queued.wait(20)
        raise error

    answer = labelled.submit(gate.rows(1), model="gated")
    answer.add_done_callback(leave)
    answer.add_done_callback(lambda _: done.set())
    answer.add_quick_callback(lambda _: queued.set())
    gate.open()
    assert done.wait(20)


def test_a_callback_on_an_answer_that_is_there_runs_at_once(labelled: penstock.Client) -> None:
    answer = labelled.submit(np.zeros(1), model="identity")
    answer.result(30)
    called: list[bool] = []
    answer.add_done_callback(lambda _: called.append(True))
    assert called == [True]


def test_callbacks_of_cancelled_answers_run(labelled: penstock.Client, gate: Gate) -> None:
    done = threading.Event()
    answer = labelled.submit(gate.rows(1), model="gated")
    answer.add_done_callback(lambda _: done.set())
    answer.cancel()
    assert done.wait(30)


def test_threads_share_a_client(labelled: penstock.Client) -> None:
    """Predicting, submitting, streaming, cancelling, with deadlines and errors, all at once."""
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        try:
            for step in range(60):
                x = generator.random((int(generator.integers(0, 70)), 5))
                how = (seed + step) % 6
                if how == 0:
                    np.testing.assert_array_equal(labelled.predict(x, model="doubled"), x + x)
                elif how == 1:
                    answers = [labelled.submit(x + n, model="doubled") for n in range(5)]
                    for number, answer in enumerate(answers):
                        np.testing.assert_array_equal(answer.result(30), 2 * (x + number))
                elif how == 2:
                    got = list(labelled.map(x, model="doubled", window=4))
                    np.testing.assert_array_equal(got, x + x) if len(x) else None
                elif how == 3:
                    labelled.submit(x, model="identity").cancel()
                elif how == 4:
                    with contextlib.suppress(DeadlineExceeded, RowsFailed):
                        labelled.predict(x, model="identity", deadline=1e-4 * (step + 1))
                else:
                    with pytest.raises(ModelError):
                        labelled.predict(np.array([-1.0 - seed]), model="picky")
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert not any(thread.is_alive() for thread in threads)
    assert faults == []
    until(lambda: _own(labelled).outstanding == 0)


def test_closing_while_others_wait(engine: penstock.Engine, gate: Gate) -> None:
    client = penstock.connect(engine.name)
    answers = [client.submit(gate.rows(n), model="gated") for n in range(3)]
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            answers[1].result(30)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    gate.wait_started()
    client.close()
    thread.join(30)
    for answer in answers:
        with pytest.raises(EngineClosed):
            answer.result(1)
    assert isinstance(raised[0], EngineClosed)
    with pytest.raises(EngineClosed, match="closed"):
        client.predict(np.zeros(1), model="identity")
    client.close()


def test_a_map_may_be_collected_in_the_middle_of_anything(engine: penstock.Engine) -> None:
    with penstock.connect(engine.address) as client:
        session = client._session()
        collected = threading.Event()

        def collect() -> None:
            with session.lock:  # as when a caller's bookkeeping makes Python collect
                gc.collect()
            collected.set()

        gc.disable()
        try:
            held = {"outputs": client.map(np.zeros((100, 3)), model="identity", window=20)}
            held["itself"] = held
            next(held["outputs"])
            del held
            threading.Thread(target=collect, daemon=True).start()
            until(collected.is_set)
        finally:
            gc.enable()
        client.predict(np.zeros((1, 3)), model="identity")


def test_a_client_that_is_let_go_leaves(engine: penstock.Engine) -> None:
    client = penstock.connect(engine.name, label="to be forgotten")
    client.predict(np.zeros(1), model="identity")

    def labels() -> list[str]:
        return [one.label for one in engine.statistics().clients]

    assert "to be forgotten" in labels()
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    until(lambda: "to be forgotten" not in labels())


def test_an_answer_keeps_its_client_alive(engine: penstock.Engine, gate: Gate) -> None:
    answer = penstock.connect(engine.name).submit(gate.rows(4), model="gated")
    gc.collect()
    gate.open()
    assert answer.result(30).tolist() == [4]


def _waits(thread: int) -> bool:
    """Whether that thread waits for an answer: reading itself, or for another that reads."""
    places = (Reader._wait.__code__, Latch.wait.__code__)
    return sys._current_frames()[thread].f_code in places


@pytest.mark.parametrize("callback", [False, True])
def test_an_interrupt_while_waiting_costs_one_call_only(
    labelled: penstock.Client, gate: Gate, callback: bool
) -> None:
    main = threading.main_thread().ident
    assert main is not None
    assert labelled.predict(np.ones(1), model="doubled").tolist() == [2]
    other = labelled.submit(gate.rows(1), model="gated")
    if callback:
        other.add_done_callback(lambda _: None)  # then it is the session's thread that reads

    def interrupt() -> None:
        until(lambda: _waits(main))
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        labelled.predict(gate.rows(2), model="gated")
    thread.join(30)
    gate.open()
    assert other.result(30).tolist() == [1]
    assert labelled.predict(np.ones(1), model="doubled").tolist() == [2]
    until(lambda: _own(labelled).outstanding == 0)


# ── streams ────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_comes_out_in_order(labelled: penstock.Client) -> None:
    got = list(labelled.map((np.full(3, n) for n in range(500)), model="doubled"))
    assert [row.tolist() for row in got] == [[2 * n] * 3 for n in range(500)]


def test_a_stream_of_dicts_and_of_strings(labelled: penstock.Client) -> None:
    rows = ({"a": np.float32(n), "b": f"row {n}"} for n in range(40))
    got = list(labelled.map(rows, model="identity"))
    assert [row["a"] for row in got] == list(range(40))
    assert [row["b"] for row in got] == [f"row {n}".encode() for n in range(40)]
    words = [b"plain", "text", b"ends with nuls\0\0", b""]
    got = list(labelled.map(words, model="identity"))
    assert got == [b"plain", b"text", b"ends with nuls\0\0", b""]


def test_an_empty_stream(labelled: penstock.Client) -> None:
    assert list(labelled.map([], model="identity")) == []


def test_rows_of_plain_python_become_what_the_model_takes(labelled: penstock.Client) -> None:
    rows = [[1, 2, 3], (4.5, 5, 6)]
    got = list(labelled.map(rows, model="bare"))
    assert np.array_equal(got, labelled.predict(rows, model="bare"))
    assert got[1].dtype == np.float32


def test_a_stream_is_bounded(labelled: penstock.Client) -> None:
    taken: list[int] = []

    def rows() -> Iterator[Any]:
        for number in range(1_000):
            taken.append(number)
            yield np.array(number)

    stream = labelled.map(rows(), window=5, model="identity")
    for number in range(20):
        assert next(stream) == number
        assert len(taken) <= number + 1 + 5
    stream.close()  # type: ignore[attr-defined]
    assert len(taken) <= 26


def test_a_stream_in_any_order(labelled: penstock.Client, gate: Gate) -> None:
    def rows() -> Iterator[Any]:
        yield {"gate": str(gate._path), "tag": np.int64(1)}
        for number in range(2, 5):
            yield {"gate": "", "tag": np.int64(number)}

    stream = labelled.map(rows(), ordered=False, window=10, model="gated")
    gate.open()
    assert sorted(stream) == [1, 2, 3, 4]


def test_the_first_that_is_ready_comes_first(engine: penstock.Engine, gate: Gate) -> None:
    """The first row waits at the gate, in a worker of its own; the others pass by."""
    with penstock.Engine(model("gated", max_batch=1), workers=2) as pair:
        rows = [{"gate": str(gate._path), "tag": np.int64(0)}]
        rows += [{"gate": "", "tag": np.int64(n)} for n in range(1, 6)]
        stream = pair.map(rows, ordered=False, window=10)
        first = next(stream)
        assert first != 0
        gate.open()
        assert sorted([first, *stream]) == [0, 1, 2, 3, 4, 5]


def test_a_stream_ends_with_the_first_error(labelled: penstock.Client) -> None:
    stream = labelled.map([np.array(1.0), np.array(-1.0), np.array(2.0)], model="picky", window=2)
    assert next(stream) == 2.0
    with pytest.raises(ModelError):
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)


def test_a_stream_with_its_errors(labelled: penstock.Client) -> None:
    rows = [np.array(float(n) if n % 3 else -1.0) for n in range(10)]
    got = list(labelled.map(rows, model="picky", return_errors=True))
    for number, value in enumerate(got):
        if number % 3:
            assert value == 2.0 * number
        else:
            assert isinstance(value, ModelError)


def test_a_stream_that_is_left_early_cancels_the_rest(
    labelled: penstock.Client, gate: Gate
) -> None:
    rows = [{"gate": "", "tag": np.int64(0)}]
    rows += [{"gate": str(gate._path), "tag": np.int64(n)} for n in range(1, 20)]
    stream = labelled.map(rows, window=20, model="gated")
    assert next(stream) == 0
    stream.close()  # type: ignore[attr-defined]
    until(lambda: _own(labelled).outstanding <= 2)  # what runs is let finish
    gate.open()
    until(lambda: _own(labelled).outstanding == 0)
    assert len(gate.order) <= 2


def test_a_source_that_raises_ends_the_stream(labelled: penstock.Client) -> None:
    def rows() -> Iterator[Any]:
        yield np.array(1)
        raise KeyError("the source broke")

    with pytest.raises(KeyError, match="the source broke"):
        list(labelled.map(rows(), model="identity"))
    until(lambda: _own(labelled).outstanding == 0)


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_has_room_for_one(labelled: penstock.Client, window: int) -> None:
    with pytest.raises(InputError, match="window"):
        next(labelled.map([np.zeros(1)], window=window, model="identity"))


# ── asyncio ────────────────────────────────────────────────────────────────────────────────────


def test_many_tasks_at_once(labelled: penstock.Client) -> None:
    async def one(number: int) -> list[float]:
        got = await labelled.predict_async(np.full(3, float(number)), model="doubled")
        return list(got)

    async def all_of_them() -> list[list[float]]:
        return await asyncio.gather(*(one(number) for number in range(300)))

    got = asyncio.run(all_of_them())
    assert got == [[2.0 * number] * 3 for number in range(300)]


def test_large_calls_do_not_hold_up_the_loop(labelled: penstock.Client) -> None:
    x = np.arange(20_000.0).reshape(-1, 4)

    async def both() -> tuple[Any, list[Any]]:
        large = asyncio.create_task(labelled.predict_async(x, model="doubled"))
        small = [await labelled.predict_async(np.ones(1), model="doubled") for _ in range(20)]
        return await large, small

    large, small = asyncio.run(both())
    np.testing.assert_array_equal(large, x + x)
    assert [float(one[0]) for one in small] == [2.0] * 20


def test_errors_reach_the_task(labelled: penstock.Client) -> None:
    async def fail() -> None:
        await labelled.predict_async(np.array([-1.0]), model="picky")

    with pytest.raises(ModelError, match="negative"):
        asyncio.run(fail())

    async def wrong() -> None:
        await labelled.predict_async(np.zeros(1), model="nonsense")

    with pytest.raises(InputError):
        asyncio.run(wrong())


def test_cancelling_a_task_reaches_the_engine(labelled: penstock.Client, gate: Gate) -> None:
    async def cancel() -> None:
        tasks = [
            asyncio.create_task(labelled.predict_async(gate.rows(n), model="gated"))
            for n in range(6)
        ]
        await asyncio.sleep(0)
        await asyncio.to_thread(gate.wait_started)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)

    asyncio.run(cancel())
    until(lambda: _own(labelled).outstanding <= 2)
    gate.open()
    until(lambda: _own(labelled).outstanding == 0)
    assert len(gate.order) <= 2


def test_cancelling_a_large_call_reaches_the_engine(labelled: penstock.Client, gate: Gate) -> None:
    """Also when it is still being sent: rows that were not sent are never sent."""
    rows = 200

    async def cancel() -> None:
        inputs = gate.rows(*range(rows))
        task = asyncio.create_task(labelled.predict_async(inputs, model="gated"))
        await asyncio.to_thread(gate.wait_started)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()
        await asyncio.to_thread(until, lambda: _own(labelled).outstanding == 0)

    asyncio.run(cancel())
    assert len(gate.order) < rows / 2


def test_a_timeout_of_asyncio(labelled: penstock.Client, gate: Gate) -> None:
    async def hurry() -> None:
        await asyncio.wait_for(labelled.predict_async(gate.rows(1), model="gated"), 0.1)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(hurry())
    gate.open()
    until(lambda: _own(labelled).outstanding == 0)


def test_a_new_client_connects_without_holding_up_the_loop(engine: penstock.Engine) -> None:
    client = penstock.Client(engine.address)

    async def first() -> Any:
        return await client.predict_async(np.ones(1), model="doubled")

    assert asyncio.run(first()).tolist() == [2]
    client.close()


def test_more_shapes_in_a_batch_than_there_are_numbers_for_them(gate: Gate) -> None:
    """Each answer has the shape that was asked for, whatever the others' have."""
    sizes = [(a, b, c) for a in range(1, 14) for b in range(1, 14) for c in range(1, 9)]
    boxes, gated = model("boxes", max_batch=4096), model("gated", max_batch=1)
    with penstock.Engine([boxes, gated], client_requests=4096) as engine:
        engine.predict(np.array(sizes[-1:]), model="boxes")  # from now on slots have room enough
        holding = engine.submit(gate.rows(1), model="gated")
        gate.wait_started()
        answers = [(size, engine.submit(np.array([size]), model="boxes")) for size in sizes]
        until(lambda: engine.statistics().requests.admitted == len(sizes) + 2)
        gate.open()
        holding.result(30)
        for size, answer in answers:
            got = answer.result(30)
            assert got.shape == (1, *size)
            assert got.ravel().tolist() == [n % 256 for n in range(math.prod(size))]
        assert max(engine.statistics().batches.sizes) > 1_024, "in one batch"
