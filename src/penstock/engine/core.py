"""The engine's decisions: events and the time come in, effects go out. No I/O, no clock.

The life of a request here, method by method::

    take_client ▶ Intake ▶ Admission ▶ [queued] ▶ step ▶ _dispatch ▶ [running]
                                                                        │
    Answers ◀ Settling ◀ _ran ◀ take_worker ◀───────────────────────────┘
                       ◀ Health.exited (its worker died)
                       ◀ Admission.too_late, Intake (it was cancelled)

`step` is called after every round of events: expire, supervise, dispatch, flush.
"""

from __future__ import annotations

import itertools
import json
import weakref
from typing import Any

from penstock.config import EngineConfig, Model
from penstock.engine.admission import Admission
from penstock.engine.answers import Answers
from penstock.engine.apart import Apart
from penstock.engine.cards import Means, card_of, encode_card
from penstock.engine.clients import ClientState
from penstock.engine.counters import ModelCounters
from penstock.engine.delivery import Delivery
from penstock.engine.effects import Effects
from penstock.engine.health import Health
from penstock.engine.intake import Intake
from penstock.engine.report import report
from penstock.engine.requests import PartRecord
from penstock.engine.segments import Segment
from penstock.engine.settling import Settling
from penstock.engine.trace import Trace
from penstock.engine.workers import Batch, Worker
from penstock.errors import Kind
from penstock.scheduling.batcher import Batcher
from penstock.scheduling.decisions import Decision
from penstock.scheduling.lanes import Lane, Share
from penstock.spec import Signature
from penstock.transport import messages as m
from penstock.transport import wire


