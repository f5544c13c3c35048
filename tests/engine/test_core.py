"""The engine's decisions, one at a time: dispatch, answers, deadlines, death, blame, the end."""

from __future__ import annotations

import json

import pytest

from penstock.config import Model
from penstock.engine.workers import WorkerState
from penstock.errors import Kind
from penstock.spec import TensorSpec
from penstock.transport import messages as m
from penstock.transport.layouts import LayoutNumbers
from tests.engine.room import INPUT, MODELS, OUTPUT, SECOND, Room, believed_segments, ends_of, item


def _records(room: Room, client: int) -> list[object]:
    return [sent.record for sent in room.effects.take_clients() if sent.peer == client]


def _items(run: object) -> list[m.RunItem]:
    return [m.RunItem(*values) for values in run.record.items]  # type: ignore[attr-defined]


# ── clients ────────────────────────────────────────────────────────────────────────────────────


def test_a_client_is_told_what_it_may_do_and_what_is_here(room: Room) -> None:
    client = room.connect(segments=0, layouts=False)
    welcome, *cards, state = _records(room, client)
    assert welcome == m.Welcome(m.VERSION, 77, client, 64 << 20, 4096, 1, 65_536)
    assert state == m.State(m.STATE_READY, 0, "")
    names = [card.name for card in cards if isinstance(card, m.ModelCard)]
    assert names == ["f", "g", "h"]
    (tensors,) = [card for card in cards if isinstance(card, m.CardTensors)]
    assert (tensors.model, tensors.side) == (2, 0)
    assert tensors.tensors == MODELS[2].inputs


def test_a_client_that_came_early_is_told_when_the_engine_is_ready() -> None:
    room = Room(workers=2)
    client = room.connect(segments=0, layouts=False)
    assert _records(room, client)[-1] == m.State(m.STATE_LOADING, 0, "")
    room.load(0)
    assert _records(room, client) == []
    room.load(1)
    told = _records(room, client)
    assert isinstance(told[0], m.ModelCard)
    assert told[-1] == m.State(m.STATE_READY, 0, "")


def test_a_worker_may_say_more_of_its_models() -> None:
    room = Room()
    room.from_worker(0, m.ModelCard(0, 2, 2, 1, "f"))
    room.from_worker(0, m.CardTensors(0, 0, INPUT))
    room.from_worker(0, m.CardTensors(0, 1, OUTPUT))
    room.load()
    client = room.connect(segments=0, layouts=False)
    told = _records(room, client)
    assert m.ModelCard(0, 2, 2, 1, "f") in told
    assert m.CardTensors(0, 0, INPUT) in told
    assert m.CardTensors(0, 1, OUTPUT) in told


def test_statistics_are_told_in_pieces_that_fit(room: Room) -> None:
    clients = [room.connect(segments=0, layouts=False) for _ in range(600)]
    room.effects.take_clients()
    room.say(clients[0], m.Ask(41, 0))
    pieces = [sent.record for sent in room.effects.take_clients()]
    assert len(pieces) > 1
    assert all(piece.token == 41 for piece in pieces)
    assert [piece.last for piece in pieces] == [0] * (len(pieces) - 1) + [1]
    told = json.loads(b"".join(piece.data for piece in pieces))
    assert len(told["clients"]) == 600


# ── dispatch and answers ───────────────────────────────────────────────────────────────────────


def test_the_usual_life_of_a_request(room: Room) -> None:
    client = room.connect()
    room.submit(client, 7, rows=3)
    room.step()
    mapping, layout, run = room.effects.take_workers()
    assert mapping.record == m.MapSegment(client, 1, 1 << 20)
    assert layout.record == m.RunLayout(1, 0, INPUT)
    assert _items(run) == [m.RunItem(client, 1, 7 * 1024, 1024, 192, 3, 0, 3)]
    assert room.effects.take_clients()[-1].record == m.State(m.STATE_READY, 0, "")
    room.answer(0, run.record.batch)
    room.step()
    assert _records(room, client) == [m.OutputLayout(1, OUTPUT), m.Done([(7, 1)])]
    room.submit(client, 8)
    room.step()
    (again,) = room.effects.take_workers()  # the segment and the layout are known there now
    room.answer(0, again.record.batch)
    room.step()
    assert _records(room, client) == [m.Done([(8, 1)])]


