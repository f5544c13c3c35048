"""Everything that can happen to an engine, in every order, against a model that knows it all.

The model plays clients, workers and the clock. It follows every row from its submission to its one
end, every segment from its descriptor to its unmapping, and every descriptor until it is closed.
"""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.engine.delivery import OwedPart
from penstock.engine.requests import PartRecord
from penstock.engine.workers import WorkerState
from penstock.errors import Kind
from penstock.transport import messages as m
from tests.engine.room import INPUT, OUTPUT, ROW_BYTES, SECOND, Room, believed_segments

_SLOT = 1024
_SEGMENT = 1 << 22
_BATCHED, _UNBATCHED = 1, 2


@dataclass
class Asked:
    """A request that has not ended, as its client knows it."""

    client: int
    number: int
    segment: int
    rows: int
    layout: int
    deadline: int
    cancelled: bool = False
    parts: list[tuple[int, int]] = field(default_factory=list)
    running: dict[int, tuple[int, int]] = field(default_factory=dict)  # row: (worker, batch)
    must_be_alone: set[int] = field(default_factory=set)

    @property
    def all_rows(self) -> range:
        """Its rows; one that stands for all when it has none."""
        return range(max(self.rows, 1))


@dataclass
class Process:
    """A worker's process, as it sees itself."""

    mapped: dict[tuple[int, int], int] = field(default_factory=dict)
    layouts: dict[int, m.RunLayout] = field(default_factory=dict)
    batches: OrderedDict[int, list[m.RunItem]] = field(default_factory=OrderedDict)
    gathering: list[m.RunItem] = field(default_factory=list)
    alone: bool = False
    loaded: bool = False
    killed: bool = False
    told_layout: bool = False


