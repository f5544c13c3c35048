"""Clients that do not read, talk nonsense or flood: others are served, in bounded memory."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from penstock.transport import messages as m
from penstock.transport import rendezvous, segment, wire
from penstock.transport.channel import Closed
from tests.faults import leftovers
from tests.faults.company import outstanding
from tests.faults.files import let_go, source, started
from tests.faults.models import Verb, row
from tests.faults.raw import nonsense
from tests.faults.waiting import eventually

_ENOUGH = 64 << 10  # kilobytes of memory that one such client may cost the engine


@pytest.fixture
def scene(start, bystander):
    """An engine of two models, one with large answers, a bystander, the engine's footprint."""
    engine = start({"act": source("act"), "inflate": source("inflate")}, workers=2)
    onlooker = bystander(engine, "act")
    onlooker.go_on()
    pid = engine.statistics().pid
    before = leftovers.footprint(pid)
    yield engine, onlooker, lambda: leftovers.footprint(pid), before
    onlooker.go_on()
    assert engine.statistics().pid == pid, "the engine has lived through it"
    assert engine.statistics().deaths == 0


def test_one_that_never_reads_statistics(scene, raw):
    _, onlooker, footprint, before = scene
    hostile = raw(scene[0])
    most = 0
    for number in range(200_000):
        try:
            hostile.send(m.Ask(number, 0))
        except Closed:
            break
        if number % 500 == 0:
            most = max(most, footprint().kilobytes)
    else:
        pytest.fail("it was never thrown out")
    onlooker.go_on()
    assert most < before.kilobytes + _ENOUGH


def test_one_that_never_reads_answers(scene, raw):
    engine, onlooker, footprint, before = scene
    hostile = raw(engine)
    descriptor, mapping = hostile.segment(1 << 20)
    os.close(descriptor)
    hostile.layout(row(Verb.ANSWER)[None])
    mapping[:24] = row(Verb.ANSWER, 0, 1).tobytes()
    for _ in range(20):
        for _ in range(200):
            hostile.submit(rows=1, input_bytes=64, length=8192)
        eventually(lambda: outstanding(engine) <= 2, what="its requests are worked off")
    onlooker.go_on()
    assert footprint().kilobytes < before.kilobytes + _ENOUGH


def test_one_that_never_reads_answers_that_come_with_descriptors(scene, raw):
    """Each answer waits with a descriptor: those are bounded as well as the bytes."""
    engine, onlooker, footprint, before = scene
    hostile = raw(engine)
    descriptor, _ = hostile.segment(1 << 20)
    os.close(descriptor)
    hostile.layout(np.zeros((1, 8), np.int64), model=1)
    item = m.SUBMIT_ITEM
    most, number = 0, 0
    try:
        while number < 40_000:
            packed = []
            for _ in range(500):
                number += 1
                packed.append(item.pack(number, 1, 1, 0, 64, 64, 1, 0, 0, 0, 1))
            hostile.send_bytes(b"\5" + b"".join(packed))
            most = max(most, footprint().descriptors)
            eventually(lambda: outstanding(engine) <= 512)
    except Closed:
        pass
    onlooker.go_on()
    assert most < before.descriptors + 4096
    hostile.close()
    eventually(lambda: not before.growth(footprint(), kilobytes=_ENOUGH))


def _ask_from_a_segment_each(client, rows):
    x = row(Verb.ANSWER, 0, 1)[None]
    client.layout(x)
    for number in range(1, rows + 1):
        descriptor = segment.create(4096)
        os.pwrite(descriptor, x.tobytes(), 0)
        client.send(m.AddSegment(number, 4096), descriptor)
        os.close(descriptor)
        client.submit(rows=1, input_bytes=64, length=4096, segment=number)


def test_one_whose_rows_lie_in_a_segment_each(start, bystander, raw):
    """The worker is told of them all at once, and has something else to do first."""
    engine = start(workers=1, max_batch=1024)
    held = engine.submit(row(Verb.WAIT, 1)[None])
    started(1)
    many = raw(engine)
    _ask_from_a_segment_each(many, 800)
    eventually(lambda: outstanding(engine) == 1 + 800)
    let_go(1)
    held.result(20)
    assert all(isinstance(end, m.Done) for end in many.ends(800, 20))
    bystander(engine).go_on()
    assert engine.statistics().deaths == 0


