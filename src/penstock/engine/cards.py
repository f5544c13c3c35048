"""What the engine knows of its models, and what clients are told of them.

A card begins with what the settings say. Workers add to it as they load: how large batches may be,
what goes in and out, the sizes that are compiled and how long they take.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, NamedTuple

from penstock.config import DEFAULT_BATCH, Model
from penstock.spec import ModelSpec, Pad
from penstock.transport import messages as m
from penstock.transport import wire


class Card(NamedTuple):
    """A model as clients are told of it."""

    name: str
    max_batch: int
    batched: bool
    spec: ModelSpec
    pads: tuple[Pad, ...]
    facts: dict[str, Any]
    ladder: tuple[int, ...] = ()
    latency: tuple[tuple[int, int], ...] = ()  # rows, nanoseconds

    @property
    def largest(self) -> int:
        """The rows of a batch: what clients were told, or less if that did not fit the device."""
        return min(self.max_batch, int(self.facts.get("max_batch") or self.max_batch))

    def loaded(self, record: m.ModelCard) -> Card:
        """As a worker has loaded it."""
        return self._replace(max_batch=record.max_batch, batched=bool(record.batched))

    def described(self, record: m.CardTensors) -> Card:
        """With what a worker says that goes in or comes out."""
        if record.side:
            return self._replace(spec=ModelSpec(self.spec.inputs, record.tensors))
        return self._replace(spec=ModelSpec(record.tensors, self.spec.outputs))

    def measured(self, facts: dict[str, Any]) -> Card:
        """With what a worker has found out."""
        latency = tuple((int(size), int(time)) for size, time in facts.get("latency", {}).items())
        ladder = tuple(sorted(facts.get("ladder", ())))
        return self._replace(ladder=ladder, latency=latency, facts=facts)


def card_of(model: Model) -> Card:
    """What the settings say."""
    most = model.max_batch or DEFAULT_BATCH
    return Card(model.name, most, model.batched, model.spec, model.pad, {})


def encode_card(number: int, card: Card) -> list[bytes]:
    """As a client is told of it."""
    data = [wire.encode(m.ModelCard(number, card.max_batch, card.batched, card.name))]
    for side, tensors in enumerate((card.spec.inputs, card.spec.outputs)):
        if tensors is not None:
            data.append(wire.encode(m.CardTensors(number, side, tensors)))
    if card.pads:
        pads = [dataclasses.asdict(pad) for pad in card.pads]
        data.append(wire.encode(m.CardPads(number, json.dumps(pads).encode())))
    return data
