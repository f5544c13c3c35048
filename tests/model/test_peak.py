"""Memory by batch size: the line through what was measured, and the search that keeps to it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock.devices import ledger
from penstock.devices.limit import BUFFERS
from penstock.model.peak import NOTHING, GpuMemory, Need, NoMemory, buffered_rows, cut, fitted
from penstock.model.samples import Samples
from penstock.model.sizes import DoesNotFit
from penstock.model.sweep import Sweep, most_rows
from penstock.spec import TensorSpec
from tests.devices.conftest import GB, Machine, machine  # noqa: F401

MB = 1 << 20


class FakeMemory:
    """A device with a limit; what runs on it says how much it takes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._peak = 0
        self.largest = 0

    def take(self, rows: list[Any]) -> None:
        size = len(rows[0])
        self.largest = max(self.largest, size)
        self._peak = max(self._peak, 100 * MB + 7 * MB * size)
        if self._peak > self._limit:
            raise ResourceExhaustedError(f"{size} rows")

    def limit(self) -> int:
        return self._limit

    def held(self) -> int:
        return 100 * MB

    def forget(self) -> None:
        self._peak = 0

    def peak(self) -> int:
        return self._peak


class ResourceExhaustedError(Exception):
    """Named as TensorFlow's."""


def test_the_figures_of_resnet_50_are_a_line() -> None:
    """As measured on an H200 (MB): what two sizes say of the next is right within 5 %."""
    peaks = {16: 214, 32: 324, 64: 554, 128: 999, 256: 1900}
    need = fitted({size: peaks[size] * MB for size in (32, 64)})
    for size, peak in peaks.items():
        assert need.at(size) == pytest.approx(peak * MB, rel=0.05)


def test_what_is_not_known_is_nothing_and_fits() -> None:
    assert fitted({}) == NOTHING
    assert fitted({8: 0, 16: 0}) == NOTHING
    assert NOTHING.fits(65_536, 0)
    assert fitted({8: 800}) == Need(0, 100)
    assert fitted({8: 800, 16: 700}) == Need(800, 0)
    assert not Need(50, 10).fits(5, 100)
    assert Need(50, 10).fits(4, 100)


def _sweep(memory: Any, device: str = "GPU") -> tuple[Sweep, Callable[[list[Any]], object]]:
    samples = Samples([np.ones((2, 4), np.float32)])
    return Sweep(samples, memory, device, lambda text: None), getattr(memory, "take", len)


def test_the_search_never_tries_what_the_line_says_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = FakeMemory(1000 * MB)
    sweep, run = _sweep(memory)
    monkeypatch.setattr("penstock.model.pace.in_flight", lambda call: call() or 1e-3)
    sweep.guess_need(run)
    assert sweep.need == Need(100 * MB, 7 * MB)
    assert sweep.first_top() == 64
    found = sweep.search(run, {1: 1e-3}, 2048, lambda: False)
    room = (920 - 100) // 7
    assert found.best == memory.largest == room
    assert "do not fit" in found.why
    assert sweep.told_memory()["per_row"] == pytest.approx(7 * MB)
    assert sweep.told_memory()["peaks"][str(room)] == (100 + 7 * room) * MB


def test_what_does_not_fit_all_the_same_is_said() -> None:
    sweep, run = _sweep(FakeMemory(150 * MB))
    with pytest.raises(DoesNotFit):
        sweep.measure(run, 64)
    with pytest.raises(ZeroDivisionError):
        sweep.measure(lambda rows: 1 / 0, 1)


def test_a_cpu_has_nothing_to_tell_and_room_for_all() -> None:
    sweep, run = _sweep(NoMemory(), "CPU")
    assert sweep.measure(run, 4) > 0
    assert sweep.told_memory() == {}
    assert sweep.fits(1 << 20)
    samples = Samples([np.ones((2, 1 << 20), np.float32)])
    assert most_rows(samples, 0) == 128
    assert most_rows(samples, 7) == 7
    assert most_rows(samples, 0, 32 * 40 * MB) == 10


def test_a_ladder_is_cut_to_the_memory_that_there_is() -> None:
    need = Need(100, 10)
    assert cut((1, 8, 64), need, 0) == (1, 8, 64)
    assert cut((1, 8, 64), need, 1000) == (1, 8, 64)
    assert cut((1, 8, 64), need, 500) == (1, 8, 32)  # 36 would fit, too
    assert cut((1, 8, 64), need, 490) == (1, 8, 32)
    assert cut((1, 8, 64), need, 200) == (1, 8)
    assert cut((1, 8, 64), need, 100) == (1,)
    assert cut((1, 8, 64), Need(100, 0), 50) == (1,)
    assert cut((1, 8, 64), need, 0, 64) == (1, 8, 64)
    assert cut((1, 8, 64), need, 1000, 63) == (1, 8, 56)  # no more than buffers hold
    assert cut((1, 8, 64), need, 500, 17) == (1, 8, 16)


def test_what_is_promised_to_others_is_not_free(machine: Machine) -> None:  # noqa: F811
    """Of a card on which TensorFlow has no limit."""
    machine.set({"uuid": "GPU-a", "used": GB})
    none = SimpleNamespace(
        list_physical_devices=lambda kind: ["gpu"],
        get_logical_device_configuration=lambda gpu: None,
        experimental=SimpleNamespace(get_memory_info=lambda name: {"current": 5}),
    )
    memory = GpuMemory(SimpleNamespace(config=none))
    assert memory.limit() == 15 * GB + 5
    share = ledger.take(6 * GB, "another")
    assert memory.limit() == 9 * GB + 5
    share.release()
    (machine.ledger / "lock").unlink()
    (machine.ledger / "lock").mkdir()  # a ledger that cannot be read
    assert memory.limit() == 15 * GB + 5


def test_no_more_rows_than_the_buffers_hold_that_an_engine_has_left_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = (TensorSpec("float32", (10,), "a"), TensorSpec("uint8", (), "b"))
    assert buffered_rows(inputs) == 0
    monkeypatch.setenv(BUFFERS, str(4 * 41 * 7 + 5))
    assert buffered_rows(inputs) == 7  # in each of four hands
    assert buffered_rows((TensorSpec("float32", (None,), "a"),)) == 0
    assert buffered_rows((TensorSpec("string", (), "a"),)) == 0
