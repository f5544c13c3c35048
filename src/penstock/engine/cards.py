"""What the engine knows of its models, and what clients are told of them.

A card begins with what the settings say. Workers add to it as they load: how large batches may be,
and what goes in and out. What it says of batches is settled when clients are told: one that was cut
later, or that a worker with less memory comes back to, still gets their requests, in parts.

What each worker says for itself is its `Means`: what it can hold now, the sizes that are compiled
and how long they take.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from typing import Any, NamedTuple

from penstock.config import DEFAULT_BATCH, Model
from penstock.spec import ModelSpec, Pad
from penstock.transport import messages as m
from penstock.transport import wire


class Card(NamedTuple):
    """A model as clients are told of it.

    `max_batch` are the rows of the largest batch of any worker, `request_rows` those that every
    worker can hold.
    """

    name: str
    max_batch: int
    request_rows: int
    batched: bool
    spec: ModelSpec
    pads: tuple[Pad, ...]

    def loaded(self, limits: Collection[int], batched: bool) -> Card:
        """As workers have loaded it, with these limits, rows batched or not."""
        return self._replace(
            max_batch=max(limits), request_rows=min(limits), batched=self.batched and batched
        )

    def described(self, record: m.CardTensors) -> Card:
        """With what a worker says that goes in or comes out."""
        if record.side:
            return self._replace(spec=ModelSpec(self.spec.inputs, record.tensors))
        return self._replace(spec=ModelSpec(record.tensors, self.spec.outputs))


class Means(NamedTuple):
    """What one worker says of a model: the most rows that fit there, and what it found out."""

    most: int
    facts: dict[str, Any]
    ladder: tuple[int, ...] = ()
    latency: tuple[tuple[int, int], ...] = ()  # rows, nanoseconds

    def measured(self, facts: dict[str, Any]) -> Means:
        """With what it has found out by now."""
        latency = tuple((int(size), int(time)) for size, time in facts.get("latency", {}).items())
        ladder = tuple(sorted(facts.get("ladder", ())))
        most = min(self.most, int(facts.get("max_batch") or self.most))
        return Means(most, facts, ladder, latency)


def card_of(model: Model) -> Card:
    """What the settings say."""
    most = model.max_batch or DEFAULT_BATCH
    return Card(model.name, most, most, model.batched, model.spec, model.pad)


def encode_card(number: int, card: Card) -> list[bytes]:
    """As a client is told of it."""
    data = [wire.encode(m.ModelCard(number, *card[1:4], card.name))]
    for side, tensors in enumerate((card.spec.inputs, card.spec.outputs)):
        if tensors is not None:
            data.append(wire.encode(m.CardTensors(number, side, tensors)))
    if card.pads:
        pads = [dataclasses.asdict(pad) for pad in card.pads]
        data.append(wire.encode(m.CardPads(number, json.dumps(pads).encode())))
    return data