def test_a_worker_that_cannot_be_told_of_all_its_memory_is_replaced(peer, client, raw, run_folder):
    """The engine has no descriptors to keep so many messages for it: it finds out amid a batch."""
    owner = peer("own_with_few", run_folder, source("act"), 1024, 1024)
    address, pid, (worker,) = owner.says()
    engine = SimpleNamespace(address=address)
    onlooker = client(engine)
    held = onlooker.submit(row(Verb.WAIT, 1)[None])
    started(1)
    many = raw(engine)
    _ask_from_a_segment_each(many, 800)
    eventually(lambda: onlooker.statistics().requests.admitted == 1 + 800)
    let_go(1)
    held.result(20)
    assert all(isinstance(end, m.Done) for end in many.ends(800, 20))
    statistics = onlooker.statistics()
    assert (statistics.pid, statistics.deaths) == (pid, 1)
    assert statistics.workers[0].pid != worker


def test_one_that_is_stopped_within_a_message_to_it(scene, raw):
    """A client that reads now and then, slowly, is served all the same."""
    engine = scene[0]
    slow = raw(engine)
    descriptor, mapping = slow.segment(1 << 20)
    os.close(descriptor)
    slow.layout(row(Verb.ANSWER)[None])
    mapping[:24] = row(Verb.ANSWER, 0, 1).tobytes()
    for _ in range(2000):
        slow.submit(rows=1, input_bytes=64, length=8192)
    eventually(lambda: outstanding(engine) <= 2)
    slow.ends(2000)


@pytest.mark.parametrize("seed", range(3))
def test_ones_that_talk_nonsense(scene, seed):
    engine, onlooker, footprint, before = scene
    chance = random.Random(seed)
    for _ in range(60):
        nonsense(engine.address, chance)
    onlooker.go_on()
    eventually(lambda: not before.growth(footprint(), kilobytes=_ENOUGH))


def test_ones_that_send_messages_of_impossible_size(scene):
    engine, onlooker, footprint, before = scene
    for size in (0, 1, wire.MAX_MESSAGE, wire.MAX_MESSAGE + 1, 150_000):
        with rendezvous.dial(engine.address) as sock:
            sock.settimeout(5)
            try:
                sock.send(bytes(size))
                while sock.recv(1 << 16):
                    pass
            except OSError:
                continue
    onlooker.go_on()
    eventually(lambda: not before.growth(footprint(), kilobytes=_ENOUGH))


def test_ones_that_connect_and_say_nothing(scene):
    engine, onlooker, footprint, before = scene
    silent = [rendezvous.dial(engine.address) for _ in range(100)]
    onlooker.go_on()
    for sock in silent:
        sock.close()
    eventually(lambda: not before.growth(footprint(), kilobytes=_ENOUGH))


def test_ones_that_submit_more_than_they_may(scene, raw):
    engine, onlooker, _, _ = scene
    hostile = raw(engine)
    descriptor, mapping = hostile.segment(1 << 20)
    os.close(descriptor)
    hostile.layout(row(Verb.SLEEP)[None])
    mapping[:24] = row(Verb.SLEEP, 20, 1).tobytes()
    pack = m.SUBMIT_ITEM.pack
    items = [pack(number, 1, 1, 0, 8192, 64, 1, 0, 0, 0, 1) for number in range(1, 6001)]
    with contextlib.suppress(Closed):  # thrown out before it has sent all
        for first in range(0, 6000, 500):
            hostile.send_bytes(b"\5" + b"".join(items[first : first + 500]))
    assert "outstanding" in hostile.why_closed()
    hostile.close()
    onlooker.go_on()
    eventually(lambda: outstanding(engine) <= 2)


def test_one_is_told_why_it_was_thrown_out(scene, raw):
    """Also when it had sent more, which the engine never read."""
    hostile = raw(scene[0])
    with contextlib.suppress(Closed):
        for _ in range(50):
            hostile.send(m.DropSegment(99))
    assert "no segment 99" in hostile.why_closed()


def test_a_last_word_counts_from_one_who_has_not_read_everything(start, raw):
    """`Stop`, and then the line is dead: the engine ends nevertheless."""
    engine = start()
    leaving = raw(engine)
    leaving.send(m.Ask(1, 0))
    leaving.send(m.Ask(2, 0))
    assert leaving.readable(), "its answer is there, and is not read"
    leaving.send(m.Stop(0.0))
    leaving.close()
    assert engine._process.wait(5) == 0


def test_floods_from_all_sides_leave_turns_for_others(scene, client):
    """Clients that ask as fast as they can take turns with one that asks now and then."""
    engine, onlooker, _, _ = scene
    ends = threading.Event()
    faults: list[str] = []

    def flood() -> None:
        other = client(engine)
        while not ends.is_set():
            futures = [other.submit(row(Verb.ANSWER, 0, 5)[None], model="act") for _ in range(64)]
            if any(future.result(30)[0, 0] != 36 for future in futures):
                faults.append("a wrong answer")

    threads = [threading.Thread(target=flood) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        onlooker.go_on(30)
    finally:
        ends.set()
        for thread in threads:
            thread.join(30)
    assert not faults
