"""A worker's loop: receive, gather, run, scatter, reply.

A worker has one *hand* or several (`hand`), each a thread with a device of its own. They take turns
at the channel: whoever has the turn receives a batch and gathers its rows, in the order of the
engine's messages, then gives the turn away and runs the batch. So with several hands the next
batch is gathered while others are run and scattered, no batch is ever handed from one thread to
another, and a device's buffers are used again only when the batch that was in them is done. Two
batches run at a time: one keeps the device busy while the other one's beginning and end pass. More
of them would share the device, end together, and leave it with nothing to do.

    hand 1   receive gather │ run · · · · · · · scatter reply
    hand 2                  │ receive gather │ run · · · · · · · scatter reply
    hand 3                                   │ receive gather │ · · · run · · · · · · · scatter …

A segment is never unmapped under a batch that reads it: the engine says so only when it knows the
answers of all such batches. Between batches the loop passes on what warming up has found
(`warmup`).
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.errors import DeviceMemoryError, Kind
from penstock.model.function import Runnable
from penstock.model.pace import IN_FLIGHT
from penstock.spec import Signature
from penstock.transport import messages as m
from penstock.transport import wire
from penstock.transport.channel import Channel, Closed
from penstock.transport.layouts import LayoutNumbers
from penstock.transport.tensors import plan_of
from penstock.transport.vigil import Vigil
from penstock.worker.device import CpuDevice, Device, RunLayout
from penstock.worker.hand import Hand
from penstock.worker.memory import MappedSegments
from penstock.worker.turnstile import Turnstile
from penstock.worker.warmup import Ready, WarmUp

_log = logging.getLogger(__name__)
_PATIENCE = 1.0
_AWAKE = 500_000  # nanoseconds
_SWITCH = 0.0005  # seconds that a hand computes in Python while another one wants to


class Order(NamedTuple):
    """A batch that the engine wants to be run."""

    number: int
    layout: RunLayout
    items: list[m.RunItem]


class Worker:
    """Runs batches until the engine ends, or says so."""

    def __init__(
        self,
        channel: Channel,
        models: list[Ready],
        memory: MappedSegments | None = None,
        devices: Sequence[Device] = (),
    ) -> None:
        self.turn = threading.Lock()  # whoever holds it receives and gathers
        self.running = Turnstile(IN_FLIGHT)
        self._channel = channel
        self._models = models
        self._memory = MappedSegments() if memory is None else memory
        self._devices = devices or [CpuDevice(self._memory)]
        several = len(self._devices) > 1
        self._vigil = Vigil(0 if several else _AWAKE)  # other hands need Python meanwhile
        self._alone = [
            None if not several or concurrent(model.runnable) else threading.Lock()
            for model in models
        ]
        self._layouts: dict[int, RunLayout] = {}
        self._output_layouts: LayoutNumbers[Signature] = LayoutNumbers()
        self._items: list[m.RunItem] = []
        self._over = False
        self._lost: Closed | None = None
        self._sending = threading.Lock()
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._room = select.poll()
        self._room.register(channel, select.POLLOUT)

    def run(self) -> bool:
        """Until `Stop`, or until the engine is gone.

        Returns whether nothing goes on any more in this process: no model is being warmed up.
        """
        self._warm_up = WarmUp(self._models)
        self._poll.register(self._warm_up, select.POLLIN)
        first, *others = [Hand(self, device) for device in self._devices]
        try:
            if others:
                self._work_together(first, others)
            else:
                first.work()
        finally:
            self._poll.unregister(self._warm_up)
            finished = self._warm_up.close(_PATIENCE)
        return finished

    def _work_together(self, first: Hand, others: list[Hand]) -> None:
        sys.setswitchinterval(_SWITCH)
        threads = [
            threading.Thread(target=self._lend, args=(hand,), name=f"penstock-hand-{n}")
            for n, hand in enumerate(others, 2)
        ]
        for thread in threads:
            thread.start()
        self._lend(first)
        for thread in threads:
            thread.join()
        if self._lost is not None:
            raise self._lost

    def _lend(self, hand: Hand) -> None:
        """One hand of several. What it cannot deal with ends the process, and so all of them."""
        try:
            hand.work()
        except Closed as error:
            self._lost = error
        except BaseException:
            _log.critical("a hand ended by an error:", exc_info=True)
            logging.shutdown()
            os._exit(1)

    # ── messages ───────────────────────────────────────────────────────────────────────────────

    def next_order(self) -> Order | None:
        """The next batch, or `None` at the end. Only for the hand whose turn it is."""
        if self._lost is not None:
            raise self._lost
        if self._over:
            return None
        try:
            return self._next_order()
        except Closed as error:
            self._lost = error
            raise

    def _next_order(self) -> Order | None:
        while True:
            data, descriptors = self._receive()
            if data[0] == wire.RUN:
                batch, layout, last, items = wire.decode_run(data)
                self._items += items
                if last:
                    items, self._items = self._items, []
                    return Order(batch, self._layouts[layout], items)
                continue
            record = wire.decode(data)
            if isinstance(record, m.MapSegment):
                self._memory.map(record.client, record.segment, record.size, descriptors.pop())
            elif isinstance(record, m.UnmapSegment):
                self._memory.unmap(record.client, record.segment)
            elif isinstance(record, m.RunLayout):
                self._layouts[record.layout] = RunLayout(
                    record.model,
                    self._models[record.model].runnable,
                    record.tensors,
                    plan_of(record.tensors),
                    self._alone[record.model],
                )
            elif isinstance(record, m.Stop):
                self._over = True
                return None

    def _receive(self) -> tuple[bytes, list[int]]:
        while True:
            for ready, _ in self._vigil.keep(self._poll.poll) or self._poll.poll():
                if ready == self._warm_up.fileno():
                    for message in self._warm_up.news():
                        self.send(message)
            received = self._channel.receive()
            if received is not None:
                return received

    def send(self, data: bytes, descriptor: int = -1) -> None:
        """Send; the engine reads whatever happens, so waiting for room is safe here."""
        with self._sending:
            self._send(data, descriptor)

    def _send(self, data: bytes, descriptor: int = -1) -> None:
        self._channel.send(data, (descriptor,) if descriptor >= 0 else ())
        while self._channel.wants_write:
            self._room.poll()
            self._channel.flush()

    def send_of(
        self, signature: Signature, encode: Callable[[int], bytes], descriptor: int = -1
    ) -> None:
        """Send what names outputs by the number of their layout, before another hand has any
        number mean something else."""
        with self._sending:
            layout, new = self._output_layouts.number(signature)
            if new:
                self._send(wire.encode(m.OutputLayout(layout, signature)))
            self._send(encode(layout), descriptor)

    def tell_facts(self, model: int) -> None:
        """Something about a model is not as it was told."""
        self.send(self._models[model].facts(model))


def concurrent(runnable: Runnable) -> bool:
    """Whether several batches of a model may be run at the same time."""
    return runnable.device == "GPU" and runnable.batched


def tell_failure(channel: Channel, error: Any) -> None:
    """A model could not be loaded: say why, before this process exits."""
    kind = Kind.DEVICE_MEMORY if isinstance(error, DeviceMemoryError) else Kind.MODEL_LOAD
    try:
        channel.send(wire.encode(m.LoadFailed(kind, str(error))))
    except Closed:
        return
