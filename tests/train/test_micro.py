"""The largest micro-batch: as many rows as fit, found in few steps, never too many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import DeviceMemoryError
from penstock.model.peak import ROOM
from penstock.train import micro
from penstock.train.micro import even, is_out_of_memory, largest_micro, peaks_of, room_of

MB = 1 << 20


class ResourceExhaustedError(Exception):
    """Named as TensorFlow's."""


class FakeDevice:
    """Takes `fixed` and `per_row` bytes, and raises above `holds`, as TensorFlow does."""

    def __init__(self, fixed: int, per_row: int, holds: int) -> None:
        self.fixed, self.per_row, self.holds = fixed, per_row, holds
        self.tried: list[int] = []

    def measure(self, rows: int) -> int:
        self.tried.append(rows)
        peak = self.fixed + rows * self.per_row
        if peak > self.holds:
            raise ResourceExhaustedError(f"{rows} rows")
        return peak


def test_all_rows_where_one_probe_says_that_they_fit() -> None:
    device = FakeDevice(100 * MB, 10 * MB, 100_000 * MB)
    assert largest_micro(device.measure, 256, device.holds) == 256
    assert device.tried == [16, 256]


def test_as_many_as_the_line_through_two_probes_says() -> None:
    device = FakeDevice(1000 * MB, 10 * MB, 2500 * MB)
    assert largest_micro(device.measure, 256, device.holds) == 128  # 130 would fit: two pieces
    assert device.tried == [16, 64, 128]


def test_what_does_not_fit_all_the_same_is_halved() -> None:
    device = FakeDevice(100 * MB, 10 * MB, 500 * MB)
    assert largest_micro(device.measure, 256, room=100_000 * MB) == 32
    assert device.tried == [16, 256, 128, 64, 32]


def test_a_probe_may_be_too_large_already() -> None:
    device = FakeDevice(100 * MB, 100 * MB, 500 * MB)
    assert largest_micro(device.measure, 256, device.holds) == 4
    assert device.tried == [16, 8, 4]


def test_a_room_that_a_step_went_beyond_is_not_believed() -> None:
    device = FakeDevice(100 * MB, 10 * MB, 100_000 * MB)
    assert largest_micro(device.measure, 256, room=200 * MB) == 256
    assert device.tried == [16, 256]


def test_a_device_that_tells_nothing_holds_all() -> None:
    assert largest_micro(lambda rows: 0, 1000, 0) == 1000


def test_not_even_one_row_is_said() -> None:
    device = FakeDevice(100 * MB, 100 * MB, 150 * MB)
    with pytest.raises(DeviceMemoryError, match="one row"):
        largest_micro(device.measure, 32, device.holds)


def test_other_errors_are_the_callers() -> None:
    with pytest.raises(ZeroDivisionError):
        largest_micro(lambda rows: 1 // 0, 32, 0)


@given(
    st.integers(1, 5000),
    st.integers(0, 4000),
    st.integers(1, 500),
    st.integers(1, 100_000),
)
@example(rows=32, fixed=1, per_row=1, holds=53)
def test_what_is_found_fits_and_twice_as_much_would_not(
    rows: int, fixed: int, per_row: int, holds: int
) -> None:
    device = FakeDevice(fixed, per_row, holds)
    try:
        found = largest_micro(device.measure, rows, holds)
    except DeviceMemoryError:
        assert fixed + per_row > holds
        return
    assert 1 <= found <= rows
    assert fixed + found * per_row <= holds
    assert device.tried[-1] == found  # proved
    pieces = -(-rows // found)
    assert even(rows, found) == found
    fewer = -(-rows // max(pieces // 4, 1))
    assert pieces == 1 or fixed + fewer * per_row > ROOM * holds or len(device.tried) > 3


class FakeMemory:
    """Of a card with something on it."""

    def __init__(self, limit: int = 0) -> None:
        self.most, self._limit = 999, limit

    def limit(self) -> int:
        return self._limit

    def held(self) -> int:
        return 300

    def forget(self) -> None:
        self.most = 0

    def peak(self) -> int:
        return self.most


class FakeTensorFlow:
    """Its settings for a GPU, or for none."""

    def __init__(self, gpus: int, grows: bool = False, limit: int | None = None) -> None:
        self._gpus, self._limit = gpus, limit
        self.config = self
        self.experimental = SimpleNamespace(get_memory_growth=lambda gpu: grows)

    def list_physical_devices(self, kind: str) -> list[str]:
        return [f"{kind}:{number}" for number in range(self._gpus)]

    def get_logical_device_configuration(self, gpu: str) -> list[Any]:
        return [SimpleNamespace(memory_limit=self._limit)]


@pytest.mark.parametrize(
    ("tensorflow", "limit", "room"),
    [
        (FakeTensorFlow(gpus=0), 0, 0),
        (FakeTensorFlow(gpus=1, limit=4), 4000, 4000),
        (FakeTensorFlow(gpus=1, grows=True), 7000, 7000),
        (FakeTensorFlow(gpus=1, grows=True), 300, 0),  # what it holds, and nobody to ask
        (FakeTensorFlow(gpus=1), 800, 90_000),  # it has taken all but a little
    ],
)
def test_room_is_what_tensorflow_may_take(
    tensorflow: FakeTensorFlow, limit: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)
    monkeypatch.setattr(micro, "_allocators_limit", lambda: 90_000)
    assert room_of(FakeMemory(limit), tensorflow) == room


def test_the_peak_is_that_of_the_step() -> None:
    memory = FakeMemory()

    def run(rows: int) -> None:
        memory.most += 3 * rows

    assert peaks_of(run, memory)(5) == 15


def test_out_of_memory_has_several_names() -> None:
    class InternalError(Exception):
        """As XLA's comes."""

    assert is_out_of_memory(ResourceExhaustedError())
    assert is_out_of_memory(InternalError("RESOURCE_EXHAUSTED: Out of memory while trying …"))
    assert not is_out_of_memory(InternalError("cuDNN says no"))
    assert not is_out_of_memory(ValueError("Out of memory"))
