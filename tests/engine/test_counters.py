"""What is counted of a model: batches, reasons, padding, and times of late."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.counters import ModelCounters, Recent
from penstock.engine.workers import Batch, Worker
from penstock.scheduling.decisions import Closed, Decision
from penstock.scheduling.lanes import Lane
from penstock.scheduling.queue import Job
from penstock.statistics import Percentiles, statistics_of
from penstock.transport import messages as m
from tests.engine.room import SECOND, Room

MS = 1_000_000


# ── times of late ──────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 10**14))
def test_a_time_is_told_to_within_seven_percent(nanoseconds: int) -> None:
    recent = Recent()
    recent.add(nanoseconds)
    (told,) = recent.percentiles(0.5)
    assert told * 1e9 == pytest.approx(nanoseconds, rel=0.07, abs=1e-6)


@given(st.lists(st.integers(1, 10**11), min_size=1, max_size=300))
def test_percentiles_are_right_to_within_seven_percent(times: list[int]) -> None:
    recent = Recent()
    for time in times:
        recent.add(time)
    ordered = sorted(times)
    shares = (0.0, 0.5, 0.9, 0.99, 1.0)
    told = recent.percentiles(*shares)
    assert told == sorted(told)
    for share, seconds in zip(shares, told, strict=True):
        rank = max(-(-share * len(times) // 1), 1)  # the first within which so many were done
        assert seconds * 1e9 == pytest.approx(ordered[int(rank) - 1], rel=0.07)


def test_times_that_no_bucket_has_are_put_into_the_nearest() -> None:
    recent = Recent()
    recent.add(-5)  # clocks of two processes
    assert recent.percentiles(1.0) == [0.0]
    recent.add(1 << 62)
    assert recent.percentiles(1.0)[0] > 10**5


def test_nothing_measured_is_zero() -> None:
    assert Recent().percentiles(0.5, 0.9, 0.99) == [0.0, 0.0, 0.0]


def test_what_is_older_than_the_window_is_forgotten() -> None:
    recent = Recent()
    recent.turn(100 * SECOND)
    recent.add(MS)
    recent.turn(105 * SECOND)
    recent.add(9 * MS)
    assert recent.percentiles(0.5, 1.0) == pytest.approx([1e-3, 9e-3], rel=0.07)
    recent.turn(106 * SECOND)  # both are of the window before
    assert recent.percentiles(0.5, 1.0) == pytest.approx([1e-3, 9e-3], rel=0.07)
    recent.add(4 * MS)
    recent.turn(112 * SECOND)
    assert recent.percentiles(0.5, 1.0) == pytest.approx([4e-3, 4e-3], rel=0.07)
    recent.turn(118 * SECOND)
    assert recent.percentiles(0.5) == [0.0]


def test_windows_are_no_longer_because_of_a_pause() -> None:
    recent = Recent()
    recent.turn(100 * SECOND)
    recent.add(MS)
    recent.turn(109 * SECOND)  # four seconds into the second window
    recent.add(9 * MS)
    recent.turn(111 * SECOND)
    assert recent.percentiles(0.0) == pytest.approx([9e-3], rel=0.07)


def test_a_long_silence_forgets_everything() -> None:
    recent = Recent()
    recent.turn(100 * SECOND)
    recent.add(MS)
    recent.turn(111 * SECOND)
    assert recent.percentiles(0.5) == [0.0]


@given(st.lists(st.tuples(st.integers(0, 4 * SECOND), st.integers(1, 1000)), max_size=60))
def test_what_is_told_covers_one_to_two_windows(steps: list[tuple[int, int]]) -> None:
    recent = Recent()
    now, added = 100 * SECOND, []
    for passes, milliseconds in steps:
        now += passes
        recent.turn(now)
        recent.add(milliseconds * MS)
        added.append(now)
    kept = sum(recent._counts) + sum(recent._before)
    assert kept >= sum(now - time < 5 * SECOND for time in added)
    assert kept <= sum(now - time <= 2 * 5 * SECOND for time in added)


# ── one model ──────────────────────────────────────────────────────────────────────────────────


def _batch(rows: int, admitted: int, sent: int, closed: Closed = Closed.IDLE) -> Batch:
    lane = Lane(0, (), 16)
    owner = SimpleNamespace(admitted=admitted)
    jobs = [Job(owner, lane, 1) for _ in range(rows)]
    return Batch(1, Decision(Worker(0), lane, jobs, False, closed), sent)


def test_batches_rows_and_padding() -> None:
    counters = ModelCounters()
    for rows, size, closed in ((3, 4, Closed.IDLE), (4, 4, Closed.FULL), (5, 5, Closed.IDLE)):
        counters.sent(rows, closed)
        counters.ran(_batch(rows, 0, 0), m.Ran(1, 1, size, 1, 2, 3), SECOND)
    told = counters.report(SECOND)
    assert (told["batches"], told["rows"], told["padding"]) == (3, 12, 1)
    assert told["sizes"] == {"3": 1, "4": 1, "5": 1}
    assert told["closed"] == {"idle": 2, "full": 1}
    assert told["busy"] == pytest.approx(18e-9)


def test_a_batch_that_ran_at_no_size_has_no_padding() -> None:
    """None of its rows could be read, say."""
    counters = ModelCounters()
    counters.ran(_batch(3, 0, 0), m.Ran(1, 0, 0, 1, 1, 1), SECOND)
    assert counters.report(SECOND)["padding"] == 0


def test_times_in_the_queue_at_the_device_and_in_all() -> None:
    counters = ModelCounters()
    start = 100 * SECOND
    counters.ran(_batch(4, start, start + 2 * MS), m.Ran(1, 1, 4, 1, 1, 1), start + 7 * MS)
    times = counters.report(start + SECOND)["times"]
    assert times["queue"] == pytest.approx([2e-3] * 3, rel=0.07)
    assert times["run"] == pytest.approx([5e-3] * 3, rel=0.07)
    assert times["total"] == pytest.approx([7e-3] * 3, rel=0.07)
    assert counters.report(start + 20 * SECOND)["times"]["total"] == [0.0] * 3


def test_what_is_counted_can_be_told_and_read(room: Room) -> None:
    client = room.connect()
    for number in range(3):
        room.submit(client, number)
    room.step(2 * MS)
    room.finish(takes=5 * MS, size=4)
    data = room.ask(client, m.ASK_STATISTICS)
    model, other, _ = statistics_of(json.dumps(data).encode()).models
    assert (model.name, model.batches, model.rows, model.padding) == ("f", 1, 3, 1)
    assert model.sizes == {3: 1}
    assert model.busy == pytest.approx(60e-9)
    assert model.closed == {"idle": 1}
    assert model.times["queue"].p50 == pytest.approx(2e-3, rel=0.07)
    assert model.times["run"].p99 == pytest.approx(5e-3, rel=0.07)
    assert model.times["total"].p90 == pytest.approx(7e-3, rel=0.07)
    assert (other.batches, other.closed) == (0, {})
    assert other.times["run"] == Percentiles()


# ── why batches were closed ────────────────────────────────────────────────────────────────────


def _closed(room: Room, client: int, model: int = 0) -> dict[str, int]:
    closed = room.ask(client, m.ASK_STATISTICS)["models"][model]["closed"]
    assert isinstance(closed, dict)
    return closed


def test_the_reasons_are_told(room: Room) -> None:
    clients = [room.connect() for _ in range(10)]  # nobody asks twice, so nobody is waited for
    room.submit(clients[0], 1)
    room.step()
    assert _closed(room, clients[0]) == {"idle": 1}
    room.finish(takes=5 * MS)
    for client in clients[1:9]:
        room.submit(client, 1)
    room.step()
    assert _closed(room, clients[0]) == {"idle": 1, "full": 2}
    room.finish(takes=5 * MS)
    room.submit(clients[9], 1)
    room.step()
    wakeup = room.core.wakeup(room.now)
    assert wakeup is not None
    room.step(wakeup - room.now)
    assert _closed(room, clients[0]) == {"idle": 1, "full": 2, "ahead": 1}


def _go_round(room: Room, clients: list[int], events: int) -> None:
    """Each asks again 20 us after its answer. Batches take 5 ms; the engine is woken late."""
    for _ in range(events):
        if room.core.workers[0].batches:
            room.finish(takes=5 * MS)
        elif room.core.batcher.jobs:
            wakeup = room.core.wakeup(room.now)
            assert wakeup is not None
            room.step(wakeup - room.now + 70_000)
        sent = room.effects.take_clients()
        answered = [entry.peer for entry in sent if isinstance(entry.record, m.Done)]
        for client in clients:
            if client in answered:
                room.step(20_000)
                room.submit(client, room.now % 1_000_000)
                room.step()


def test_batches_that_waited_are_told(room: Room) -> None:
    """Three clients in a loop; then one of them stays away."""
    clients = [room.connect() for _ in range(3)]
    for client in clients:
        room.submit(client, 1)
        room.step()
    _go_round(room, clients, 40)
    before = _closed(room, clients[0])
    assert before["complete"] >= 15
    _go_round(room, clients[:2], 2)
    assert _closed(room, clients[0]) == {**before, "waited": before.get("waited", 0) + 1}


def test_singles_and_suspects_are_told(room: Room) -> None:
    client = room.connect()
    room.submit(client, 1, layout=2)
    room.step()
    assert _closed(room, client, model=1) == {"single": 1}
    room.finish()
    room.submit(client, 2)
    room.step()
    room.exit(0)
    room.step()
    room.load()
    room.step()
    assert _closed(room, client) == {"idle": 1, "suspect": 1}


def test_rows_that_wait_are_told_for_each_model(room: Room) -> None:
    client = room.connect()
    room.submit(client, 1)
    room.step()
    room.submit(client, 2, rows=3)
    room.submit(client, 3, rows=9, layout=2)
    models = room.ask(client, m.ASK_STATISTICS)["models"]
    assert [model["queued_rows"] for model in models] == [3, 9, 0]
