"""A core with recorded effects, and clients and workers that are played by the test."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from penstock.config import EngineConfig, Model
from penstock.engine.core import Core
from penstock.spec import Signature, TensorSpec
from penstock.transport import messages as m
from penstock.transport import segment, wire
from tests.engine.recording import Recording, Sent

ROW_BYTES = 64
INPUT: Signature = (TensorSpec("float32", (16,)),)
OUTPUT: Signature = (TensorSpec("float32", (4,)),)
SEGMENT_BYTES = 1 << 20
MODELS = (
    Model("m:f", name="f", max_batch=4),
    Model("m:g", name="g", max_batch=4, batched=False),
    Model("m:h", name="h", max_batch=4, inputs={"x": ("float32", (None,))}),
)
TERMINAL = (m.Done, m.Failed, m.Refused, m.Cancelled)
SECOND = 1_000_000_000


@contextmanager
def believed_segments() -> Iterator[None]:
    """Descriptors in these tests are numbers only: believe that each is a good segment."""
    with mock.patch.object(segment, "verify", return_value=None):
        yield


class Room:
    """One engine on paper. Messages go in as records; what comes out is in `effects`."""

    def __init__(self, models: tuple[Model, ...] = MODELS, **settings: Any) -> None:
        self.now = 10 * SECOND
        self.effects = Recording()
        settings.setdefault("client_memory", 64 * SEGMENT_BYTES)
        self.core = Core(models, EngineConfig(name="room", **settings), self.effects, 77)
        self.core.start(self.now)
        self._clients = 0

    # ── workers ─────────────────────────────────────────────────────────────────────────────

    def load(self, *indexes: int) -> None:
        """These workers (all, when none is named) have loaded their models."""
        for index in indexes or range(len(self.core.workers)):
            self.from_worker(index, m.Loaded(1))

    def from_worker(self, index: int, record: Any, *descriptors: int) -> None:
        """A worker says something."""
        self.core.take_worker(index, wire.encode(record), list(descriptors), self.now)

    def answer(self, index: int, batch: int, output: Signature = OUTPUT) -> None:
        """A worker has done a batch in the usual way."""
        self.from_worker(index, m.OutputLayout(1, output))
        self.from_worker(index, m.Ran(batch, 1, 1, 1, 1, 1))

    def finish(self, index: int = 0, takes: int = 0, size: int = 0) -> int:
        """After so long a worker has done its oldest batch, at this size; returns its number."""
        self.now += takes
        batch = next(iter(self.core.workers[index].batches.values()))
        self.from_worker(index, m.OutputLayout(1, OUTPUT))
        self.from_worker(index, m.Ran(batch.number, 1, size or batch.rows, 10, 20, 30))
        self.step()
        return batch.number

    def exit(self, index: int, how: str = "it was killed by SIGKILL") -> None:
        """A worker's process is gone."""
        self.core.health.exited(self.core.workers[index], how, self.now)

    def runs(self) -> list[Sent]:
        """The batches that were sent since the last time."""
        return [sent for sent in self.effects.take_workers() if isinstance(sent.record, m.Run)]

    # ── clients ─────────────────────────────────────────────────────────────────────────────

    def connect(self, *, segments: int = 1, layouts: bool = True) -> int:
        """A client that has said hello, with a segment (1) and a layout a model (1, 2, …)."""
        self._clients += 1
        number = self._clients
        self.core.connected(number, 4_000 + number)
        self.say(number, m.Hello(m.VERSION, 4_000 + number, f"client {number}"))
        for segment_number in range(1, segments + 1):
            self.add_segment(number, segment_number)
        if layouts:
            self.say(number, m.Layout(1, 0, INPUT))
            self.say(number, m.Layout(2, 1, INPUT))
        return number

    def say(self, client: int, record: Any, *descriptors: int) -> None:
        """A client says something."""
        self.say_bytes(client, wire.encode(record), *descriptors)

    def say_bytes(self, client: int, data: bytes, *descriptors: int) -> None:
        """A client says anything."""
        self.core.take_client(client, data, list(descriptors), self.now)

    def add_segment(self, client: int, number: int, size: int = SEGMENT_BYTES) -> int:
        """A client brings memory; returns its descriptor in the engine."""
        descriptor = self.effects.lend()
        self.say(client, m.AddSegment(number, size), descriptor)
        return descriptor

    def submit(self, client: int, number: int, **changes: int) -> None:
        """A client submits one request of one row in segment 1, unless it says otherwise."""
        self.say(client, m.Submit([item(number, **changes)]))

    def learn(self, client: int, *, rows: int = 1, layout: int = 1) -> None:
        """Let the engine see how long so many rows take: then it sends the next batch early."""
        self.submit(client, 10_000, rows=rows, layout=layout)
        self.step()
        (run,) = self.runs()
        self.answer(run.peer, run.record.batch)
        self.step()
        self.effects.take_clients()

    def ask(self, client: int, what: int) -> Any:
        """What the engine tells this client of the ASK_ thing."""
        self.effects.take_clients()
        self.say(client, m.Ask(99, what))
        pieces = [sent.record for sent in self.effects.take_clients() if sent.peer == client]
        assert [piece.last for piece in pieces] == [0] * (len(pieces) - 1) + [1]
        assert all(piece.token == 99 for piece in pieces)
        return json.loads(b"".join(piece.data for piece in pieces))

    def step(self, passes: int = 0) -> None:
        """Time passes, and the engine does what is due."""
        self.now += passes
        self.core.step(self.now)

    def ends(self, client: int) -> list[tuple[str, int]]:
        """How requests of this client have ended since the last time: (record, request)."""
        return ends_of(sent for sent in self.effects.take_clients() if sent.peer == client)

    def leave(self) -> None:
        """Everybody goes; nothing may stay open."""
        for number in list(self.core.clients):
            self.core.disconnected(number)
        for worker in self.core.workers:
            if worker.pid:
                self.exit(worker.index)
        assert not self.effects.open, f"left open: {self.effects.open}"


def item(number: int, **changes: int) -> m.SubmitItem:
    """A request of one row at its own place in segment 1."""
    rows = changes.get("rows", 1)
    values = {
        "request": number,
        "segment": 1,
        "layout": 1,
        "offset": 1024 * (number % 512),
        "length": 1024,
        "input_bytes": ROW_BYTES * rows,
        "rows": rows,
        "priority": 0,
        "caller": 0,
        "deadline": 0,
    }
    return m.SubmitItem(**(values | changes))


def ends_of(sent: Any) -> list[tuple[str, int]]:
    """The terminal messages among these, one entry a request."""
    found: list[tuple[str, int]] = []
    for _, record, _ in sent:
        if isinstance(record, (m.Done, m.Cancelled)):
            found += [(type(record).__name__, entry[0]) for entry in record.items]
        elif isinstance(record, (m.Failed, m.Refused)):
            found.append((type(record).__name__, record.request))
    assert max(Counter(number for _, number in found).values(), default=0) <= 1
    return found