def test_requests_of_many_clients_share_a_batch(room: Room) -> None:
    clients = [room.connect() for _ in range(4)]
    for client in clients:
        room.submit(client, 1)
    room.step()
    (run,) = room.runs()
    assert sorted(entry.client for entry in _items(run)) == clients
    room.answer(0, run.record.batch)
    room.step()
    sent = room.effects.take_clients()
    for client in clients:
        assert ends_of(s for s in sent if s.peer == client) == [("Done", 1)]


def test_answers_of_a_round_travel_together(room: Room) -> None:
    client = room.connect()
    for number in range(4):
        room.submit(client, number)
    room.step()
    (run,) = room.runs()
    room.effects.take_clients()
    room.answer(0, run.record.batch)
    room.step()
    assert _records(room, client) == [
        m.OutputLayout(1, OUTPUT),
        m.Done([(0, 1), (1, 1), (2, 1), (3, 1)]),
    ]


def test_answers_in_parts(room: Room) -> None:
    client = room.connect()
    room.submit(client, 7, rows=3)
    room.step()
    (run,) = room.runs()
    room.effects.take_clients()
    batch = run.record.batch
    room.from_worker(0, m.OutputLayout(5, OUTPUT))
    room.from_worker(0, m.ItemPart(batch, 0, 0, 1, 5, 0, 0))
    room.from_worker(0, m.ItemFailed(batch, 0, 1, 1, Kind.MODEL, "bad\0Traceback"))
    descriptor = room.effects.lend()
    room.from_worker(0, m.ItemPart(batch, 0, 2, 1, 5, 1, 4096), descriptor)
    assert room.effects.take_clients() == []
    room.from_worker(0, m.Ran(batch, 0, 1, 1, 1, 1))
    room.step()
    sent = room.effects.take_clients()
    assert [entry.record for entry in sent] == [
        m.OutputLayout(1, OUTPUT),
        m.Part(7, 0, 1, 1, 0, 0),
        m.Part(7, 2, 1, 1, 1, 4096),
        m.RowFailed(7, 1, 1, Kind.MODEL, "bad\0Traceback"),
        m.Done([(7, 0)]),
    ]
    assert sent[2].descriptor == descriptor
    assert descriptor not in room.effects.open


def test_a_request_whose_rows_all_fail_together_fails(room: Room) -> None:
    client = room.connect()
    room.submit(client, 7, rows=2)
    room.step()
    (run,) = room.runs()
    room.effects.take_clients()
    room.from_worker(0, m.ItemFailed(run.record.batch, 0, 0, 2, Kind.INPUT, "unreadable"))
    room.from_worker(0, m.Ran(run.record.batch, 0, 1, 1, 1, 1))
    room.step()
    assert _records(room, client) == [m.Failed(7, Kind.INPUT, "unreadable")]


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("how", ["usual", "part", "failed"])
def test_requests_with_few_rows_end_in_every_way(room: Room, rows: int, how: str) -> None:
    client = room.connect()
    room.submit(client, 7, rows=rows)
    room.step()
    (run,) = room.runs()
    batch = run.record.batch
    room.effects.take_clients()
    room.from_worker(0, m.OutputLayout(1, OUTPUT))
    if how == "usual":
        room.from_worker(0, m.Ran(batch, 1, 1, 1, 1, 1))
    else:
        if how == "part":
            room.from_worker(0, m.ItemPart(batch, 0, 0, rows, 1, 0, 0))
        else:
            room.from_worker(0, m.ItemFailed(batch, 0, 0, rows, Kind.MODEL, "no"))
        room.from_worker(0, m.Ran(batch, 0, 1, 1, 1, 1))
    room.step()
    assert room.ends(client) == [("Failed" if how == "failed" else "Done", 7)]
    assert not room.core.clients[client].requests


