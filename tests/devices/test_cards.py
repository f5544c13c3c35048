"""What NVML tells, and what CUDA_VISIBLE_DEVICES leaves of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.devices import cards
from penstock.devices.cards import Card
from tests.devices.conftest import GB


def test_what_nvml_tells(machine) -> None:
    machine.set(
        {"uuid": "GPU-a", "name": "H200", "total": 100 * GB, "used": 30 * GB},
        {"uuid": "GPU-b", "total": 10 * GB, "processes": [[7, 5], [8, None]]},
    )
    found = cards.survey()
    assert found.driver == "570.1"
    first, second = found.cards
    assert first == Card("GPU-a", "H200", 100 * GB, 70 * GB, 30 * GB, 0)
    assert second.processes == ((7, 5), (8, None))
    assert second.label == "gpu:1"


def test_without_nvml(machine, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert cards.survey() == ("", (), "the package nvidia-ml-py is not installed")


def test_without_a_driver(machine, monkeypatch) -> None:
    monkeypatch.delenv("FAKE_NVML")
    found = cards.survey()
    assert found.cards == ()
    assert "Driver Not Loaded" in found.reason


def test_a_card_that_fell_off_the_bus_keeps_its_number(machine) -> None:
    machine.set({"uuid": "GPU-a", "lost": True}, {"uuid": "GPU-b"})
    assert [(card.uuid, card.index) for card in cards.survey().cards] == [("GPU-b", 1)]


def test_instances_take_the_place_of_a_card_that_is_cut(machine) -> None:
    parts = [{"uuid": "MIG-x", "total": 5 * GB}, {"uuid": "MIG-y", "total": 5 * GB}]
    machine.set({"uuid": "GPU-a", "mig": parts}, {"uuid": "GPU-b", "mig": []}, {"uuid": "GPU-c"})
    found = cards.survey().cards
    assert [card.uuid for card in found] == ["MIG-x", "MIG-y", "GPU-c"]  # of GPU-b none was made
    assert [card.index for card in found] == [0, 1, 2]


FOUR = [
    Card(f"GPU-{name}", "Fake", GB, GB, 0, at) for at, name in enumerate(["a1", "a2", "b", "c"])
]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("2, 0", [2, 0]),
        ("GPU-b,GPU-a2", [2, 1]),
        ("GPU-a,GPU-b", []),  # two cards begin like that
        ("1,nonsense,2", [1]),  # what comes after a wrong name is hidden, as CUDA does
        ("0,9,1", [0]),
        ("3,3", [3]),
    ],
)
def test_what_is_visible(value, expected) -> None:
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert [card.index for card in cards.visible(FOUR, environment)] == expected


@pytest.mark.parametrize(
    ("name", "index"),
    [("gpu:1", 1), ("GPU-c", 3), ("GPU-a", None), ("gpu:7", None), ("gpu:-1", None), ("", None)],
)
def test_names(name, index) -> None:
    found = cards.find(FOUR, name)
    assert (found and found.index) == index


def test_the_room_is_cheap_to_import() -> None:
    code = (
        "import sys, penstock.devices.claim, penstock.devices.plan, penstock.devices.ledger\n"
        "print({'numpy', 'tensorflow', 'psutil', 'pynvml', 'asyncio', 'click'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
