"""A client dies, stops, forks or leaves mid-request: nobody else notices, and its memory goes."""

from __future__ import annotations

import os
import signal

import pytest

from penstock import Engine, connect
from penstock.errors import EngineClosed
from tests.faults import leftovers
from tests.faults.company import others, outstanding
from tests.faults.files import let_go, started
from tests.faults.models import Verb, row
from tests.faults.waiting import eventually


class Memory:
    """An engine, and the segments that it and its workers hold beyond those of its clients."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._pid = engine.statistics().pid

    def of_the_gone(self) -> tuple[int, int]:
        """Segments that the engine, and its workers, hold of clients that are not there any more.

        The workers' mappings are counted against what the engine believes that they have.
        """
        now = self.engine.statistics()
        connected = sum(client.segments for client in now.clients)
        mapped = sum(leftovers.mappings(worker.pid) for worker in now.workers)
        believed = sum(worker.segments for worker in now.workers)
        most = connected * len(now.workers)
        return leftovers.segments_held(self._pid) - connected, max(mapped - most, mapped - believed)

    def goes(self) -> None:
        """Wait until nothing is held of anybody who is gone."""
        eventually(lambda: max(self.of_the_gone()) <= 0, what="its memory is gone")


@pytest.fixture
def memory(start):
    return Memory(start(workers=2, max_batch=8))


def test_killed_mid_request(memory, peer, bystander):
    engine = memory.engine
    onlooker = bystander(engine)
    onlooker.go_on()
    other = peer("hold", engine.address, 1)
    assert other.says() == "submitted"
    started(1)
    other.kill()
    eventually(lambda: not others(engine), what="the engine has noticed")
    onlooker.go_on()
    assert memory.of_the_gone()[0] > 0, "its segment stays while a batch reads it"
    let_go(1)
    memory.goes()
    onlooker.go_on()
    assert engine.statistics().deaths == 0


def test_killed_with_queued_requests(memory, peer):
    engine = memory.engine
    blocks = []
    for number in (1, 2):
        blocks.append(engine.submit(row(Verb.WAIT, number)[None]))
        started(number)
    other = peer("hold", engine.address, *range(10, 40))
    assert other.says() == "submitted"
    eventually(lambda: outstanding(engine) == 2 + 30)
    other.kill()
    eventually(lambda: outstanding(engine) == 2, what="its requests are forgotten")
    assert engine.statistics().requests.queued == 0
    let_go(1, 2)
    for block in blocks:
        block.result(10)
    let_go(*range(10, 40))  # those that were with a worker already are run, for nobody
    memory.goes()


def test_stopped_and_continued(memory, peer, bystander):
    engine = memory.engine
    onlooker = bystander(engine)
    other = peer("ask", engine.address)
    assert other.says() == "asking"
    for _ in range(3):
        other.signal(signal.SIGSTOP)
        onlooker.go_on(50)
        assert others(engine) == [other.pid], "it is still a client"
        other.signal(signal.SIGCONT)
        onlooker.go_on(50)
    other.tell("end")
    counts = other.says()
    assert counts.pop("right") > 10
    assert counts == {}


def test_stopped_while_its_answers_pile_up(memory, peer):
    engine = memory.engine
    other = peer("hold", engine.address, *range(1, 60))
    assert other.says() == "submitted"
    other.signal(signal.SIGSTOP)
    let_go(*range(1, 60))
    eventually(lambda: outstanding(engine) == 0)
    assert engine.predict(row(Verb.ANSWER, 0, 1)[None])[0, 0] == 8
    other.signal(signal.SIGCONT)
    other.tell("results")
    assert other.says() == [[number * 7 + 1] for number in range(1, 60)]


@pytest.mark.parametrize("way", ["close", "exit"])
def test_another_process_leaves_mid_request(memory, peer, bystander, way):
    engine = memory.engine
    onlooker = bystander(engine)
    onlooker.go_on()
    other = peer("hold", engine.address, 1)
    assert other.says() == "submitted"
    started(1)
    other.tell(way)
    if way == "close":
        assert other.says() == ["EngineClosed"]
    else:
        assert other.wait() == 0
    eventually(lambda: not others(engine))
    onlooker.go_on()
    let_go(1)
    memory.goes()


def test_closed_mid_request_in_this_process(memory):
    engine = memory.engine
    with connect(str(engine.address)) as other:
        running = other.submit(row(Verb.WAIT, 1)[None])
        started(1)
        queued = [other.submit(row(Verb.ANSWER)[None]) for _ in range(20)]
    assert isinstance(running.exception(2), EngineClosed)
    for future in queued:
        assert future.done()
    with pytest.raises(EngineClosed, match="closed"):
        other.predict(row(Verb.ANSWER)[None])
    assert engine.predict(row(Verb.ANSWER, 0, 1)[None])[0, 0] == 8
    let_go(1)
    memory.goes()


def test_dropped_without_a_word_mid_request(memory):
    """A client that nobody holds any more is as good as closed."""
    engine = memory.engine
    other = connect(str(engine.address))
    other.submit(row(Verb.WAIT, 1)[None])
    started(1)
    let_go(1)
    del other
    eventually(lambda: len(engine.statistics().clients) == 1)
    memory.goes()


def test_forked_mid_request(memory, peer, bystander):
    engine = memory.engine
    onlooker = bystander(engine)
    other = peer("fork", engine.address)
    assert other.says() == "submitted"
    started(1)
    other.tell("go")
    assert other.says() == ["child", "EngineClosed", "its files are untouched"]
    assert other.says() == ["child", True]
    assert other.says() == ["parent", True]
    onlooker.go_on()
    let_go(1)
    other.tell("go")
    assert other.says() == [8]


def test_dies_while_a_forked_child_keeps_its_socket(memory, peer):
    """A child that was forked behind Python's back holds the connection open: death is by pidfd."""
    engine = memory.engine
    other = peer("bare_fork", engine.address, 1)
    child = other.says()
    started(1)
    try:
        assert others(engine) == [other.pid]
        other.kill()
        assert leftovers.alive(child)
        eventually(lambda: not others(engine), what="the engine has noticed")
        let_go(1)
        memory.goes()
    finally:
        leftovers.kill(child)


def test_closes_while_a_forked_child_keeps_its_socket(memory, peer):
    engine = memory.engine
    other = peer("bare_fork", engine.address, 1)
    child = other.says()
    started(1)
    try:
        other.tell("close")
        assert other.says() == "closed"
        eventually(lambda: not others(engine), 5, "the engine knows that the client was closed")
        let_go(1)
        memory.goes()
    finally:
        leftovers.kill(child)


def test_many_die_at_once(memory, peer, bystander):
    engine = memory.engine
    onlooker = bystander(engine)
    onlooker.go_on()
    peers = [peer("ask", engine.address) for _ in range(4)]
    for other in peers:
        assert other.says() == "asking"
    onlooker.go_on(20)
    for other in peers:
        os.kill(other.pid, signal.SIGKILL)
    eventually(lambda: not others(engine))
    onlooker.go_on()
    memory.goes()
    assert engine.statistics().deaths == 0