def test_new_output_layouts_do_not_change_answers_on_their_way(room: Room) -> None:
    client = room.connect()
    room.learn(client, layout=2)
    room.core.clients[client].output_layouts = LayoutNumbers()
    room.core.clients[client].last_layout = (0, ())
    for number in (1, 2):
        room.submit(client, number, layout=2)
    room.step()
    first, second = room.runs()
    room.effects.take_clients()
    room.answer(0, first.record.batch, OUTPUT)
    room.answer(0, second.record.batch, INPUT)
    room.step()
    assert _records(room, client) == [
        m.OutputLayout(1, OUTPUT),
        m.Done([(1, 1)]),
        m.OutputLayout(2, INPUT),
        m.Done([(2, 2)]),
    ]


def test_more_output_layouts_than_numbers(room: Room) -> None:
    """Each answer is read by the layout that its number meant when it was sent."""
    client = room.connect()
    known: dict[int, object] = {}
    for number in range(1_100):
        output = (TensorSpec("int8", (number,)),)
        room.submit(client, number)
        room.step()
        (run,) = room.runs()
        room.answer(0, run.record.batch, output)
        room.step()
        for record in _records(room, client):
            if isinstance(record, m.OutputLayout):
                known[record.layout] = record.tensors
            elif isinstance(record, m.Done):
                assert known[record.items[0][1]] == output
    assert len(known) == 1_024