class CoreMachine(RuleBasedStateMachine):
    """Clients come, submit, cancel, break rules and go; workers with one hand or several answer,
    die, hang and come back."""

    def __init__(self) -> None:
        super().__init__()
        self._believing = believed_segments()
        self._believing.__enter__()
        self.asked: dict[tuple[int, int], Asked] = {}
        self.segments: dict[tuple[int, int], int] = {}
        self.layouts_told: dict[int, set[int]] = {}
        self.processes: dict[int, Process] = {}
        self.starts_seen = 0
        self.kills_seen = 0
        self.last_request = 0
        self.gone: set[int] = set()
        self.closing = False
        self.over = False

    @initialize(
        workers=st.integers(1, 2),
        hands=st.tuples(*[st.sampled_from([1, 2, 4])] * 2),
        restarts=st.sampled_from([2, 100, 100]),
        clients=st.integers(0, 2),
        measured=st.booleans(),
    )
    def engine_starts(
        self, workers: int, hands: tuple[int, int], restarts: int, clients: int, measured: bool
    ) -> None:
        self.hands = hands  # of each worker: how many batches it works on at a time
        self.room = Room(
            workers=workers,
            restarts=restarts,
            restart_refill=20.0,
            run_timeout=5.0,
            load_timeout=30.0,
            queue_rows=40,
            client_requests=12,
            client_memory=4 * _SEGMENT,
        )
        self._look()
        for index in range(workers):
            self._say(index, m.Loaded(1, hands[index]))
            self.processes[index].loaded = True
        self._look()
        assert self.room.core.state[0] == m.STATE_READY
        for _ in range(clients):
            self.connect()
        for index in range(workers if measured else 0):  # only then one gets more than it has hands
            for model in range(2):
                self._tell_facts(index, model, [1, 2, 4], SECOND // 100)

    # ── clients ─────────────────────────────────────────────────────────────────────────────

    @property
    def clients(self) -> list[int]:
        return sorted(self.layouts_told.keys() - self.gone)

    def _any_client(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(self.clients), label="client")

    @precondition(lambda self: len(self.clients) < 4)
    @rule()
    def a_client_connects(self) -> None:
        self.connect()

    def connect(self) -> None:
        client = self.room.connect(segments=0)
        self.layouts_told[client] = set()
        self.segments[client, 1] = self.room.add_segment(client, 1, _SEGMENT)
        self._look()

    @precondition(lambda self: self.clients)
    @rule(
        data=st.data(),
        rows=st.lists(st.integers(0, 5), min_size=1, max_size=6),
        layout=st.sampled_from([_BATCHED, _BATCHED, _UNBATCHED]),
        priority=st.integers(-1, 1),
        caller=st.integers(0, 2),
        waits=st.none() | st.integers(1, 3 * SECOND) | st.integers(1, SECOND // 100),
    )
    def submit(
        self,
        data: st.DataObject,
        rows: list[int],
        layout: int,
        priority: int,
        caller: int,
        waits: int | None,
    ) -> None:
        client = self._any_client(data)
        places = [number for owner, number in self.segments if owner == client]
        if not places:
            return
        segment = data.draw(st.sampled_from(places), label="segment")
        room_left = 12 - sum(1 for asked in self.asked.values() if asked.client == client)
        items: list[m.SubmitItem] = []
        for count in rows[:room_left]:
            self.last_request += 1
            number = self.last_request
            until = 0 if waits is None else self.room.now + waits
            items.append(
                m.SubmitItem(
                    number,
                    segment,
                    layout,
                    number % 4096 * _SLOT,
                    _SLOT,
                    count * ROW_BYTES,
                    count,
                    priority,
                    caller,
                    until,
                )
            )
            self.asked[client, number] = Asked(client, number, segment, count, layout, until)
        if items:
            self.room.say(client, m.Submit(items))
        self._look()

    @precondition(lambda self: self.clients)
    @rule(
        data=st.data(),
        requests=st.integers(2, 9),
        layout=st.sampled_from([_BATCHED, _BATCHED, _BATCHED, _UNBATCHED]),
        priority=st.integers(-1, 1),
        waits=st.none() | st.none() | st.integers(1, SECOND),
    )
    def submit_a_series(
        self, data: st.DataObject, requests: int, layout: int, priority: int, waits: int | None
    ) -> None:
        client = self._any_client(data)
        places = [number for owner, number in self.segments if owner == client]
        room_left = 12 - sum(1 for asked in self.asked.values() if asked.client == client)
        requests = min(requests, room_left)
        first = self.last_request + 1
        if not places or requests < 1 or first % 4096 + requests > 4096:
            return
        segment = data.draw(st.sampled_from(places), label="segment")
        until = 0 if waits is None else self.room.now + waits
        place = (first % 4096 * _SLOT, _SLOT, ROW_BYTES)
        item = m.SubmitItem(first, segment, layout, *place, 1, priority, 0, until, requests)
        for number in range(first, first + requests):
            self.asked[client, number] = Asked(client, number, segment, 1, layout, until)
        self.last_request += requests
        self.room.say(client, m.Submit([item]))
        self._look()

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), others=st.integers(0, 2))
    def cancel(self, data: st.DataObject, others: int) -> None:
        client, number = data.draw(st.sampled_from(sorted(self.asked)), label="request")
        if client in self.gone:
            return
        numbers = [(number,), (number,), *((number + n,) for n in range(1, others + 1))]
        for (each,) in numbers:
            if each in self.room.core.clients[client].requests:  # else it does not matter any more
                self.asked[client, each].cancelled = True
        self.room.say(client, m.Cancel(numbers))
        self._look()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), number=st.integers(1, 3))
    def add_segment(self, data: st.DataObject, number: int) -> None:
        client = self._any_client(data)
        taken = (client, number) in self.segments
        descriptor = self.room.add_segment(client, number, _SEGMENT)
        if taken:
            self._expect_disconnect(client)
            return
        self.segments[client, number] = descriptor
        self._look()

    @precondition(lambda self: self.segments)
    @rule(data=st.data())
    def drop_segment(self, data: st.DataObject) -> None:
        client, number = data.draw(st.sampled_from(sorted(self.segments)), label="segment")
        if client in self.gone or client in self.room.effects.full:
            return
        used = any((a.client, a.segment) == (client, number) for a in self.asked.values())
        self.room.say(client, m.DropSegment(number))
        if used:  # an honest client drops only what is wholly free
            self._expect_disconnect(client)
            return
        descriptor = self.segments.pop((client, number))
        assert descriptor not in self.room.effects.open
        self._look()

    @precondition(lambda self: len(self.clients) > 1)
    @rule(data=st.data(), how=st.integers(0, 7))
    def break_the_protocol(self, data: st.DataObject, how: int) -> None:
        client = self._any_client(data)
        say = self.room.say
        lend = self.room.effects.lend
        if how == 0:
            self.room.say_bytes(client, data.draw(st.binary(min_size=1, max_size=60)) + b"\xff")
            if client not in self.room.effects.disconnected:
                return self._look()
        elif how == 1:
            say(client, m.Submit([m.SubmitItem(1, 99, 1, 0, 64, 64, 1, 0, 0, 0)]))
        elif how == 2:
            say(client, m.Submit([m.SubmitItem(1, 1, 1, 2**64 - 1, 64, 64, 1, 0, 0, 0)]))
        elif how == 3:
            say(client, m.Ask(1, 0), lend())
        elif how == 4:
            say(client, m.AddSegment(7, 1 << 60), lend())
        elif how == 5:
            say(client, m.Hello(m.VERSION, 1, "again"))
        elif how == 6:
            say(client, m.Ran(1, 1, 1, 1, 1, 1))
        else:
            say(client, m.AddSegment(7, 4096), lend(), lend())
        return self._expect_disconnect(client)

    @precondition(lambda self: self.clients and (len(self.clients) > 1 or self.asked))
    @rule(data=st.data())
    def stop_reading(self, data: st.DataObject) -> None:
        self.room.effects.full.add(self._any_client(data))

    @precondition(lambda self: self.room.effects.full)
    @rule(data=st.data())
    def read_again(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.room.effects.full)), label="client")
        self.room.effects.full.remove(client)
        self.room.core.caught_up(client)
        self._look()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        if self.clients:
            self._leaves(self._any_client(data))

    def _expect_disconnect(self, client: int) -> None:
        assert client in self.room.effects.disconnected
        self._leaves(client)

    def _leaves(self, client: int) -> None:
        self._look()
        self.gone.add(client)
        self.room.effects.full.discard(client)
        self.room.core.disconnected(client)
        for key in [key for key in self.asked if key[0] == client]:
            if not self.asked[key].running:
                del self.asked[key]
            else:
                self.asked[key].cancelled = True
        self._look()

    # ── workers ─────────────────────────────────────────────────────────────────────────────

    def _say(self, index: int, record: Any, *descriptors: int) -> None:
        self.room.from_worker(index, record, *descriptors)

    def _processes(self, condition: Any) -> list[int]:
        return [index for index, process in self.processes.items() if condition(process)]

    def _any_process(self, data: st.DataObject, condition: Any) -> int:
        return data.draw(st.sampled_from(self._processes(condition)), label="worker")

    @precondition(lambda self: self._processes(_loads))
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        index = self._any_process(data, _loads)
        self._say(index, m.Loaded(1, self.hands[index]))
        if not self.processes[index].killed:
            self.processes[index].loaded = True
        self._look()

    @precondition(lambda self: self._processes(_loads))
    @rule(data=st.data(), told=st.booleans())
    def fail_to_load(self, data: st.DataObject, told: bool) -> None:
        index = self._any_process(data, _loads)
        if told:
            self._say(index, m.LoadFailed(Kind.MODEL_LOAD, "no"))
        self._exits(index)

    @precondition(lambda self: self.processes)
    @rule(
        data=st.data(),
        model=st.integers(0, 1),
        ladder=st.sampled_from([[], [1], [1, 2, 4]]),
        takes=st.integers(1, SECOND // 50),
    )
    def tell_facts(self, data: st.DataObject, model: int, ladder: list[int], takes: int) -> None:
        self._tell_facts(self._any_process(data, _any), model, ladder, takes)

    def _tell_facts(self, index: int, model: int, ladder: list[int], takes: int) -> None:
        facts = {"ladder": ladder, "latency": {str(size): size * takes for size in ladder}}
        self._say(index, m.ModelFacts(model, json.dumps(facts).encode()))
        self._look()

    @precondition(lambda self: self._processes(_works))
    @rule(data=st.data(), whole=st.booleans())
    def answer(self, data: st.DataObject, whole: bool) -> None:
        index = self._any_process(data, _works)
        number = self._any_in_hand(data, index)
        entries = self.processes[index].batches[number]
        size = sum(entry.rows for entry in entries)
        self._tell_layout(index)
        if whole:
            self._say(index, m.Ran(number, 1, size, 1, 1, 1))
        else:
            self._answer_in_parts(index, number, data)
            self._say(index, m.Ran(number, 0, size, 1, 1, 1))
        self._forget_batch(index, number)
        self._look()

    @precondition(lambda self: self._processes(_works))
    @rule(data=st.data())
    def answer_half_and_die(self, data: st.DataObject) -> None:
        index = self._any_process(data, _works)
        self._tell_layout(index)
        self._answer_in_parts(index, self._any_in_hand(data, index), data)
        self._exits(index)

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self._exits(self._any_process(data, _any))

    @precondition(lambda self: self._processes(_lives))
    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        """A worker closes its connection: it gets nothing more, and exits sooner or later."""
        index = self._any_process(data, _lives)
        self.room.core.health.let_go(self.room.core.workers[index], self.room.now)
        self.processes[index].killed = True
        self._look()

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), number=st.integers(0, 50), descriptor=st.booleans())
    def say_something_late(self, data: st.DataObject, number: int, descriptor: bool) -> None:
        index = self._any_process(data, _any)
        if number in self.processes[index].batches:
            return
        lent = [self.room.effects.lend()] if descriptor else []
        self._say(index, m.ItemPart(number, 0, 0, 1, 1, int(descriptor), 4096), *lent)
        self._say(index, m.Ran(number, 0, 1, 1, 1, 1))
        self._look()

    def _any_in_hand(self, data: st.DataObject, index: int) -> int:
        """One of the batches that a worker is at: each hand has one, and may be done first."""
        return data.draw(st.sampled_from(self._in_hands(index)), label="batch")

    def _in_hands(self, index: int) -> list[int]:
        return list(self.processes[index].batches)[: self.hands[index]]

    def _tell_layout(self, index: int) -> None:
        if not self.processes[index].told_layout:
            self._say(index, m.OutputLayout(1, OUTPUT))
            self.processes[index].told_layout = True

    def _answer_in_parts(self, index: int, number: int, data: st.DataObject) -> None:
        for which, entry in enumerate(self.processes[index].batches[number]):
            at = entry.start
            while at < entry.start + entry.rows or (entry.rows == 0 and at == entry.start):
                left = entry.start + entry.rows - at
                rows = data.draw(st.integers(min(left, 1), left), label="rows")
                how = data.draw(st.sampled_from(["slot", "segment", "failed"]), label="outcome")
                if entry.series and how == "segment":
                    rows = 1
                if how == "failed":
                    text = "bad\0Traceback"
                    self._say(index, m.ItemFailed(number, which, at, rows, Kind.MODEL, text))
                elif how == "slot":
                    self._say(index, m.ItemPart(number, which, at, rows, 1, 0, 0))
                else:
                    lent = self.room.effects.lend()
                    self._say(index, m.ItemPart(number, which, at, rows, 1, 1, 4096), lent)
                at += rows or 1

    def _forget_batch(self, index: int, number: int) -> None:
        """This batch is answered: its rows are settled, whoever still waits for them."""
        process = self.processes[index]
        del process.batches[number]
        process.alone = False
        for asked in self.asked.values():
            for row in [r for r, place in asked.running.items() if place == (index, number)]:
                del asked.running[row]

    def _exits(self, index: int) -> None:
        begun = self._in_hands(index)
        del self.processes[index]
        for asked in self.asked.values():
            for row, (worker, batch) in list(asked.running.items()):
                if worker == index:
                    del asked.running[row]
                    if batch in begun:
                        asked.must_be_alone.add(row)
        self.room.exit(index)
        self._look()

    # ── time, and the end ───────────────────────────────────────────────────────────────────

    @rule(
        passes=st.integers(0, SECOND // 50)
        | st.integers(0, 2 * SECOND)
        | st.integers(0, 30 * SECOND)
    )
    def time_passes(self, passes: int) -> None:
        until = self.room.now + passes
        for _ in range(2_000):  # the engine is called when it asked for it
            wakeup = self.room.core.wakeup(self.room.now)
            if wakeup is None or wakeup >= until or self.room.core.drained(self.room.now):
                break
            self.room.now = max(self.room.now, wakeup)
            self._look()
        else:
            raise AssertionError("the engine spins")
        self.room.now = until
        self._look()

    @precondition(lambda self: not self.closing and self.clients)
    @rule(data=st.data(), chance=st.integers(0, 9), seconds=st.integers(0, 20))
    def close(self, data: st.DataObject, chance: int, seconds: int) -> None:
        if chance:
            return
        self.closing = True
        self.room.say(self._any_client(data), m.Stop(float(seconds)))
        self._look()

    # ── what came out ───────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        """Let the engine do what is due, and follow what it did."""
        self.room.step()
        effects = self.room.effects
        for index in effects.started[self.starts_seen :]:
            assert index not in self.processes, "a worker was started twice"
            self.processes[index] = Process()
        self.starts_seen = len(effects.started)
        for index in effects.killed[self.kills_seen :]:
            self.processes[index].killed = True
        self.kills_seen = len(effects.killed)
        for worker, record, descriptor in effects.take_workers():
            if worker in self.processes:  # else it is gone: nobody reads that
                self._worker_gets(worker, record, descriptor)
        for client, record, descriptor in effects.take_clients():
            self._client_gets(client, record, descriptor)

    def _worker_gets(self, index: int, record: Any, descriptor: int) -> None:
        process = self.processes[index]
        if isinstance(record, m.MapSegment):
            key = (record.client, record.segment)
            assert key not in process.mapped, "mapped twice"
            assert record.client in self.gone or self.segments[key] == descriptor
            process.mapped[key] = descriptor
        elif isinstance(record, m.UnmapSegment):
            key = (record.client, record.segment)
            for entries in process.batches.values():
                for entry in entries:
                    assert (entry.client, entry.segment) != key, "unmapped under a batch"
            del process.mapped[key]
        elif isinstance(record, m.RunLayout):
            process.layouts[record.layout] = record
        elif isinstance(record, m.Run):
            process.gathering += [m.RunItem(*values) for values in record.items]
            if record.last:
                entries, process.gathering = process.gathering, []
                self._runs(index, record.batch, process.layouts[record.layout], entries)

    def _runs(self, index: int, number: int, layout: m.RunLayout, entries: list[m.RunItem]) -> None:
        process = self.processes[index]
        assert process.loaded
        assert not process.killed, "a worker that was killed got a batch"
        assert not process.alone, "a worker that runs a suspect got a batch"
        assert len(process.batches) < max(2, self.hands[index])
        assert all(number not in other.batches for other in self.processes.values())
        rows = sum(entry.rows for entry in entries)
        assert layout.tensors == INPUT
        if layout.model == 0:
            assert rows <= 4
            assert len(entries) == 1 or all(entry.rows for entry in entries)
        else:
            assert len(entries) == 1
        for entry in entries:
            assert process.mapped[entry.client, entry.segment] in self.room.effects.open
            for asked, row in self._rows_of(entry):
                assert not asked.cancelled, "what was cancelled was run"
                assert asked.layout - 1 == layout.model
                assert row not in asked.running, "a row runs twice"
                asked.running[row] = (index, number)
                if row in asked.must_be_alone:
                    assert len(entries) == 1, "a suspect has company"
                    assert entry.rows <= 1
                    assert not process.batches
                    assert layout.model == 0, "what may not be repeated was"
                    process.alone = True
        process.batches[number] = entries

    def _rows_of(self, entry: m.RunItem) -> list[tuple[Asked, int]]:
        """The rows of a batch's item, each with the request that it belongs to."""
        rows = range(entry.start, entry.start + max(entry.rows, 1))
        if entry.series:
            assert entry.length == _SLOT
            return [(self._asked_at(entry, entry.offset + row * _SLOT), 0) for row in rows]
        asked = self._asked_at(entry, entry.offset)
        assert entry.total == asked.rows
        return [(asked, row) for row in rows]

    def _asked_at(self, entry: m.RunItem, offset: int) -> Asked:
        (found,) = [
            asked
            for asked in self.asked.values()
            if asked.client == entry.client
            and asked.segment == entry.segment
            and asked.number % 4096 * _SLOT == offset
        ]
        return found

    def _client_gets(self, client: int, record: Any, descriptor: int) -> None:
        assert client not in self.gone, f"{record} for a client that is gone"
        if isinstance(record, m.OutputLayout):
            self.layouts_told[client].add(record.layout)
        elif isinstance(record, m.Part):
            assert descriptor == -1 or descriptor >= 1_000
            assert record.layout in self.layouts_told[client]
            self.asked[client, record.request].parts.append((record.start, record.rows))
        elif isinstance(record, m.RowFailed):
            self.asked[client, record.request].parts.append((record.start, record.rows))
        elif isinstance(record, m.Done):
            for number, layout in record.items:
                asked = self._ended(client, number)
                assert not asked.cancelled
                if layout:
                    assert layout in self.layouts_told[client]
                    assert not asked.parts
                else:
                    self._covers_all_rows(asked)
        elif isinstance(record, (m.Failed, m.Refused)):
            asked = self._ended(client, record.request)
            assert not asked.parts
            assert self.over or not asked.cancelled
        elif isinstance(record, m.Cancelled):
            for (number,) in record.items:
                assert self._ended(client, number).cancelled

    def _ended(self, client: int, number: int) -> Asked:
        asked = self.asked.pop((client, number), None)
        assert asked is not None, "a request ended twice, or was never made"
        if not self.over:
            assert not asked.running, "a request ended while a worker has its slot"
        return asked

    def _covers_all_rows(self, asked: Asked) -> None:
        covered: list[int] = []
        for start, rows in asked.parts:
            covered += range(start, start + rows)
        assert sorted(covered) == list(range(asked.rows)), "a row has no end, or two"

    # ── what always holds ───────────────────────────────────────────────────────────────────

    @invariant()
    def credits_and_bytes_are_right(self) -> None:
        if not hasattr(self, "room"):
            return
        core = self.room.core
        assert sorted(core.clients) == self.clients
        for client, state in core.clients.items():
            expected = {n for c, n in self.asked if c == client}
            assert state.requests.keys() <= expected
            assert len(expected) == len(state.requests) + state.untold
            assert client in self.room.effects.full or not state.owed
            held = sum(_SEGMENT for owner, _ in self.segments if owner == client)
            assert state.bytes_held == held
            assert len(state.requests) + state.untold <= 12
            assert state.rows_open == sum(each.rows for each in set(state.requests.values()))

    @invariant()
    def the_queue_is_what_is_not_running(self) -> None:
        if not hasattr(self, "room"):
            return
        waiting = 0
        for asked in filter(self._is_open, self.asked.values()):
            if not asked.cancelled and asked.rows:
                waiting += asked.rows - len(asked.running) - self._settled_rows(asked)
        assert self.room.core.batcher.rows >= 0
        assert self.room.core.batcher.rows == waiting

    def _is_open(self, asked: Asked) -> bool:
        """Whether it has not ended; its client may only not know."""
        state = self.room.core.clients.get(asked.client)
        return state is None or asked.number in state.requests

    def _settled_rows(self, asked: Asked) -> int:
        state = self.room.core.clients[asked.client].requests[asked.number]
        return 0 if state.series else asked.rows - state.unsettled

    @invariant()
    def workers_are_as_they_seem(self) -> None:
        if not hasattr(self, "room"):
            return
        for worker in self.room.core.workers:
            process = self.processes.get(worker.index)
            assert (process is None) == (worker.state is WorkerState.DOWN)
            if process is not None:
                assert list(worker.batches) == list(process.batches)
                assert (worker.state is WorkerState.ENDING) == process.killed

    @invariant()
    def open_descriptors_are_known(self) -> None:
        if not hasattr(self, "room"):
            return
        known = set(self.segments.values())
        for process in self.processes.values():
            for entries in process.batches.values():
                for entry in entries:
                    known.add(process.mapped[entry.client, entry.segment])
        for worker in self.room.core.workers:
            for batch in worker.batches.values():
                outcomes = [outcome for _, outcome in batch.outcomes]
                parts = [each for each in outcomes if isinstance(each, PartRecord)]
                known |= {part.descriptor for part in parts if part.descriptor >= 0}
        for state in self.room.core.clients.values():
            for request in state.requests.values():
                known |= {part.descriptor for part in request.parts if part.descriptor >= 0}
            owed = [entry.part for entry in state.owed if isinstance(entry, OwedPart)]
            known |= {part.descriptor for part in owed if part.descriptor >= 0}
        for key in [key for key in self.segments if key[0] in self.gone]:
            descriptor = self.segments[key]
            if descriptor not in self.room.effects.open:
                del self.segments[key]
        assert self.room.effects.open <= known

    @invariant()
    def the_engine_sleeps_until_something_is_due(self) -> None:
        if not hasattr(self, "room"):
            return
        wakeup = self.room.core.wakeup(self.room.now)
        if self.room.core.drained(self.room.now):
            return
        assert wakeup is None or wakeup > self.room.now, "the engine spins"

    def teardown(self) -> None:
        try:
            if hasattr(self, "room") and not self._failing():
                self._everybody_is_served()
        finally:
            self._believing.__exit__(None, None, None)

    def _failing(self) -> bool:
        return sys.exc_info()[0] is not None

    def _everybody_is_served(self) -> None:
        """The workers do their work, or the engine ends: no request is left either way."""
        while self.room.effects.full:
            self.room.core.caught_up(self.room.effects.full.pop())
        if self.closing:
            self.over = True
            self.room.core.end_all()
            self._look()
        for _ in range(500):
            if not self.asked:
                break
            for index, process in list(self.processes.items()):
                if process.killed:
                    self._exits(index)
                elif not process.loaded:
                    self._say(index, m.Loaded(1, self.hands[index]))
                    process.loaded = True
                elif process.batches:
                    self._tell_layout(index)
                    number = next(iter(process.batches))
                    self._say(index, m.Ran(number, 1, 1, 1, 1, 1))
                    self._forget_batch(index, number)
            for key in [k for k, a in self.asked.items() if k[0] in self.gone and not a.running]:
                del self.asked[key]
            self.time_passes(SECOND)
        assert not self.asked, "somebody was never answered"
        for client in self.clients:
            self._leaves(client)
        for index in list(self.processes):
            self._exits(index)
        assert not self.room.effects.open


def _any(process: Process) -> bool:
    return True


def _loads(process: Process) -> bool:
    return not process.loaded


def _lives(process: Process) -> bool:
    return not process.killed


def _works(process: Process) -> bool:
    return bool(process.batches)


TestCore = CoreMachine.TestCase
TestCore.settings = settings(max_examples=300, stateful_step_count=50)
