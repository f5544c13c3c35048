"""The GPUs of this machine, as NVML sees them. CUDA is not started, so looking takes no memory.

A card is named by its UUID, because NVML's and CUDA's numbers differ: `gpu:N` is the N-th in the
order of the PCI bus, which is NVML's, while CUDA by default puts the fastest first. Where a card is
cut into MIG instances, those take its place: CUDA can use nothing else of it, and nothing at all
where none was made yet.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Card:
    """A GPU, or a MIG instance. Sizes are in bytes.

    `processes` are pairs: who has memory there, and how much (`None` where the driver does not
    tell). A container sees its own processes only, if any.
    """

    uuid: str
    name: str
    total: int
    free: int
    used: int
    index: int
    processes: tuple[tuple[int, int | None], ...] = ()
    busy: float | None = None  # the share of the last moment in which it computed

    @property
    def label(self) -> str:
        """`gpu:0`, by the order of the PCI bus."""
        return f"gpu:{self.index}"

    def __str__(self) -> str:
        return f"{self.label} ({self.name}, {self.uuid})"


class Survey(NamedTuple):
    """What NVML told: the driver's version ("": nothing), the cards, and else why it is silent."""

    driver: str
    cards: tuple[Card, ...]
    reason: str = ""


def survey() -> Survey:
    """Every card, visible to CUDA here or not."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return Survey("", (), "the package nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
    except Exception as error:  # no driver, or one that does not fit: NVML's errors are many
        return Survey("", (), f"NVML does not start: {error}")
    try:
        return Survey(_text(nvml.nvmlSystemGetDriverVersion()), tuple(_cards(nvml)))
    except nvml.NVMLError as error:
        return Survey("", (), f"NVML failed: {error}")
    finally:
        nvml.nvmlShutdown()


def usable_cards() -> list[Card]:
    """The cards that a process with this environment may use, in CUDA's order."""
    return visible(survey().cards, os.environ)


def visible(cards: Sequence[Card], environment: Mapping[str, str]) -> list[Card]:
    """What `CUDA_VISIBLE_DEVICES` leaves, as CUDA reads it: up to the first name that is wrong.

    Its numbers are taken in the order of the PCI bus.
    """
    chosen = environment.get(VISIBLE)
    if chosen is None:
        return list(cards)
    found: list[Card] = []
    for name in chosen.split(","):
        card = _named(cards, name.strip())
        if card is None:
            break
        if card not in found:
            found.append(card)
    return found


def find(cards: Sequence[Card], name: str) -> Card | None:
    """The card that is meant by `gpu:N`, a UUID, or the beginning of just one UUID."""
    kind, _, number = name.partition(":")
    return _named(cards, number if kind == "gpu" else name) if name else None


def _named(cards: Sequence[Card], name: str) -> Card | None:
    if name.isdecimal():
        found = [card for card in cards if card.index == int(name)]
    elif name.startswith(("GPU-", "MIG-")):
        found = [card for card in cards if card.uuid.startswith(name)]
    else:
        return None
    return found[0] if len(found) == 1 else None


def amount(count: int) -> str:
    """Bytes as people read them: `0 MB`, `620 MB`, `3.9 GB`, `140 GB`."""
    if abs(count) < 1 << 30:
        return f"{count / 2**20:.0f} MB"
    value = count / 2**30
    return f"{value:.1f} GB" if abs(value) < 100 else f"{value:.0f} GB"


def _cards(nvml: Any) -> Iterator[Card]:
    index = 0
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
        except nvml.NVMLError:  # it fell off the bus
            index += 1
            continue
        for part in _instances(nvml, handle):
            with contextlib.suppress(nvml.NVMLError):
                yield _card(nvml, part, index)
            index += 1


def _card(nvml: Any, handle: Any, index: int) -> Card:
    # Processes first: what they take meanwhile is then counted as used and not as theirs, which
    # errs on the safe side.
    processes = _processes(nvml, handle)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Card(
        _text(nvml.nvmlDeviceGetUUID(handle)),
        _text(nvml.nvmlDeviceGetName(handle)),
        int(memory.total),
        int(memory.free),
        int(memory.used),
        index,
        processes,
        _busy(nvml, handle),
    )


def _busy(nvml: Any, handle: Any) -> float | None:
    try:
        return int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except (nvml.NVMLError, AttributeError):
        return None


def _instances(nvml: Any, handle: Any) -> list[Any]:
    """The MIG instances of a card; the card itself where it is whole."""
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
        if not current:
            return [handle]
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:  # a card that knows no MIG
        return [handle]
    found = []
    for number in range(count):
        with contextlib.suppress(nvml.NVMLError):
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
    return found


def _processes(nvml: Any, handle: Any) -> tuple[tuple[int, int | None], ...]:
    told: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics", "MPSCompute"):
        ask = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses", None)
        if ask is None:
            continue
        with contextlib.suppress(nvml.NVMLError):
            for process in ask(handle):
                known, size = told.get(process.pid), process.usedGpuMemory
                told[process.pid] = size if known is None else max(known, size or 0)
    return tuple(sorted(told.items()))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
