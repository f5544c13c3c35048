"""Workers that work on several batches at a time, and models that turn out not to fit."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from penstock.scheduling.abilities import LEAD
from penstock.transport import messages as m
from tests.engine.recording import Sent
from tests.engine.room import INPUT, SECOND, Room, believed_segments


def _facts(**facts: object) -> m.ModelFacts:
    """Four rows take as long as one: nothing is gained by halves."""
    facts = {"ladder": [], "latency": {"1": 1, "2": 1, "4": 1}, **facts}
    return m.ModelFacts(0, json.dumps(facts).encode())


@pytest.fixture
def room() -> Iterator[Room]:
    """An engine whose worker has three hands."""
    with believed_segments():
        made = Room(run_timeout=5.0)
        made.from_worker(0, m.Loaded(1, 3))
        made.from_worker(0, _facts())
        yield made
        made.leave()


def _numbers(run: Sent) -> list[int]:
    return [entry.offset // 1024 for entry in map(m.RunItem._make, run.record.items)]


def _rows(run: Sent) -> int:
    return sum(entry.rows for entry in map(m.RunItem._make, run.record.items))


def _submit(room: Room, client: int, count: int) -> list[Sent]:
    room.learn(client, rows=4)
    for number in range(count):
        room.submit(client, number)
    room.step()
    return room.runs()


def test_every_hand_has_a_batch_and_no_more(room: Room) -> None:
    client = room.connect()
    runs = _submit(room, client, 20)
    assert [len(run.record.items) for run in runs] == [4, 4, 4]
    assert room.core.batcher.rows == 8
    room.answer(0, runs[1].record.batch)  # whichever is done first
    room.step()
    (fourth,) = room.runs()
    assert _numbers(fourth) == [12, 13, 14, 15]
    assert room.core.workers[0].inflight == 3
    for batch in list(room.core.workers[0].batches):
        room.answer(0, batch)
    room.step()
    room.finish()
    assert sorted(number for _, number in room.ends(client)) == list(range(20))


def test_whatever_a_dead_worker_had_in_its_hands_is_suspect(room: Room) -> None:
    client = room.connect()
    runs = _submit(room, client, 16)
    room.answer(0, runs[1].record.batch)
    room.submit(client, 50)
    room.step()
    room.exit(0)
    room.step()
    room.from_worker(0, m.Loaded(2, 3))
    order: list[list[int]] = []
    for _ in range(40):
        room.step()
        order += [_numbers(run) for run in room.runs() if run.record.batch > 5]
        if not room.core.workers[0].batches:
            break
        assert room.core.workers[0].inflight == 1  # a suspect has no company
        room.answer(0, next(iter(room.core.workers[0].batches)))
    assert order == [[50], *([number] for number in [*range(4), *range(8, 16)])]
    assert sorted(number for _, number in room.ends(client)) == [*range(16), 50]


def test_what_lay_behind_the_hands_goes_back(room: Room) -> None:
    client = room.connect()
    room.core.workers[0].depth = 5
    assert len(_submit(room, client, 20)) == 5
    room.exit(0)
    room.step()
    room.from_worker(0, m.Loaded(2, 3))
    room.step()
    runs = room.runs()
    assert [_numbers(run) for run in runs] == [[12, 13, 14, 15], [16, 17, 18, 19]]
    assert room.core.batcher.jobs == 12  # one by one, when these two are done


def test_a_batch_that_hangs_in_one_hand_is_noticed_while_others_pass_it(room: Room) -> None:
    client = room.connect()
    room.from_worker(0, _facts(latency=dict.fromkeys("124", SECOND)))
    room.submit(client, 400, rows=4)
    room.step()
    room.finish(takes=SECOND)  # so that nobody is overdue soon
    for number in range(80):
        room.submit(client, number)
    room.step()
    hanging, *_ = room.core.workers[0].batches
    passed = 0
    while not room.effects.killed:
        room.step(SECOND // 2)
        others = [batch for batch in room.core.workers[0].batches if batch != hanging]
        room.answer(0, others[0])
        passed += 1
    assert passed == 11
    assert room.core.workers[0].kill_reason == "a batch ran for more than 5 s"


@pytest.mark.parametrize("hands", [1, 3])
def test_a_batch_leaves_earlier_by_what_gathering_takes_beside_another(hands: int) -> None:
    with believed_segments():
        room = Room()
        room.from_worker(0, m.Loaded(1, hands))
        client = room.connect()
        room.submit(client, 1, rows=4)
        room.step()
        (run,) = room.runs()
        room.from_worker(0, m.Ran(run.record.batch, 0, 4, 4_000_000, 50_000_000, 0))
        room.submit(client, 2, rows=2)
        lane = room.core.lane(0, INPUT)
        assert lane.on(0).lead(lane.rows) == LEAD + (500_000 if hands > 1 else 0)
        room.leave()


def test_a_batch_that_did_not_fit_the_device_shortens_those_to_come(room: Room) -> None:
    client = room.connect()
    runs = _submit(room, client, 3)
    room.submit(client, 70, rows=4)  # admitted when four rows were thought to fit
    for number in (80, 81, 82, 83):
        room.submit(client, number)
    room.from_worker(0, _facts(max_batch=2, ladder=[1, 2]))
    room.submit(client, 71, rows=4)  # from a client that was told of four
    sent: list[list[int]] = []
    for _ in range(10):
        room.step()
        runs += room.runs()
        sent += [_numbers(run) for run in runs]
        assert all(_rows(run) <= 2 for run in runs if _numbers(run) != [0, 1, 2])
        runs = []
        for batch in list(room.core.workers[0].batches):
            room.answer(0, batch)
    assert sent[1:] == [[70], [70], [80, 81], [82, 83], [71], [71]]  # two rows each
    assert sorted(number for _, number in room.ends(client)) == [0, 1, 2, 70, 71, 80, 81, 82, 83]
    assert room.core.cards[0].max_batch == 4  # what clients were told stays true


def test_facts_do_not_make_batches_larger_than_the_settings(room: Room) -> None:
    client = room.connect()
    room.from_worker(0, _facts(max_batch=64))
    assert [len(run.record.items) for run in _submit(room, client, 9)][:2] == [4, 4]
