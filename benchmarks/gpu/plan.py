"""How much is measured. Every field is a flag; `--quick` and `--rehearse` change the defaults.

`seconds` and `warm_up` are those of one load. All modes are tried at `mode_sizes`, and
the best of them at all other `sizes`; all modes at `mode_sizes` again in `also`.
"""

import argparse
import dataclasses
from dataclasses import dataclass, field
from typing import Any

from benchmarks.core.load import Timing
from benchmarks.core.systems.interface import Load


def _figure(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Plan:
    """A run on a GPU, in full."""

    network: str = _figure("resnet50", "resnet50, or tiny (64 × 64, a few layers)")
    precision: str = _figure("mixed_float16", "of Penstock and of all that it is compared with")
    images: int = _figure(512, "different images")

    modes: tuple[str, ...] = _figure(
        ("function", "frozen", "xla", "frozen-xla"), "limit: the ways to compile"
    )
    mode_sizes: tuple[int, ...] = _figure((256,), "limit: batch sizes at which all modes are tried")
    sizes: tuple[int, ...] = _figure(
        (1, 16, 64, 128, 256, 384, 512, 768, 1024), "limit: batch sizes of the best mode"
    )
    also: tuple[str, ...] = _figure(("float32",), "limit: other precisions, at those sizes")
    cell_seconds: float = _figure(1.5, "limit: seconds of calls for each mode and size")
    calls: int = _figure(300, "limit: calls that are waited for one by one, for their latency")

    max_batch: int = _figure(0, "Penstock's largest batch (0: what it finds best)")
    clients: int = _figure(16, "crowd, few: client processes")
    outstanding: int = _figure(64, "crowd: images that each client has outstanding")
    warm_up: float = _figure(2.0, "seconds of a load that do not count")
    seconds: float = _figure(5.0, "seconds of a load that count")
    rounds: int = _figure(2, "crowd, few, one, array: loads, of which the median is told")
    array_rows: int = _figure(50_000, "array: images in one call")

    processes: int = _figure(16, "ways: processes with a model of their own")
    ways_seconds: float = _figure(3.0, "ways: seconds of a load that count")
    batches: tuple[int, ...] = _figure(
        (1, 32, 256), "ways: images a call of predict in one process"
    )

    tight: tuple[float, ...] = _figure(
        (8.0, 4.0, 2.0, 1.0), "tight: gigabytes left free on the card"
    )
    tight_rows: int = _figure(512, "tight: images to be answered by an engine that starts")
    tight_within: float = _figure(180.0, "tight: seconds for the start of an engine")

    soak_rows: int = _figure(5_000_000, "soak: rows in all")
    soak_clients: int = _figure(4, "soak: client processes")
    soak_call: int = _figure(256, "soak: rows a call")

    def images_made(self) -> int:
        """No fewer than the largest batch."""
        return max(self.images, *self.sizes, *self.mode_sizes, *self.batches)

    def load(self) -> Timing:
        return Timing(self.warm_up, self.seconds)

    def crowd(self) -> Load:
        return Load(self.clients, self.outstanding)

    def few(self) -> Load:
        return Load(self.clients, 1)


FULL = Plan()

_QUICK: dict[str, Any] = {
    "sizes": (1, 16, 256),
    "cell_seconds": 0.7,
    "calls": 100,
    "warm_up": 1.5,
    "seconds": 2.0,
    "rounds": 1,
    "array_rows": 20_000,
    "processes": 8,
    "ways_seconds": 2.0,
    "tight": (4.0, 1.0),
    "soak_rows": 500_000,
}

_REHEARSAL: dict[str, Any] = {
    "network": "tiny",
    "images": 64,
    "mode_sizes": (8,),
    "sizes": (1, 8, 16),
    "cell_seconds": 0.1,
    "calls": 5,
    "clients": 2,
    "outstanding": 4,
    "warm_up": 0.2,
    "seconds": 0.5,
    "rounds": 1,
    "array_rows": 500,
    "processes": 2,
    "ways_seconds": 0.4,
    "batches": (1, 8),
    "tight": (),
    "soak_rows": 10_000,
    "soak_clients": 2,
    "soak_call": 64,
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for every field, with no default: those come from `plan_of`."""
    for one in dataclasses.fields(Plan):
        default: Any = one.default
        several = isinstance(default, tuple)
        parser.add_argument(
            f"--{one.name.replace('_', '-')}",
            type=_listed(default) if several else type(default),
            metavar="A,B" if several else one.name.rpartition("_")[2].upper(),
            help=f"{one.metadata['help']} (default: {_told(default)})",
        )


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The defaults of this kind of run, and what the flags say."""
    changes = (_QUICK if arguments.quick else {}) | (_REHEARSAL if arguments.rehearse else {})
    given = {one.name: getattr(arguments, one.name) for one in dataclasses.fields(Plan)}
    changes |= {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(FULL, **changes)


def _listed(default: tuple[Any, ...]) -> Any:
    kind = type(default[0])
    return lambda text: tuple(kind(word) for word in text.split(",") if word)


def _told(default: Any) -> str:
    return ",".join(f"{one}" for one in default) if isinstance(default, tuple) else f"{default}"
