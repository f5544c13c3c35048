"""Where the time went, and what is said of it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.tracing.advice import limit_of, percent
from penstock.tracing.record import Load, trace_of
from penstock.tracing.summary import ModelUse, WorkerUse, common, length, union
from tests.tracing.recorded import SECOND, engine, recorded

MS = 1_000_000
MODEL = ModelUse(
    batches=10,
    rows=60,
    busy=0.5,
    mean_batch=6.0,
    max_batch=8,
    padding=0.0,
    closed={"complete": 0.75, "waited": 0.25},
    unbatched="",
)


def summary(*batches, told=None):
    told = told or engine()
    return trace_of(lambda: recorded(*batches), told, 1.0, Load(0.1, 0.2)).summary()


def test_a_requests_time_by_stage():
    times = {"sent": 10 * MS, "began": 20 * MS, "ended": 110 * MS}
    stages = {"gather": 10 * MS, "run": 60 * MS, "scatter": 10 * MS}
    told = summary({**times, **stages, "requests": [(1, 1, 1, 0)]})
    shares = {name: stage.share for name, stage in told.stages.items()}
    assert shares == pytest.approx(
        {
            "queue": 10 / 110,
            "waiting": 10 / 110,
            "gather": 10 / 110,
            "run": 60 / 110,
            "scatter": 10 / 110,
            "reply": 10 / 110,
        }
    )
    assert told.stages["run"].p50 == told.stages["run"].mean == pytest.approx(0.06)
    assert told.total.mean == pytest.approx(0.11)


def test_a_workers_time_adds_up():
    told = summary(
        {
            "sent": SECOND // 10,
            "began": SECOND // 10,
            "gather": 0,
            "run": SECOND // 2,
            "ended": SECOND * 7 // 10,
            "requests": [(1, 1, 1, 0)],
        }
    )
    device = told.device
    assert device.busy == device.run == pytest.approx(0.5)
    assert device.messages == pytest.approx(0.1)
    assert device.held == pytest.approx(0.1)  # before it was sent
    assert device.starved == pytest.approx(0.3)  # after it had ended


def test_workers_are_told_apart():
    told = summary({"worker": 1, "run": SECOND // 2, "ended": SECOND // 2}, told=engine(2))
    assert [worker.busy for worker in told.workers] == [0.0, 0.5]
    assert told.device.busy == 0.25
    assert told.models["m"].busy == 0.25


def test_what_began_before_the_trace_counts_from_its_start():
    told = summary(
        {
            "sent": -SECOND,
            "began": -SECOND,
            "run": SECOND * 5 // 4,
            "ended": SECOND // 4,
            "requests": [(1, 1, 1, -2 * SECOND)],
        }
    )
    assert told.device.busy == pytest.approx(0.25)
    assert told.total.mean == pytest.approx(2.25)


def test_a_models_batches():
    told = summary(
        {"rows": 3, "size": 4, "closed": "full", "requests": [(1, 1, 2, 0), (2, 1, 1, 0)]},
        {"rows": 1, "size": 4, "closed": "idle", "requests": [(2, 2, 1, 0)]},
    )
    model = told.models["m"]
    assert (model.batches, model.rows, model.mean_batch, model.max_batch) == (2, 4, 2.0, 8)
    assert model.padding == 0.5
    assert model.closed == {"full": 0.5, "idle": 0.5}
    assert (told.requests, told.rows, told.batches) == (3, 4, 2)


def test_a_request_that_ran_in_parts_is_one():
    told = summary({"requests": [(1, 1, 1, 0)]}, {"number": 2, "requests": [(1, 1, 1, 0)]})
    assert (told.requests, told.batches) == (1, 2)


def test_an_empty_trace():
    told = summary()
    assert told.limit.stage == "nothing"
    assert told.device.starved == 1
    assert told.total.mean == 0


intervals = st.lists(st.tuples(st.integers(-20, 60), st.integers(-20, 60)), max_size=12)


def moments(several):
    return {moment for first, last in several for moment in range(first, last)}


@given(intervals, intervals)
def test_intervals_behave_like_sets_of_moments(some, others):
    a, b = union(some, 50), union(others, 50)
    assert moments(a) == {moment for moment in moments(some) if 0 <= moment < 50}
    assert moments(common(a, b)) == moments(a) & moments(b)
    assert length(common(a, b)) == len(moments(a) & moments(b))


# ── advice ──────────────────────────────────────────────────────────────────────────────────────


def use(gather=0.0, run=0.0, scatter=0.0, messages=0.0, held=0.0):
    busy = gather + run + scatter
    return WorkerUse(gather, run, scatter, busy, messages, held, 1 - busy - messages - held)


@pytest.mark.parametrize(
    ("device", "load", "stage", "words"),
    [
        (use(run=0.97), Load(), "device", "busy 97 % of the time: it is the limit"),
        (use(gather=0.6, run=0.3), Load(), "gather", "gather takes longer than run"),
        (use(scatter=0.6, run=0.3), Load(), "scatter", "let the model return less"),
        (use(run=0.3, messages=0.7), Load(0.95, 0.5), "engine", "uses 95 % of a core"),
        (use(run=0.3), Load(), "clients", "more requests outstanding would help"),
        (
            use(run=0.3, held=0.5),
            Load(),
            "batching",
            "all clients that were waited for have asked (75 %)",
        ),
        (use(run=0.3, messages=0.6), Load(0.1, 0.5), "messages", "more rows in each request"),
        (use(run=0.3, messages=0.6), Load(0.1, 0.99), "cores", "fewer processes or threads"),
        (use(run=0.3), Load(0.1, 0.99), "cores", "99 % of all cores are in use"),
        (use(run=0.3, held=0.6), Load(0.1, 0.99), "batching", "mostly while requests wait"),
    ],
)
def test_the_limit_is_named(device, load, stage, words):
    limit = limit_of(device, {"m": MODEL}, load)
    assert limit.stage == stage
    assert words in limit.advice


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unbatched": "it says so"}, "m runs one request at a time: it says so"),
        ({"padding": 0.3}, "30 % of the rows that m runs are padding"),
        ({"mean_batch": 2.0}, "2.0 of at most 8 rows: more requests outstanding would fill them"),
        ({"mean_batch": 7.9}, "a larger max_batch (now 8) may help"),
        ({}, "it is the limit"),
    ],
)
def test_a_busy_device_and_its_batches(changes, words):
    model = dataclasses.replace(MODEL, **changes)
    idle = dataclasses.replace(MODEL, busy=0.0, mean_batch=1.0)
    limit = limit_of(use(run=0.97), {"other": idle, "m": model}, Load())
    assert limit.advice.endswith(words)


def test_shares():
    assert [percent(share) for share in (0, 0.001, 0.05, 0.974, 1)] == [
        "0 %",
        "<1 %",
        "5 %",
        "97 %",
        "100 %",
    ]