class Core:
    """One engine's whole state and every decision about it."""

    def __init__(
        self,
        models: tuple[Model, ...],
        config: EngineConfig,
        effects: Effects,
        pid: int,
        workers: int = 0,
        descriptors: int = 1 << 20,
    ) -> None:
        """`descriptors`: as many as may be kept of answers in segments of their own."""
        self.config = config
        self.pid = pid
        self.effects = effects
        self.clients: dict[int, ClientState] = {}
        self.apart = Apart(effects, self.clients, descriptors)
        self.delivery = Delivery(effects, self.apart, config.client_requests)
        self.answers = Answers(self.delivery, self.apart)
        self.batcher = Batcher()
        self.workers = [Worker(index) for index in range(workers or config.workers or 1)]
        self.cards = {number: card_of(model) for number, model in enumerate(models)}
        self.state = (m.STATE_LOADING, 0, "")
        self.drain_until: int | None = None
        self.health = Health(self)
        self.admission = Admission(self)
        self.settling = Settling(self)
        self.counters = [ModelCounters() for _ in models]
        self.trace = Trace()
        self._shares = [Share(model.weight) for model in models]
        self._intake = Intake(self)
        self._lanes: weakref.WeakValueDictionary[tuple[int, Signature], Lane] = (
            weakref.WeakValueDictionary()
        )
        self._batch_numbers = itertools.count(1)
        self._started = 0

    # ── the engine as a whole ──────────────────────────────────────────────────────────────────

    def start(self, now: int) -> None:
        """Start every worker."""
        self._started = now
        for worker in self.workers:
            if self.state[0] == m.STATE_LOADING:  # else one before could not be started
                self.health.start(worker, now)

    def step(self, now: int) -> None:
        """After a round of events: expire, supervise, dispatch, flush."""
        health = self.health
        due = self.batcher.queue.next_due()
        if due is not None and due <= now:
            for job in self.batcher.expire(health.ready(), now):
                self.admission.too_late(job, now)
        if health.due is not None and health.due <= now:
            health.supervise(now)
        if self.batcher.jobs:
            ready = health.ready()
            while decision := self.batcher.next_batch(ready, now):
                self._dispatch(decision, now)
            for job in self.batcher.missed():
                self.admission.too_late(job, now)
        self.delivery.flush()

    def wakeup(self, now: int) -> int | None:
        """When `step` must be called again at the latest, if nothing happens before."""
        soonest = self.drain_until
        due = self.health.due
        if due is not None and (soonest is None or due < soonest):
            soonest = due
        if self.batcher.jobs:
            time = self.batcher.wakeup(self.health.ready(), now)
            if time is not None and (soonest is None or time < soonest):
                soonest = time
        return soonest

    def announce(self, state: int, kind: int = 0, text: str = "") -> None:
        """The engine's state changes; every client is told."""
        self.state = (state, kind, text)
        for client in self.clients.values():
            if client.greeted:
                self._tell_state(client)

    def close(self, now: int, drain_seconds: float) -> None:
        """Take nothing more, work off what is there, for at most that long."""
        until = now + int(drain_seconds * 1e9)
        if self.drain_until is None:
            self.announce(m.STATE_CLOSING, Kind.ENGINE_CLOSED, "the engine is shutting down")
            self.drain_until = until
        self.drain_until = min(self.drain_until, until)
        self.health.due = now

    def drained(self, now: int) -> bool:
        """Whether a closing engine has nothing left to do, or no more time for it."""
        if self.drain_until is None:
            return False
        busy = self.batcher.jobs or any(worker.batches for worker in self.workers)
        return not busy or now >= self.drain_until or self.health.nobody_left()

    def end_all(self) -> None:
        """Every request that is left ends now: the engine does."""
        for job in self.batcher.clear():
            self.settling.fail(job, Kind.ENGINE_CLOSED, "the engine shut down before this was run")
        for client in self.clients.values():
            self.answers.end_all(client, "the engine shut down")
        self.delivery.flush()
        for client in self.clients.values():
            client.gone = True  # what workers still say ends nothing a second time

    # ── clients ────────────────────────────────────────────────────────────────────────────────

    def connected(self, number: int, pid: int) -> None:
        """A client has connected."""
        self.clients[number] = ClientState(number, pid)

    def take_client(self, number: int, data: bytes, descriptors: list[int], now: int) -> None:
        """A message of a client."""
        client = self.clients.get(number)
        try:
            if client is not None:
                self._intake.take(client, data, descriptors, now)
        except wire.Malformed as error:
            self.effects.disconnect(number, str(error))
        finally:
            for descriptor in descriptors:
                self.effects.close(descriptor)

    def caught_up(self, number: int) -> None:
        """A client has read what was sent, after it had been too much at once."""
        client = self.clients.get(number)
        if client is not None:
            self.delivery.go_on(client)

    def disconnected(self, number: int) -> None:
        """A client's connection has ended: forget it, except for what is being read just now."""
        client = self.clients.pop(number, None)
        if client is None:
            return
        client.gone = True
        self.trace.gone(number)
        for request in list(client.requests.values()):
            self.settling.cancel(request)
        self.delivery.forget(client)
        if client.apart:
            for worker in self.workers:
                for batch in worker.batches.values():
                    self.apart.close_those_of(batch, client)
        for segment in client.segments.values():
            if segment.drop():
                self.release(segment)
        client.segments.clear()

    def greet(self, client: ClientState) -> None:
        """Tell a new client what it may do and what is here."""
        config = self.config
        welcome = m.Welcome(
            m.VERSION,
            self.pid,
            client.number,
            config.client_memory,
            config.client_requests,
            len(self.workers),
            config.queue_rows,
        )
        self.effects.to_client(client.number, wire.encode(welcome))
        self._tell_state(client)

    def _tell_state(self, client: ClientState) -> None:
        if self.state[0] == m.STATE_READY:
            for number, card in self.cards.items():
                for data in encode_card(number, card):
                    self.effects.to_client(client.number, data)
        self.effects.to_client(client.number, wire.encode(m.State(*self.state)))

    def tell(self, client: ClientState, record: m.Ask, now: int) -> None:
        """Send a client what it asked for."""
        answer: Any = {}
        if record.what == m.ASK_STATISTICS:
            answer = report(self, now, self._started)
        elif record.what == m.ASK_TRACE_START:
            self.trace.start(client.number, now)
        elif record.what == m.ASK_TRACE:
            answer = self.trace.take(self, now)
        else:
            raise wire.Malformed(f"there is nothing to ask for with the number {record.what}")
        for message in wire.split_answer(record.token, json.dumps(answer).encode()):
            self.effects.to_client(client.number, message)

    def release(self, segment: Segment) -> None:
        """No batch uses this segment any more and nobody will: let go of it everywhere."""
        for worker in self.workers:
            if segment in worker.mapped:
                worker.mapped.discard(segment)
                self.effects.to_worker(
                    worker.index, wire.encode(m.UnmapSegment(segment.client, segment.number))
                )
        self.effects.close(segment.descriptor)

    # ── models ─────────────────────────────────────────────────────────────────────────────────

    def lane(self, model: int, signature: Signature) -> Lane:
        """Where requests of this kind wait together."""
        lane = self._lanes.get((model, signature))
        if lane is None:
            card = self.cards[model]
            share = self._shares[model]
            lane = Lane(model, signature, card.max_batch, card.batched, share=share)
            for worker in self.workers:
                _tell(lane, worker)
            self._lanes[model, signature] = lane
        return lane

    def _loaded(self, worker: Worker, record: m.ModelCard) -> None:
        """A worker has loaded a model; what clients are told of it stays as they were told."""
        worker.means[record.model] = Means(record.max_batch, {})
        if self.state[0] == m.STATE_LOADING:
            limits = self.limits(record.model).values()
            card = self.cards[record.model].loaded(limits, bool(record.batched))
            self.cards[record.model] = card

    def limits(self, model: int) -> dict[int, int]:
        """The rows of the largest batch of this model that each worker can hold, if it has told."""
        told = ((worker.index, worker.means.get(model)) for worker in self.workers)
        return {index: means.most for index, means in told if means is not None}

    def _learn(self, worker: Worker, model: int, facts: dict[str, Any]) -> None:
        """A worker has told what it knows of a model: its sizes, and how long they take."""
        means = worker.means.get(model) or Means(self.cards[model].max_batch, {})
        worker.means[model] = means.measured(facts)
        for lane in self._lanes.values():
            if lane.model == model:
                _tell(lane, worker)

    # ── workers ────────────────────────────────────────────────────────────────────────────────

    def take_worker(self, index: int, data: bytes, descriptors: list[int], now: int) -> None:
        """A message of a worker."""
        worker = self.workers[index]
        if data[0] == wire.RAN:
            self._ran(worker, wire.decode_ran(data), now)
            return
        record = wire.decode(data)
        if isinstance(record, (m.ItemPart, m.ItemFailed)):
            self._outcome(worker, record, descriptors)
        elif isinstance(record, m.OutputLayout):
            worker.output_layouts[record.layout] = record.tensors
        elif isinstance(record, m.ModelCard):
            self._loaded(worker, record)
        elif isinstance(record, m.CardTensors):
            self.cards[record.model] = self.cards[record.model].described(record)
        elif isinstance(record, m.ModelFacts):
            self._learn(worker, record.model, json.loads(record.data))
        elif isinstance(record, m.Loaded):
            self.health.loaded(worker, record.hands, now)
        elif isinstance(record, m.Warm):
            worker.warm = True
            self.effects.warm(index)
        elif isinstance(record, m.LoadFailed):
            worker.load_error = (record.kind, record.text)
        for descriptor in descriptors:
            self.effects.close(descriptor)

    def _outcome(
        self, worker: Worker, record: m.ItemPart | m.ItemFailed, descriptors: list[int]
    ) -> None:
        """What became of some rows of a batch. What a layout's number means is known only now:
        the worker uses it again when it has many of them, also within a batch."""
        batch = worker.batches.get(record.batch)
        if batch is None:
            return
        if isinstance(record, m.ItemFailed):
            batch.failed(record)
            return
        if descriptors and not self.apart.take(batch.jobs[record.item].owner.client):
            text = "the engine has no descriptor left for this answer (ulimit -n)"
            batch.failed(m.ItemFailed(*record[:4], Kind.OVERLOADED, text))
            return
        signature = worker.output_layouts[record.layout]
        descriptor = descriptors.pop() if descriptors else -1
        part = PartRecord(record.start, record.rows, signature, record.size, descriptor)
        batch.outcomes.append((record.item, part))

    def _dispatch(self, decision: Decision, now: int) -> None:
        worker = decision.runner
        assert isinstance(worker, Worker)
        batch = Batch(next(self._batch_numbers), decision, now)
        items: list[bytes] = []
        for job in batch.jobs:
            request = job.owner
            segment = request.segment
            request.dispatched()
            job.begun = True
            segment.use()
            if segment not in worker.mapped:
                worker.mapped.add(segment)
                data = wire.encode(m.MapSegment(segment.client, segment.number, segment.size))
                self.effects.to_worker(worker.index, data, segment.descriptor)
            items.append(
                m.RUN_ITEM.pack(
                    segment.client,
                    segment.number,
                    request.offset,
                    request.length,
                    request.input_bytes,
                    request.rows,
                    job.start,
                    job.rows,
                    request.series,
                )
            )
        lane = batch.lane
        layout, new = worker.run_layouts.number(lane)
        if new:
            record = m.RunLayout(layout, lane.model, lane.signature)
            self.effects.to_worker(worker.index, wire.encode(record))
        for data in wire.encode_run(batch.number, layout, items):
            self.effects.to_worker(worker.index, data)
        worker.given(batch, lane.on(worker.index).cost(batch.rows), now)
        self.health.busy(now)
        self.counters[lane.model].sent(batch.rows, decision.closed)

    def _ran(self, worker: Worker, record: m.Ran, now: int) -> None:
        began = worker.running_since
        batch = worker.finished(record.batch, now)
        if batch is None:
            return
        worker.busy_ns += record.gather_ns + record.run_ns + record.scatter_ns
        lane = batch.lane
        ability = lane.on(worker.index)
        ability.estimates.overlap = worker.hands > 1
        lane.observe(worker.index, record.size, now - began, now)
        if worker.hands > 1 and batch.rows:  # the device runs the next batch meanwhile
            beside = (record.gather_ns + record.scatter_ns) / batch.rows
            ability.gather += (beside - ability.gather) / 4
        self.counters[lane.model].ran(batch, record, now)
        if self.trace.on:
            self.trace.ran(worker.index, batch, record, began, now)
        for fairness, rows in batch.callers():
            self.batcher.answered(lane, fairness, rows, now)
        self.settling.batch_ran(worker, batch, record.layout)


def _tell(lane: Lane, worker: Worker) -> None:
    """Let a lane know what a worker can do of it, if that has told."""
    means = worker.means.get(lane.model)
    if means is not None:
        lane.tell(worker.index, means.most, means.ladder, means.latency)
