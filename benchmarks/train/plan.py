"""How much is measured. Every field is a flag; `--quick` and `--rehearse` change the defaults."""

import argparse
import dataclasses
from dataclasses import dataclass, field
from typing import Any


def _figure(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Plan:
    """A run on a GPU, in full."""

    network: str = _figure("resnet50", "resnet50, or tiny (32 × 32)")
    precision: str = _figure("mixed_float16", "what is mixed beside float32")
    rows: int = _figure(6144, "images in memory")
    warm_up: int = _figure(16, "steps before the first that counts")
    rounds: int = _figure(3, "turns of each way, of which the median is told")

    batch: int = _figure(256, "rate: global batch")
    # Whole epochs: a turn without an epoch's end in it would look better than others.
    steps: int = _figure(48, "rate: steps of a turn")

    remat_batch: int = _figure(256, "remat: global batch")
    remat_steps: int = _figure(8, "remat: steps of a turn")

    large_batch: int = _figure(4096, "large: global batch")
    large_steps: int = _figure(2, "large: steps of a turn")

    within: float = _figure(150.0, "seconds for a way to load, and to warm up")
    trace: str = _figure("", "rate: a folder for profiles of each way, made after the turns")
    ways: str = _figure("", "only ways that are called so; words with commas between")


_QUICK: dict[str, Any] = {"rounds": 2, "steps": 24, "remat_steps": 4, "large_steps": 1}

_REHEARSAL: dict[str, Any] = {
    "network": "tiny",
    "precision": "mixed_bfloat16",  # CPUs are slow with the other one
    "rows": 64,
    "warm_up": 12,  # steps: choosing the better of two ways takes ten
    "rounds": 1,
    "batch": 8,
    "steps": 2,
    "remat_batch": 8,
    "remat_steps": 2,
    "large_batch": 32,
    "large_steps": 1,
    "within": 90.0,
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for every field, with no default: those come from `plan_of`."""
    for one in dataclasses.fields(Plan):
        parser.add_argument(
            f"--{one.name.replace('_', '-')}",
            type=type(one.default),
            help=f"{one.metadata['help']} (default: {one.default})",
        )


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The defaults of this kind of run, and what the flags say."""
    changes = (_QUICK if arguments.quick else {}) | (_REHEARSAL if arguments.rehearse else {})
    given = {one.name: getattr(arguments, one.name) for one in dataclasses.fields(Plan)}
    changes |= {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(Plan(), **changes)
