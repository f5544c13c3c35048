"""From the settings `devices` and `workers` to a `Placement` for each worker.

A placement is where a worker runs, as changes to its environment that are made before it starts:
it sees exactly its device, so no other card ever gets a CUDA context of its.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.devices import cards as found
from penstock.devices import ledger, mps
from penstock.devices.cards import Card, Survey
from penstock.devices.limit import BUFFERS, MEMORY, ROWS, SQUEEZED
from penstock.errors import ConfigError

CPU = "cpu"


@dataclass(frozen=True)
class Placement:
    """Where a worker runs: `device` is "cpu" or a card's UUID.

    `memory` is its share of the card in bytes, with what TensorFlow takes beside its limit; 0: as
    much as it likes. `buffers` is what it may gather batches into besides. `rows`: how large the
    batches of several models may be, so that all of them have room (JSON). `name` is for people.
    """

    device: str
    name: str = CPU
    memory: int = 0
    buffers: int = 0
    rows: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether it is a card."""
        return self.device != CPU

    def environment(self, squeezed: int = 0) -> dict[str, str]:
        """What to set for the worker's process. `squeezed`: how many before it ran out of memory as
        they loaded."""
        changes = environment(self.device if self.on_gpu else "-1", self.memory)
        return {
            **changes,
            BUFFERS: str(self.buffers or ""),
            ROWS: self.rows,
            SQUEEZED: str(squeezed or ""),
        }


def environment(visible: str, memory: int) -> dict[str, str]:
    """What makes a process use this card alone (`-1`: none), and so much of it (0: any)."""
    changes = {found.VISIBLE: visible, MEMORY: str(memory or "")}
    if visible != "-1":
        changes["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        changes["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # up to the limit, as it is needed
    return changes


def resolve(devices: str | Sequence[str] = "auto", workers: int = 0) -> list[Placement]:
    """One placement for each worker. Raises `ConfigError` where that cannot be.

    `devices` is "auto" (all visible GPUs, else the CPU), "cpu", "gpu" (all visible ones), or names:
    "gpu:0", a UUID or the beginning of one, "cpu". `workers` is 0 for one on each device.
    """
    if devices == CPU:
        return [Placement(CPU)] * (workers or 1)
    look = found.survey()
    seen = found.visible(look.cards, os.environ)
    if devices in ("auto", "gpu"):
        if not seen and devices == "gpu":
            raise ConfigError(f"devices='gpu', but {no_card(look)}")
        chosen = [_on(card) for card in seen] or [Placement(CPU)]
        chosen = chosen[: workers or None]
    else:
        names = [devices] if isinstance(devices, str) else list(devices)
        others = "auto, cpu, gpu, " if isinstance(devices, str) else "cpu, "
        chosen = [_named(name, look, seen, others) for name in names]
        if not chosen:
            raise ConfigError("devices: an empty list; expected 'auto', 'cpu' or 'gpu:0', ...")
    return _spread(chosen, workers or len(chosen))


def roomiest(placements: Sequence[Placement]) -> Placement:
    """The one whose card has the most left; the first where there is no choice."""
    left = {room.card.uuid: room.left for room in ledger.rooms()} if len(placements) > 1 else {}
    return max(placements, key=lambda placement: left.get(placement.device, 0))


def card_named(name: str, look: Survey, seen: Sequence[Card], others: str = "") -> Card:
    """The card that is meant, if it may be used. `others`: what else could have been said."""
    card = found.find(look.cards, name)
    if card is None:
        known = f"there are: {', '.join(map(str, look.cards))}" if look.cards else no_card(look)
        raise ConfigError(
            f"no card is {name!r}; expected {others}gpu:N (the N-th on the PCI bus, as NVML "
            f"counts) or the beginning of one card's UUID; {known}"
        )
    if card not in seen:
        raise ConfigError(
            f"{card} is hidden by CUDA_VISIBLE_DEVICES={os.environ.get(found.VISIBLE)!r}; "
            "numbers are in the order of the PCI bus, whatever is hidden"
        )
    return card


def _named(name: str, look: Survey, seen: Sequence[Card], others: str) -> Placement:
    return Placement(CPU) if name == CPU else _on(card_named(name, look, seen, others))


def _on(card: Card) -> Placement:
    return Placement(card.uuid, f"{card.label} {card.name}")


def _spread(chosen: list[Placement], workers: int) -> list[Placement]:
    if workers < len(chosen):
        raise ConfigError(
            f"{len(chosen)} devices are named for {workers} workers; "
            "name fewer devices, or leave workers at 0 (one for each)"
        )
    spread = [chosen[number % len(chosen)] for number in range(workers)]
    on_cards = [placement.device for placement in spread if placement.on_gpu]
    crowded = len(on_cards) > len(set(on_cards))
    if crowded and not mps.running():
        raise ConfigError(
            f"{len(on_cards)} workers for {_count(len(set(on_cards)))}: several processes on a "
            "card take turns, which is slower than one. Ask for fewer workers, or start MPS "
            "(nvidia-cuda-mps-control -d); plain functions that need no GPU: devices='cpu'"
        )
    return spread


def _count(cards: int) -> str:
    return "1 GPU" if cards == 1 else f"{cards} GPUs"


def no_card(look: Survey) -> str:
    """Why there is none to use."""
    if look.cards:
        return (
            f"CUDA_VISIBLE_DEVICES={os.environ.get(found.VISIBLE)!r} "
            f"hides the {_count(len(look.cards))} of this machine"
        )
    return f"no GPU was found ({look.reason or 'NVML sees none'})"
