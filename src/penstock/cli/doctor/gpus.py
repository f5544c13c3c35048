"""NVIDIA's driver and cards: asked through NVML, else read from /proc, else from nvidia-smi.

None of them starts CUDA, so looking takes no memory of a card. `sharing` says who has the cards'
memory, to whom it is promised, and which of the models that were measured fit into the rest; that
NVML alone can tell.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from penstock.cli.doctor.finding import Finding, note, ok, problem
from penstock.devices import ledger, mps
from penstock.devices.cards import Card, Survey, amount, survey
from penstock.devices.plan import plan
from penstock.devices.room import Room, reckon
from penstock.errors import PenstockError
from penstock.model.plans import noted_needs

_OLDEST_DRIVER = 525  # the first for CUDA 12
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
_SMI_SECONDS = 20.0


class Cards(NamedTuple):
    """The driver's version ("": there is none), and each card in words. `numbers`: theirs, if not
    0, 1, 2 …, as where one fell off the bus."""

    driver: str
    cards: list[str]
    numbers: tuple[int, ...] = ()


def cards() -> Cards:
    """What there is."""
    for source in (_from_nvml, _from_proc, _from_smi):
        found = source()
        if found.driver:
            return found
    return Cards("", [])


def findings(found: Cards) -> list[Finding]:
    """What to say of them."""
    if not found.driver:
        present = _on_the_bus()
        if present:
            return [
                problem(
                    "gpu",
                    f"{present} NVIDIA card{'s' if present > 1 else ''}, but no driver",
                    "install NVIDIA's driver, or start the container with --gpus all",
                )
            ]
        return [ok("gpu", "none: models run on CPUs")]
    told: list[Finding] = []
    release = found.driver.partition(".")[0]
    if release.isdigit() and int(release) < _OLDEST_DRIVER:
        told.append(
            problem(
                "driver",
                f"{found.driver} is too old for CUDA 12",
                f"install NVIDIA's driver {_OLDEST_DRIVER} or newer",
            )
        )
    else:
        told.append(ok("driver", found.driver))
    numbers = found.numbers or range(len(found.cards))
    told += [ok(f"gpu {n}", card) for n, card in zip(numbers, found.cards, strict=True)]
    if not found.cards:
        told.append(problem("gpu", "the driver sees no card", "look at nvidia-smi, and at dmesg"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and found.cards:
        what = visible or "empty: it hides every GPU"
        told.append(
            note("visible gpus", f"CUDA_VISIBLE_DEVICES is {what}", "unset it to use all of them")
        )
    return told


def sharing(found: Cards, told: Survey | None = None) -> Iterator[Finding]:
    """Who uses the cards, what is promised, what is left, and whether they can be used together."""
    told = told or survey()
    if not told.driver:
        if found.driver:
            yield note(
                "nvml",
                f"{told.reason}: Penstock uses no GPU that it cannot query",
                "pip install nvidia-ml-py (penstock[gpu] brings it)",
            )
        return
    try:
        rooms = reckon(told.cards, ledger.promises())
    except (OSError, PenstockError) as error:
        yield problem("gpu ledger", str(error), f"look at {ledger.place()}, or set PENSTOCK_LEDGER")
        rooms = reckon(told.cards, [])
    for room in rooms:
        yield _memory(room)
        yield from _plans(room)
    if told.cards:
        runs = mps.running()
        yield ok(
            "mps", "running: workers may share a card" if runs else "not running: one worker a card"
        )
    if len({card.name for card in told.cards}) > 1 and os.environ.get("CUDA_DEVICE_ORDER") is None:
        yield note(
            "gpu numbers",
            "different cards: CUDA counts the fastest first, Penstock (gpu:N) by the PCI bus",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID, so that both agree",
        )


def _memory(room: Room) -> Finding:
    users = [
        f"{_who(pid)} {amount(size or 0) if size else 'unknown'}"
        for pid, size in room.card.processes
    ]
    given = [
        f"{amount(promise.size)} promised to process {promise.pid} ({promise.purpose})"
        for promise in room.promises
    ]
    told = "; ".join(
        [f"{amount(room.left)} left", *given, f"used by {', '.join(users) or 'nobody'}"]
    )
    name = f"gpu {room.card.index} memory"
    if room.left < room.card.total // 20:
        return note(name, told, "whoever starts there now is refused: end somebody, or wait")
    return ok(name, told)


def _plans(room: Room) -> Iterator[Finding]:
    """What a worker with each model takes of what is left of a card."""
    name = f"gpu {room.card.index} plan"
    for model, need in noted_needs(room.card.uuid).items():
        (fit,) = plan({model: need}, [room]).fits
        if fit.replicas:
            rows, share = fit.batches[model], amount(fit.share)
            yield ok(name, f"{model} fits: batches of up to {rows:,} rows in {share}")
        else:
            least = amount(fit.share)
            yield note(name, f"{model} does not fit: a row needs {least}, {amount(room.left)} left")


def _who(pid: int) -> str:
    try:
        return f"{psutil.Process(pid).name()} ({pid})"
    except psutil.Error:
        return f"process {pid}"


def _from_nvml() -> Cards:
    told = survey()
    numbers = tuple(card.index for card in told.cards)
    return Cards(told.driver, [_words(card) for card in told.cards], numbers)


def _words(card: Card) -> str:
    return f"{card.name}, {card.free / 2**30:.1f} of {card.total / 2**30:.1f} GB free, {card.uuid}"


def _from_proc(place: Path = Path("/proc/driver/nvidia")) -> Cards:
    try:
        match = re.search(r"Module.*?(\d+\.[\d.]+)", (place / "version").read_text())
        found = []
        for file in sorted(place.glob("gpus/*/information")):
            facts = dict(re.findall(r"^(.*?):\s*(.*)$", file.read_text(), re.MULTILINE))
            found.append(facts.get("Model", "unknown"))
    except OSError:
        return Cards("", [])
    return Cards(match[1] if match else "", found)


def _from_smi() -> Cards:
    command = [
        "nvidia-smi",
        "--query-gpu=driver_version,name,memory.total",
        "--format=csv,noheader",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return Cards("", [])
    lines = [line.split(", ") for line in done.stdout.splitlines() if line.count(", ") == 2]
    if done.returncode or not lines:
        return Cards("", [])
    return Cards(lines[0][0], [f"{name}, {memory}" for _, name, memory in lines])


def _on_the_bus(place: Path = Path("/sys/bus/pci/devices")) -> int:
    """How many NVIDIA cards are plugged in, driver or not."""
    count = 0
    for device in place.glob("*"):
        try:
            vendor = (device / "vendor").read_text().strip()
            kind = (device / "class").read_text()
        except OSError:
            continue
        count += vendor == _NVIDIA and kind.startswith(_DISPLAY)
    return count