@pytest.mark.parametrize("requests", [1, 2])
def test_a_number_that_means_something_else_before_the_batch_is_done(
    room: Room, requests: int
) -> None:
    """A worker has only so many numbers, also for what it says of one batch."""
    client = room.connect()
    for number in range(requests):
        room.submit(client, number, rows=2 // requests)
    room.step()
    (run,) = room.runs()
    batch = run.record.batch
    room.effects.take_clients()
    for at, output in enumerate((OUTPUT, INPUT)):
        item, row = (at, 0) if requests == 2 else (0, at)
        room.from_worker(0, m.OutputLayout(1, output))
        room.from_worker(0, m.ItemPart(batch, item, row, 1, 1, 0, 0))
    room.from_worker(0, m.Ran(batch, 0, 2, 1, 1, 1))
    room.step()
    records = _records(room, client)
    means = {record.layout: record.tensors for record in records if type(record) is m.OutputLayout}
    assert [means[part.layout] for part in records if type(part) is m.Part] == [OUTPUT, INPUT]


def test_many_rows_fit_messages(room: Room) -> None:
    large = Room((Model("m:f", max_batch=65_536),), client_requests=10_000)
    large.load()
    client = large.connect()
    numbers = list(range(5_000))
    for first in range(0, 5_000, 500):
        part = numbers[first : first + 500]
        large.say(client, m.Submit([item(number) for number in part]))
    large.step()
    runs = large.runs()
    assert [run.record.last for run in runs] == [0] * (len(runs) - 1) + [1]
    assert sum(len(run.record.items) for run in runs) == 5_000
    large.answer(0, runs[0].record.batch)
    large.step()
    assert [number for _, number in large.ends(client)] == numbers
    large.leave()


# ── deadlines and cancelling ───────────────────────────────────────────────────────────────────


def _occupy(room: Room, client: int, first: int = 900) -> list[int]:
    """Two batches in flight: whatever comes now has to wait. Returns their numbers."""
    for number in range(first, first + 8):
        room.submit(client, number)
    room.step()
    return [run.record.batch for run in room.runs()]


def test_a_request_that_waits_too_long_is_refused(room: Room) -> None:
    client = room.connect()
    _occupy(room, client)
    room.submit(client, 7, deadline=room.now + 500)
    room.effects.take_clients()
    room.step(499)
    assert room.ends(client) == []
    assert room.core.wakeup(room.now) == room.now + 1
    room.step(1)
    (refused,) = _records(room, client)
    assert isinstance(refused, m.Refused)
    assert (refused.request, refused.kind) == (7, Kind.DEADLINE)


def test_a_request_that_runs_is_not_ended_by_its_deadline(room: Room) -> None:
    """Its slot is still written by the worker: only the caller stops waiting."""
    client = room.connect()
    room.submit(client, 7, deadline=room.now + 500)
    room.step()
    (run,) = room.runs()
    room.step(10_000)
    assert room.ends(client) == []
    room.answer(0, run.record.batch)
    room.step()
    assert room.ends(client) == [("Done", 7)]


def test_cancel_while_queued_ends_at_once(room: Room) -> None:
    client = room.connect()
    _occupy(room, client)
    room.submit(client, 7)
    room.say(client, m.Cancel([(7,)]))
    assert room.ends(client) == [("Cancelled", 7)]
    room.step()
    assert 7 not in room.core.clients[client].requests


def test_cancel_while_running_ends_when_the_batch_does(room: Room) -> None:
    client = room.connect()
    room.submit(client, 7)
    room.submit(client, 8)
    room.step()
    (run,) = room.runs()
    room.say(client, m.Cancel([(7,), (7,)]))
    room.step()
    assert room.ends(client) == []
    room.answer(0, run.record.batch)
    room.step()
    assert sorted(room.ends(client)) == [("Cancelled", 7), ("Done", 8)]


def test_parts_of_a_cancelled_request_are_closed(room: Room) -> None:
    client = room.connect()
    room.submit(client, 7)
    room.step()
    (run,) = room.runs()
    batch = run.record.batch
    room.from_worker(0, m.OutputLayout(1, OUTPUT))
    descriptor = room.effects.lend()
    room.from_worker(0, m.ItemPart(batch, 0, 0, 1, 1, 1, 4096), descriptor)
    room.say(client, m.Cancel([(7,)]))
    room.from_worker(0, m.Ran(batch, 0, 1, 1, 1, 1))
    assert descriptor not in room.effects.open
    assert room.ends(client) == [("Cancelled", 7)]


def test_a_client_that_goes_takes_its_queue_along(room: Room) -> None:
    client, other = room.connect(), room.connect()
    batches = _occupy(room, client)
    room.submit(client, 1)
    room.submit(other, 2)
    room.core.disconnected(client)
    assert room.core.batcher.jobs == 1
    for batch in batches:
        room.answer(0, batch)
    room.step()
    (run,) = room.runs()
    assert [entry.client for entry in _items(run)] == [other]
    room.answer(0, run.record.batch)
    room.step()
    sent = room.effects.take_clients()
    assert ends_of(s for s in sent if s.peer == other) == [("Done", 2)]
    assert ends_of(s for s in sent if s.peer == client) == []


def test_a_segment_outlives_its_client_while_it_is_used(room: Room) -> None:
    client = room.connect(segments=0)
    descriptor = room.add_segment(client, 1)
    room.submit(client, 7)
    room.step()
    (run,) = room.runs()
    room.core.disconnected(client)
    assert descriptor in room.effects.open
    assert room.effects.take_workers() == []
    room.answer(0, run.record.batch)
    assert descriptor not in room.effects.open
    (unmap,) = room.effects.take_workers()
    assert unmap.record == m.UnmapSegment(client, 1)


# ── workers that die ───────────────────────────────────────────────────────────────────────────


def test_what_had_begun_is_suspect_and_what_had_not_comes_again(room: Room) -> None:
    client = room.connect()
    room.learn(client, rows=4)
    for number in range(8):
        room.submit(client, number)
    room.step()
    first, second = room.runs()
    assert len(_items(first)) == len(_items(second)) == 4
    room.submit(client, 50)
    room.exit(0)
    room.step()
    assert room.ends(client) == []
    assert room.effects.started == [0, 0]
    room.load()
    room.step()
    order: list[list[int]] = []
    for _ in range(20):
        for run in room.runs():
            order.append([entry.offset // 1024 for entry in _items(run)])
        batches = list(room.core.workers[0].batches)
        if not batches:
            break
        room.answer(0, batches[0])
        room.step()
    assert order == [[4, 5, 6, 7], [50], [0], [1], [2], [3]]
    assert sorted(number for _, number in room.ends(client)) == [*range(8), 50]


def test_rows_of_one_request_are_tried_one_by_one(room: Room) -> None:
    client = room.connect()
    room.submit(client, 7, rows=3)
    room.step()
    room.runs()
    room.exit(0)
    room.step()
    room.load()
    room.step()
    room.effects.take_clients()
    for row in range(3):
        (run,) = room.runs()
        assert _items(run) == [m.RunItem(client, 1, 7 * 1024, 1024, 192, 3, row, 1)]
        if row == 1:
            room.exit(0, "it was killed by SIGSEGV")
            room.step()
            room.load()
        else:
            room.answer(0, run.record.batch)
        room.step()
    records = _records(room, client)
    assert records[0] == m.OutputLayout(1, OUTPUT)
    assert records[1:3] == [m.Part(7, 0, 1, 1, 0, 0), m.Part(7, 2, 1, 1, 0, 0)]
    assert isinstance(records[3], m.RowFailed)
    assert (records[3].start, records[3].rows, records[3].kind) == (1, 1, Kind.WORKER_LOST)
    assert "SIGSEGV" in records[3].text
    assert records[4] == m.Done([(7, 0)])


def test_a_death_with_deadlines_in_the_batch(room: Room) -> None:
    client = room.connect()
    until = room.now + 2 * SECOND
    room.submit(client, 1, rows=2, deadline=until)
    room.submit(client, 2, rows=2, deadline=until)
    room.step()
    room.exit(0)
    room.step()
    room.effects.take_clients()
    room.step(3 * SECOND)
    assert sorted(number for _, number in room.ends(client)) == [1, 2]


def test_suspects_whose_deadline_passes_end_once(room: Room) -> None:
    client = room.connect()
    room.submit(client, 1, rows=3, deadline=room.now + SECOND)
    room.step()
    room.exit(0)
    room.step()
    room.effects.take_clients()
    room.step(2 * SECOND)
    assert [number for _, number in room.ends(client)] == [1]
    assert room.core.batcher.jobs == 0


def test_requests_of_a_dead_worker_move_only_after_its_exit(pair_room: Room) -> None:
    room = pair_room
    client = room.connect()
    room.submit(client, 7)
    room.step()
    (run,) = room.runs()
    room.core.health.kill(room.core.workers[run.peer], "for a test")
    assert room.effects.killed == [run.peer]
    room.step()
    assert room.runs() == []
    room.answer(run.peer, run.record.batch)  # it was done after all
    room.step()
    assert room.ends(client) == [("Done", 7)]
    room.exit(run.peer)
    room.step()
    assert room.runs() == []


def test_what_is_not_batched_is_not_repeated(room: Room) -> None:
    client = room.connect()
    room.learn(client, layout=2)
    room.submit(client, 1, layout=2)
    room.submit(client, 2, layout=2)
    room.step()
    assert len(room.runs()) == 2
    room.effects.take_clients()
    room.exit(0, "it was killed by SIGKILL")
    room.step()
    (failed,) = _records(room, client)
    assert isinstance(failed, m.Failed)
    assert (failed.request, failed.kind) == (1, Kind.WORKER_LOST)
    assert "may not be repeated" in failed.text
    room.load()
    room.step()
    assert [entry.offset // 1024 for run in room.runs() for entry in _items(run)] == [2]


def test_parts_that_a_dead_worker_had_sent_are_closed(room: Room) -> None:
    client = room.connect()
    room.submit(client, 7, rows=2)
    room.step()
    (run,) = room.runs()
    descriptor = room.effects.lend()
    room.from_worker(0, m.OutputLayout(1, OUTPUT))
    room.from_worker(0, m.ItemPart(run.record.batch, 0, 0, 1, 1, 1, 4096), descriptor)
    room.exit(0)
    assert descriptor not in room.effects.open


def test_late_words_about_a_batch_that_is_not_there(room: Room) -> None:
    descriptor = room.effects.lend()
    room.from_worker(0, m.ItemPart(999, 0, 0, 1, 1, 1, 4096), descriptor)
    assert descriptor not in room.effects.open
    room.from_worker(0, m.Ran(999, 0, 1, 1, 1, 1))
    room.from_worker(0, m.Ran(999, 7, 1, 1, 1, 1))


def test_a_new_worker_is_told_everything_anew(room: Room) -> None:
    client = room.connect()
    room.submit(client, 1)
    room.step()
    room.effects.take_workers()
    room.exit(0)
    room.step()
    room.load()
    room.step()
    kinds = [type(sent.record) for sent in room.effects.take_workers()]
    assert kinds == [m.MapSegment, m.RunLayout, m.Run]


# ── hangs, restarts, hopelessness ──────────────────────────────────────────────────────────────


def test_a_batch_that_runs_too_long_ends_its_worker() -> None:
    with believed_segments():
        room = Room(run_timeout=5.0)
        room.load()
        client = room.connect()
        room.submit(client, 7)
        room.step()
        for _ in range(20):
            room.step(SECOND // 4)
        assert room.effects.killed == []
        for _ in range(3):
            room.step(SECOND // 4)
        assert set(room.effects.killed) == {0}
        room.exit(0)
        room.step()
        room.load()
        room.step()
        (run,) = [run for run in room.runs() if run.record.batch > 1]
        room.exit(0)
        room.step()
        (failed,) = [r for r in _records(room, client) if isinstance(r, m.Failed)]
        assert failed.kind == Kind.WORKER_LOST
        assert run.record.items
        room.leave()


def test_loading_that_takes_too_long_ends_the_engine() -> None:
    room = Room(load_timeout=5.0)
    client = room.connect(segments=0, layouts=False)
    for _ in range(22):
        room.step(SECOND // 4)
    assert set(room.effects.killed) == {0}
    room.exit(0)
    state = _records(room, client)[-1]
    assert isinstance(state, m.State)
    assert state.state == m.STATE_FAILED
    assert "loading took more than 5 s" in state.text


def test_a_model_that_cannot_be_loaded_ends_the_engine_with_its_reason() -> None:
    room = Room(workers=2)
    client = room.connect(segments=0, layouts=False)
    room.load(1)
    room.from_worker(0, m.LoadFailed(Kind.MODEL_LOAD, "no such file\0Traceback"))
    room.exit(0)
    state = _records(room, client)[-1]
    assert state == m.State(m.STATE_FAILED, Kind.MODEL_LOAD, "no such file\0Traceback")
    assert room.effects.killed == [1]
    room.exit(1)
    room.step(100 * SECOND)
    assert room.effects.started == [0, 1]


def test_a_worker_that_runs_out_of_a_cards_memory_as_it_loads_is_followed_by_smaller_ones() -> None:
    room = Room(workers=1)
    client = room.connect(segments=0, layouts=False)
    (worker,) = room.core.workers
    worker.on_gpu = True
    short = m.LoadFailed(Kind.DEVICE_MEMORY, "no room")
    for times in (1, 2):
        room.from_worker(0, short)
        room.exit(0)
        room.step()
        assert worker.squeezed == times
        assert room.effects.started == [0] * (1 + times)
        assert room.core.state[0] == m.STATE_LOADING
    room.load()  # and from then on what fits is known
    assert worker.squeezed == 0
    room.exit(0)
    room.step()
    for _ in range(3):
        room.from_worker(0, short)
        room.exit(0)
        room.step(20 * SECOND)
    assert worker.squeezed == 0
    assert room.core.state[0] == m.STATE_READY  # it was, once: tried again, within the budget

    again = Room(workers=1)
    client = again.connect(segments=0, layouts=False)
    again.core.workers[0].on_gpu = True
    for _ in range(3):
        again.from_worker(0, short)
        again.exit(0)
        again.step()
    assert _records(again, client)[-1] == m.State(m.STATE_FAILED, Kind.DEVICE_MEMORY, "no room")
    assert again.effects.started == [0, 0, 0]


def test_where_another_worker_cannot_load_at_all_none_begins_anew() -> None:
    room = Room(workers=2)
    client = room.connect(segments=0, layouts=False)
    for worker in room.core.workers:
        worker.on_gpu = True
    room.from_worker(1, m.LoadFailed(Kind.DEVICE_MEMORY, "no room"))
    room.from_worker(0, m.LoadFailed(Kind.MODEL_LOAD, "no such file"))
    room.exit(1)
    room.exit(0)
    assert _records(room, client)[-1] == m.State(m.STATE_FAILED, Kind.MODEL_LOAD, "no such file")
    room.step(3600 * SECOND)
    assert room.effects.started == [0, 1]


def test_on_a_cpu_a_worker_that_runs_out_of_memory_as_it_loads_is_the_last() -> None:
    room = Room(workers=1)
    client = room.connect(segments=0, layouts=False)
    room.from_worker(0, m.LoadFailed(Kind.DEVICE_MEMORY, "no room"))
    room.exit(0)
    assert _records(room, client)[-1] == m.State(m.STATE_FAILED, Kind.DEVICE_MEMORY, "no room")
    assert room.effects.started == [0]


def test_restarts_wait_longer_when_loading_fails_again_and_again() -> None:
    room = Room(restarts=100)
    room.load()
    room.exit(0)
    gaps: list[int] = []
    for _ in range(5):
        began = room.now
        before = len(room.effects.started)
        while len(room.effects.started) == before:
            wakeup = room.core.wakeup(room.now)
            assert wakeup is not None
            room.step(max(0, wakeup - room.now))
        gaps.append(room.now - began)
        room.exit(0)
    assert gaps[0] == 0
    assert gaps[1:] == sorted(gaps[1:])
    assert gaps[1] > 0


def test_when_all_workers_are_down_for_good_everybody_is_told_and_later_served() -> None:
    with believed_segments():
        room = Room(restarts=1, restart_refill=60.0)
        room.load()
        client = room.connect()
        room.exit(0)
        room.step()
        room.load()
        room.submit(client, 1)
        room.step()
        room.submit(client, 2)
        room.exit(0)
        room.step()
        ends = room.ends(client)
        assert sorted(number for _, number in ends) == [1, 2]
        room.submit(client, 3)
        (refused,) = _records(room, client)
        assert isinstance(refused, m.Refused)
        assert refused.kind == Kind.NO_WORKERS
        assert "restarts did not help" in refused.text
        for _ in range(300):
            room.step(SECOND)
        room.load()
        room.submit(client, 4)
        room.step()
        room.answer(0, next(iter(room.core.workers[0].batches)))
        room.step()
        assert room.ends(client) == [("Done", 4)]
        room.leave()


def test_a_killed_worker_that_says_loaded_is_not_used(room: Room) -> None:
    fresh = Room()
    fresh.core.health.kill(fresh.core.workers[0], "test")
    fresh.load()
    assert fresh.core.workers[0].state is WorkerState.ENDING
    assert fresh.core.state[0] == m.STATE_LOADING


# ── the end ────────────────────────────────────────────────────────────────────────────────────


def test_a_closing_engine_works_off_its_queue(room: Room) -> None:
    client = room.connect()
    _occupy(room, client)
    room.submit(client, 1)
    room.effects.take_clients()
    room.say(client, m.Stop(10.0))
    assert _records(room, client) == [
        m.State(m.STATE_CLOSING, Kind.ENGINE_CLOSED, "the engine is shutting down")
    ]
    assert not room.core.drained(room.now)
    for _ in range(10):
        batches = list(room.core.workers[0].batches)
        if batches:
            room.answer(0, batches[0])
        room.step()
    assert room.core.drained(room.now)
    assert len(room.ends(client)) == 9


def test_a_closing_engine_has_only_so_much_time(room: Room) -> None:
    client = room.connect()
    batches = _occupy(room, client)
    for number in range(4):
        room.submit(client, number)
    room.effects.take_clients()
    room.say(client, m.Stop(10.0))
    room.say(client, m.Stop(2.0))
    room.say(client, m.Stop(20.0))
    assert not room.core.drained(room.now + 2 * SECOND - 1)
    assert room.core.drained(room.now + 2 * SECOND)
    room.core.end_all()
    ends = room.ends(client)
    assert sorted(number for _, number in ends) == [0, 1, 2, 3, *range(900, 908)]
    # What the workers still say, or their exit, ends nothing a second time.
    room.answer(0, batches[0])
    room.exit(0)
    room.core.delivery.flush()
    assert room.ends(client) == []


def test_parts_after_the_end_are_not_sent_but_closed(room: Room) -> None:
    client = room.connect()
    room.submit(client, 7, rows=2)
    room.step()
    (run,) = room.runs()
    room.core.close(room.now, 0.0)
    room.core.end_all()
    assert room.ends(client) == [("Failed", 7)]
    descriptor = room.effects.lend()
    room.from_worker(0, m.OutputLayout(1, OUTPUT))
    room.from_worker(0, m.ItemPart(run.record.batch, 0, 0, 1, 1, 1, 4096), descriptor)
    room.from_worker(0, m.ItemFailed(run.record.batch, 0, 1, 1, Kind.MODEL, "late"))
    room.from_worker(0, m.Ran(run.record.batch, 0, 1, 1, 1, 1))
    room.core.delivery.flush()
    assert room.effects.take_clients() == []
    assert descriptor not in room.effects.open


def test_a_closing_engine_restarts_nobody_and_does_not_spin() -> None:
    room = Room(workers=2, restarts=100)
    room.load()
    for _ in range(3):  # it fails to load again and again: its next start lies ahead
        room.exit(0)
        room.step(60 * SECOND)
    room.exit(0)
    room.step()
    started = len(room.effects.started)
    room.core.close(room.now, 1_000.0)
    room.step(100 * SECOND)
    assert len(room.effects.started) == started
    wakeup = room.core.wakeup(room.now)
    assert wakeup is None or wakeup > room.now


@pytest.mark.parametrize("fails_to_load", [0, 1])
def test_while_one_is_about_to_come_back_nothing_is_hopeless(fails_to_load: int) -> None:
    """Also when that is not at once, as after a start that failed."""
    with believed_segments():
        room = Room(workers=2, restarts=1 + fails_to_load, restart_refill=1e6)
        room.load()
        client = room.connect()
        for _ in range(fails_to_load):
            room.exit(0)
            room.step()
        room.submit(client, 1)
        room.exit(0)
        room.exit(1)
        room.submit(client, 2)
        room.step()
        assert room.ends(client) == []
        room.step(SECOND)
        room.load(0)
        room.step()
        while batches := list(room.core.workers[0].batches):
            room.answer(0, batches[0])
            room.step()
        assert sorted(room.ends(client)) == [("Done", 1), ("Done", 2)]
        room.submit(client, 3)
        room.exit(0)
        room.step()
        (refused,) = _records(room, client)
        assert isinstance(refused, m.Refused)
        assert refused.kind == Kind.NO_WORKERS
        room.leave()


def test_counts_add_up(room: Room) -> None:
    client = room.connect()
    room.submit(client, 1)
    room.submit(client, 2, rows=5)
    room.submit(client, 3, rows=2)
    room.step()
    room.answer(0, next(iter(room.core.workers[0].batches)))
    room.step()
    room.submit(client, 4)
    room.say(client, m.Cancel([(4,)]))
    room.effects.take_clients()
    room.say(client, m.Ask(1, 0))
    (answer,) = _records(room, client)
    told = json.loads(answer.data)  # type: ignore[attr-defined]
    assert told["requests"] == {
        "admitted": 3,
        "queued": 0,
        "queued_rows": 0,
        "done": 2,
        "partial": 0,
        "failed": 0,
        "cancelled": 1,
        "refused": {"input": 1},
    }
    assert told["batches"] == {"count": 1, "rows": 3, "sizes": {"3": 1}}
    assert told["clients"][0]["answered"] == 2
    assert told["clients"][0]["rows"] == 3
    assert told["clients"][0]["outstanding"] == 0
    assert told["clients"][0]["bytes"] == 1 << 20
