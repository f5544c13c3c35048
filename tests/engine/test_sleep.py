"""The engine sleeps while there is nothing that it could do."""

from __future__ import annotations

import json

from penstock.transport import messages as m
from tests.engine.room import Room, believed_segments

MS = 1_000_000


def test_it_sleeps_while_no_worker_is_ready() -> None:
    """A row was held back, for others to share its batch, when the only worker went."""
    with believed_segments():
        room = Room()
        room.load()
        facts = {"ladder": [1, 2, 4], "latency": {"1": 10 * MS, "2": 20 * MS, "4": 40 * MS}}
        room.from_worker(0, m.ModelFacts(0, json.dumps(facts).encode()))
        first, second = room.connect(), room.connect()
        room.submit(first, 1, rows=4)
        room.step()
        room.finish(takes=40 * MS)
        room.submit(second, 2)
        room.step()
        assert room.core.batcher.jobs == 1, "it waits for the first client"
        room.core.health.let_go(room.core.workers[0], room.now)
        for _ in range(3):
            room.step(5 * MS)
            wakeup = room.core.wakeup(room.now)
            assert wakeup is None or wakeup > room.now + MS
        room.exit(0)
        room.leave()
