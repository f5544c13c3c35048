"""Whether all workers are about to take the same steps.

One that takes other ones would wait for the rest, and they for it: that is told before the first.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from penstock.train.agreement import check_same
from penstock.train.options import Options
from penstock.train.strategies import Place


def check_order(place: Place, feed: Any) -> None:
    """Refuse what all workers read, and each in an order of its own: a seed that was drawn."""
    seeds = feed.seeds if feed.policy == "data" else ()
    check_same(
        place,
        zlib.crc32(repr(seeds).encode()),
        "expected a data set that is shuffled with the same seed on every worker; worker "
        f"{place.worker} has the seeds {seeds} (keras.utils.image_dataset_from_directory and its "
        "like draw one: pass seed=…). The checksums differ",
    )


def check_alike(place: Place, options: Options, feed: Any, micros: int, validated: bool) -> None:
    """Refuse workers that differ in what decides how many steps there are, and of which kind."""
    facts = {
        "steps an epoch": feed.steps,
        "shard": feed.policy,
        "batch_size": feed.share.batch_size,
        "epochs": options.epochs,
        "initial_epoch": options.initial_epoch,
        "micro-batches": "auto" if options.micro_batch == "auto" else micros,
        "validation": f"every {options.validation_freq} epochs" if validated else None,
    }
    named = ", ".join(f"{name} {value}" for name, value in facts.items())
    check_same(
        place,
        zlib.crc32(json.dumps(facts).encode()),
        f"all workers must be given the same, and worker {place.worker} has {named} (for data of "
        'each worker\'s own say shard="off"). The checksums differ',
    )
