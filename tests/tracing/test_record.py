"""What an engine has written down, made into a trace; when stages are placed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.testing import LocalEngine
from penstock.tracing.record import Load, Meter, trace_of
from tests.tracing.recorded import SINCE, engine, recorded


def taken(*batches, wanted=1.0, **more):
    return trace_of(lambda: recorded(*batches, **more), engine(), wanted, Load())


def test_times_count_from_the_start():
    trace = taken({"sent": 5, "began": 6, "ended": 20, "requests": [(1, 7, 2, -3)]})
    (batch,) = trace.batches
    assert (batch.sent, batch.ended) == (5, 20)
    assert batch.model == "m"
    (request,) = batch.requests
    assert tuple(request) == (1, 7, 2, -3)
    assert trace.requests == 1
    assert trace.seconds == pytest.approx(1.0)


def test_stages_follow_each_other_from_where_the_worker_was_free():
    times = {"gather": 2, "run": 5, "scatter": 1}
    (batch,) = taken({"sent": 10, "began": 12, "ended": 30, **times}).batches
    assert batch.placed == (12, 14, 19, 20)


def test_stages_that_would_end_too_late_begin_earlier():
    times = {"gather": 2, "run": 5, "scatter": 1}
    (batch,) = taken({"sent": 10, "began": 15, "ended": 20, **times}).batches
    assert batch.placed == (12, 14, 19, 20)


def test_stages_that_have_no_room_are_squeezed():
    times = {"gather": 20, "run": 50, "scatter": 30}
    (batch,) = taken({"sent": 10, "began": 12, "ended": 20, **times}).batches
    assert batch.placed == (10, 12, 17, 20)


@given(
    st.lists(
        st.tuples(*[st.integers(0, 50)] * 3, st.integers(0, 40), st.integers(0, 40)), max_size=30
    )
)
def test_stages_of_a_worker_never_overlap(parts):
    batches, now = [], 0
    for gather, run, scatter, early, took in parts:
        sent, began, now = max(0, now - early), now, now + took
        stages = {"gather": gather, "run": run, "scatter": scatter}
        batches.append({"sent": sent, "began": began, "ended": now, **stages})
    before = 0
    for batch in taken(*batches).batches:
        marks = [max(batch.sent, before), *batch.placed, batch.ended]
        assert marks == sorted(marks)
        before = batch.placed.scattered


def test_a_long_recording_comes_in_pieces():
    pieces = [
        recorded({"number": 1}, more=True),
        recorded({"number": 2}, more=True),
        recorded({"number": 3}),
    ]
    trace = trace_of(lambda: pieces.pop(0), engine(), 1.0, Load())
    assert [batch.number for batch in trace.batches] == [1, 2, 3]


def test_a_recording_without_room_covers_less_time():
    trace = taken({"sent": 0, "began": 0, "ended": 500_000_000}, left_out=9)
    assert (trace.left_out, trace.seconds) == (9, 0.5)


@pytest.mark.parametrize("data", [recorded(since=0), recorded(until=SINCE + 500_000_000)])
def test_a_recording_that_somebody_else_has_taken_or_begun_anew(data):
    with pytest.raises(PenstockError, match="somebody else"):
        trace_of(lambda: data, engine(), 1.0, Load())


def test_clients_have_names():
    clients = {"1": {"pid": 5, "label": "pid 5"}, "2": {"pid": 6, "label": "loader"}}
    trace = trace_of(lambda: recorded(clients=clients), engine(), 1.0, Load())
    assert trace.clients == {1: "client 1: pid 5", 2: "client 2: loader (pid 6)"}


def test_a_meter_of_what_is_no_engine_knows_only_the_machine():
    load = Meter(1).load()
    assert load.engine is None
    assert load.machine is None or 0 <= load.machine <= 1


def test_an_engine_without_processes_has_nothing_to_trace():
    with LocalEngine(lambda x: x) as local:
        assert local.trace(3.0).batches == ()
        assert local.trace().summary().limit.stage == "nothing"
