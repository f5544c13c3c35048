"""Which GPUs each task of this machine may use, and how much of them.

Only workers compute: the chief of parameter servers and the servers themselves see no card. Workers
get cards of their own, shared out evenly, unless `gpu_memory` gives each a share of one card: then
it is promised by the ledger (`penstock.devices`) and TensorFlow is kept to it from its import on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock import devices
from penstock.devices import cards, claim, ledger
from penstock.devices.cards import Card, amount
from penstock.devices.choose import CPU, environment, no_card
from penstock.devices.limit import CLAIM
from penstock.errors import ConfigError
from penstock.train.launcher.job import Job
from penstock.train.launcher.layout import Place

CROWDED = "PENSTOCK_TRAIN_CROWDED"  # "1": workers share a card, which NCCL refuses
_STARTUP = Path(devices.__file__).parent / "startup"


@dataclass(frozen=True)
class Seat:
    """What a task computes on: a name for people, its environment, descriptors it inherits."""

    name: str = CPU
    environment: Mapping[str, str] = field(default_factory=dict)
    descriptors: tuple[int, ...] = ()


def seats(job: Job, tasks: Sequence[Place], *, promise: bool) -> dict[Place, Seat]:
    """One for each task. With `promise`, shares are taken, and held until this process ends."""
    look = cards.survey()
    seen = cards.visible(look.cards, os.environ)
    workers = [task for task in tasks if task.role == "worker"]
    found = dict.fromkeys(tasks, Seat(CPU, environment("-1", 0) if look.cards else {}))
    if job.gpus_per_worker == 0:
        return found
    if not seen:
        if job.gpus_per_worker or job.gpu_memory:
            raise ConfigError(f"GPUs were asked for, but {no_card(look)}")
        return found
    if job.gpu_memory:
        return found | _shares(job, workers, seen, promise)
    return found | _whole(job, workers, seen)


def _whole(job: Job, workers: Sequence[Place], seen: Sequence[Card]) -> dict[Place, Seat]:
    each = job.gpus_per_worker or len(seen) // len(workers)
    if each == 0 or each * len(workers) > len(seen):
        asked = f" with {each} GPUs each" if each > 1 else ""
        raise ConfigError(
            f"{len(workers)} workers{asked}, but there are {len(seen)} GPUs: ask for fewer, give "
            "each a share (--gpu-memory 4G), or train on CPUs (--gpus-per-worker 0)"
        )
    found = {}
    for number, worker in enumerate(workers):
        mine = seen[number * each : (number + 1) * each]
        names = ", ".join(card.label for card in mine)
        found[worker] = Seat(names, environment(",".join(card.uuid for card in mine), 0))
    return found


def _shares(
    job: Job, workers: Sequence[Place], seen: Sequence[Card], promise: bool
) -> dict[Place, Seat]:
    size = claim.share_size(job.gpu_memory)
    if not promise:
        name = (
            f"{amount(size)} of a card" if len(seen) > 1 else f"{amount(size)} of {seen[0].label}"
        )
        return dict.fromkeys(workers, Seat(name))
    taken = {
        worker: claim.take(size, f"penstock train {job.script}: {worker.name}", None, None)
        for worker in workers
    }
    used = [share.promise.card for share in taken.values()]
    labels = {card.uuid: card.label for card in seen}
    crowded = len(set(used)) < len(used)
    return {
        worker: _seat(share, labels[share.promise.card], crowded) for worker, share in taken.items()
    }


def _seat(share: ledger.Share, label: str, crowded: bool) -> Seat:
    held = os.dup(share.descriptor)  # the ledger's own is closed wherever this process forks
    places = [str(_STARTUP), os.environ.get("PYTHONPATH", "")]
    changes = environment(share.promise.card, share.promise.size) | {
        CLAIM: f"{held}:{share.path}",
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
    }
    if crowded:
        changes[CROWDED] = "1"
    return Seat(f"{amount(share.promise.size)} of {label}", changes, (held,))
