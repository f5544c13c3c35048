"""A GPU's gathering, on a device that is made up: the same rows as the CPU's, and no more."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.model.function import Function
from penstock.spec import ModelSpec, Signature
from penstock.transport import messages as m
from penstock.transport.tensors import numpy_dtype, plan_of
from penstock.worker import gpu
from penstock.worker.device import CpuDevice, RunLayout
from penstock.worker.gpu import GpuDevice
from penstock.worker.memory import MappedSegments
from penstock.worker.pinning import PinnedSegments
from tests.worker.fake_cuda import FakeCuda
from tests.worker.slots import ClientMemory


class OnGpu(Function):
    """A model of TensorFlow's, as far as a device sees of it: padded to powers of two."""

    device = "GPU"

    def __init__(self, function: Any = lambda x: x, max_batch: int = 64) -> None:
        super().__init__(function, ModelSpec(), max_batch, True, "test")

    def padded(self, rows: int) -> int:
        return 1 << (rows - 1).bit_length() if rows else 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A device; what TensorFlow would see of it are arrays (without TensorFlow)."""
    made = FakeCuda()
    host = {numpy_dtype(name) for name in ("int32", "bool", "string")}
    fake = SimpleNamespace(on_device=made.view, stays_on_device=lambda dtype: dtype not in host)
    monkeypatch.setitem(sys.modules, "penstock.model.handover", fake)
    return made


@pytest.fixture
def memories() -> Iterator[list[ClientMemory]]:
    made = [ClientMemory(client, number) for client in (1, 2) for number in (1, 2)]
    yield made
    for one in made:
        one.close()


def _mapped(memories: list[ClientMemory]) -> MappedSegments:
    mapped = MappedSegments()
    for one in memories:
        mapped.map(one.client, one.number, one.size, os.dup(one.descriptor))
    return mapped


def _layout(signature: Signature, runnable: Function | None = None) -> RunLayout:
    return RunLayout(0, runnable or OnGpu(), signature, plan_of(signature))


def _rows(dtypes: list[str], rows: int, generator: np.random.Generator) -> dict[str, Any]:
    arrays = {}
    for number, dtype in enumerate(dtypes):
        shape = (rows, *[(5,), (), (2, 3)][number])
        arrays[f"t{number}"] = generator.integers(0, 99, shape).astype(numpy_dtype(dtype))
    return arrays


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
@given(
    seed=st.integers(0, 1 << 30),
    dtypes=st.lists(st.sampled_from(["uint8", "float32", "bfloat16", "int64"]), min_size=1).map(
        lambda chosen: chosen[:3]
    ),
)
def test_gathers_what_the_cpu_gathers(cuda: FakeCuda, seed: int, dtypes: list[str]) -> None:
    """Whole requests and parts of them, in any order, from several clients' segments."""
    generator = np.random.default_rng(seed)
    memories = [ClientMemory(client, n, 1 << 18) for client in (1, 2) for n in (1, 2)]
    mapped = _mapped(memories)
    device, cpu = GpuDevice(mapped, cuda), CpuDevice(mapped)
    written: list[m.RunItem] = []
    for number in range(16):
        rows = int(generator.choice([1, 1, 1, 1, 3, 8]))
        memory = memories[number // 3 % 4 if seed % 2 else 0]
        if rows > 1 and generator.random() < 0.5:
            single = [_rows(dtypes, 1, generator) for _ in range(rows)]
            signature, item, _ = memory.series(single, room=64)
        else:
            signature, item = memory.write(_rows(dtypes, rows, generator), room=64)
        written.append(item)
    layout = _layout(signature)
    for _ in range(4):
        items: list[m.RunItem] = []
        first, count = int(generator.integers(12)), int(generator.integers(1, 12))
        for item in written[first : first + count]:
            start = int(generator.integers(item.total))
            stop = int(generator.integers(start, item.total)) + (item.total == 1)
            items.append(item._replace(start=start, rows=stop - start))
        if seed % 3 == 0:
            generator.shuffle(items)
        if not sum(item.rows for item in items):
            continue
        gathered, unreadable = device.gather(layout, items)
        wanted, _ = cpu.gather(layout, items)
        assert unreadable == {}
        for one, other in zip(gathered, wanted, strict=True):
            assert one.dtype == other.dtype
            assert one.tolist() == other.tolist()
    for one in memories:
        mapped.unmap(one.client, one.number)
        one.close()


def test_slots_next_to_each_other_are_one_copy(
    cuda: FakeCuda, memories: list[ClientMemory]
) -> None:
    device = GpuDevice(_mapped(memories), cuda)
    items = [memories[0].write(np.full((1, 4), n, np.float32))[1] for n in range(16)]
    signature, last = memories[1].write(np.full((1, 4), 99, np.float32))
    (got,), _ = device.gather(_layout(signature), [*items, last])
    assert got[:, 0].tolist() == [*range(16), 99, *[0] * 15]
    assert cuda.calls == {"allocate": 1, "upload_rows": 1, "upload": 1, "duplicate": 5}


def test_series_next_to_each_other_are_one_copy(
    cuda: FakeCuda, memories: list[ClientMemory]
) -> None:
    device = GpuDevice(_mapped(memories), cuda)
    one = memories[0]
    signature, first, _ = one.series([np.full((1, 4), n, np.float32) for n in range(5)])
    _, single = one.write(np.full((1, 4), 5, np.float32))
    _, second, _ = one.series([np.full((1, 4), n, np.float32) for n in range(6, 16)])
    (got,), _ = device.gather(_layout(signature), [first, single, second])
    assert got[:, 0].tolist() == [*range(16)]
    assert cuda.calls == {"allocate": 1, "upload_rows": 1}


def test_series_at_other_distances_are_copies_of_their_own(
    cuda: FakeCuda, memories: list[ClientMemory]
) -> None:
    device = GpuDevice(_mapped(memories), cuda)
    one = memories[0]
    rows = [np.full((1, 4), n, np.float32) for n in range(6)]
    signature, near, _ = one.series(rows[:3], room=64)
    _, far, _ = one.series(rows[3:], room=512)
    (got,), _ = device.gather(_layout(signature), [near, far])
    assert got[:, 0].tolist() == [*range(6), 0, 0]
    assert cuda.calls["upload_rows"] == 2


def test_slots_that_overlap_are_no_reason_to_lose_the_device(
    cuda: FakeCuda, memories: list[ClientMemory]
) -> None:
    """A client may do so; it gets the rows that lie there."""
    mapped = _mapped(memories)
    device = GpuDevice(mapped, cuda)
    signature, item = memories[0].write(np.arange(16, dtype=np.uint8).reshape(1, 16))
    items = [item._replace(offset=item.offset + n) for n in (0, 4, 8, 8, 8, 4, 0)]
    (got,), _ = device.gather(_layout(signature), items)
    (wanted,), _ = CpuDevice(mapped).gather(_layout(signature), items)
    assert got.tolist() == wanted.tolist()


def test_a_segment_that_could_not_be_mapped_spoils_only_its_own_rows(
    cuda: FakeCuda, memories: list[ClientMemory]
) -> None:
    mapped = _mapped(memories)
    reader, writer = os.pipe()
    os.close(writer)
    mapped.map(9, 1, 1 << 20, reader)
    written = [memories[0].write(np.full((1, 4), n, np.float32)) for n in range(8)]
    items = [item for _, item in written]
    bad = items[0]._replace(client=9)
    (got,), unreadable = GpuDevice(mapped, cuda).gather(
        _layout(written[0][0]), [*items[:3], bad, *items[3:6], bad, *items[6:]]
    )
    assert set(unreadable) == {3, 7}
    assert "could not be mapped" in unreadable[3]
    assert [got[n, 0] for n in (0, 1, 2, 4, 5, 6, 8, 9)] == list(range(8))
    assert got[10:, 0].tolist() == [0] * 6


def test_buffers_grow_with_what_comes_and_are_freed(
    cuda: FakeCuda, memories: list[ClientMemory]
) -> None:
    device = GpuDevice(_mapped(memories), cuda)
    for width in range(1, 12):
        for rows in (1, 20, 3, 64):
            x = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
            signature, item = memories[0].write(x)
            (got,), _ = device.gather(_layout(signature), [item])
            assert got[:rows].tolist() == x.tolist()
    assert len(cuda.allocated) == 4  # of the signatures that came last, the largest
    assert cuda.used == sum(64 * 4 * width for width in (8, 9, 10, 11))


@pytest.mark.parametrize("kind", ["strings", "int32", "a plain function", "no rows"])
def test_what_stays_on_the_host_goes_the_way_of_the_cpu(
    cuda: FakeCuda, memories: list[ClientMemory], kind: str
) -> None:
    x: Any = {
        "strings": {"a": np.array([b"one", b""], object), "b": np.zeros((2, 3))},
        "int32": {"a": np.zeros((2, 3)), "b": np.arange(2, dtype=np.int32)},
        "a plain function": np.ones((2, 3)),
        "no rows": np.ones((0, 3)),
    }[kind]
    signature, item = memories[0].write(x)
    plain = Function(lambda x: x, ModelSpec(), 8, True, "test")
    layout = _layout(signature, plain if kind == "a plain function" else None)
    mapped = _mapped(memories)
    gathered, _ = GpuDevice(mapped, cuda).gather(layout, [item])
    wanted, _ = CpuDevice(mapped).gather(layout, [item])
    assert [array.tolist() for array in gathered] == [array.tolist() for array in wanted]
    assert not cuda.calls


def test_a_batch_that_finds_no_memory_goes_the_way_of_the_cpu(
    cuda: FakeCuda, memories: list[ClientMemory], caplog: pytest.LogCaptureFixture
) -> None:
    """Two inputs, of which only the first fits: nothing of it is left allocated. And only once."""
    generator = np.random.default_rng(1)
    arrays = {"a": generator.random((8, 16)), "b": generator.random((8, 16), np.float32)}
    signature, item = memories[0].write(arrays)
    layout = RunLayout(0, OnGpu(lambda x: x, max_batch=16), signature, plan_of(signature))
    mapped = _mapped(memories)
    device = GpuDevice(mapped, cuda)
    wanted, _ = CpuDevice(mapped).gather(layout, [item])
    cuda.total = 16 * 16 * 8 + 100
    for _ in range(3):
        gathered, unreadable = device.gather(layout, [item])
        assert not unreadable
        for got, want in zip(gathered, wanted, strict=True):
            assert isinstance(got, np.ndarray)
            np.testing.assert_array_equal(got, want)
    assert not cuda.allocated
    assert caplog.text.count("pass through the CPU") == 1
    few = item._replace(rows=1)
    gathered, _ = device.gather(layout, [few])  # there is memory for these
    assert len(cuda.allocated) == 2


def test_a_copy_that_cannot_be_begun_waits_for_those_that_were(
    cuda: FakeCuda, memories: list[ClientMemory]
) -> None:
    """Else their segment could be unpinned under them."""
    mapped = _mapped(memories)
    written = [memories[n % 2].write(np.full((2, 4), n, np.float32)) for n in range(6)]
    layout, items = _layout(written[0][0]), [item for _, item in written]
    device = GpuDevice(mapped, cuda)
    cuda.copies_left = 3
    (got,), _ = device.gather(layout, items)
    assert cuda.waiting == 0
    assert got[:12:2, 0].tolist() == [*range(6)]


def test_models_that_take_turns_keep_their_buffers(
    cuda: FakeCuda, memories: list[ClientMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "Cuda", lambda: cuda)
    models = [OnGpu() for _ in range(6)]
    _, (device, *_) = gpu.devices_for(models, 1 << 20)
    for one in memories:
        device._memory.map(one.client, one.number, one.size, os.dup(one.descriptor))
    for turn in range(3):
        for number, model in enumerate(models):
            signature, item = memories[0].write(np.full((4, 1 + number), turn, np.float32))
            (got,), _ = device.gather(_layout(signature, model), [item])
            assert got.tolist() == [[turn] * (1 + number)] * 4
    assert cuda.calls["allocate"] == len(models)
    assert cuda.calls["free"] == 0


def test_no_more_device_memory_than_the_worker_has_of_its_share(
    cuda: FakeCuda, memories: list[ClientMemory], caplog: pytest.LogCaptureFixture
) -> None:
    room = 64 * 8 * 4
    device = GpuDevice(_mapped(memories), cuda, 8, room)
    for turn in range(3):
        for width in (1, 3, 8, 40):
            x = np.arange(40 * width, dtype=np.float32).reshape(40, width) + turn
            signature, item = memories[0].write(x)
            (got,), _ = device.gather(_layout(signature), [item])
            assert got[:40].tolist() == x.tolist()
            assert cuda.used <= room
            if width == 8:
                assert cuda.used == room
    assert "40 rows" not in caplog.text
    assert caplog.text.count("batches of 64 rows and more pass through the CPU: 10240 bytes") == 1


def test_which_devices_a_worker_has(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Function(lambda x: x, ModelSpec(), 8, True, "test")
    monkeypatch.setattr(gpu, "Cuda", lambda: cuda)
    memory, devices = gpu.devices_for([plain], 1 << 20)
    assert [type(device) for device in devices] == [CpuDevice]
    assert type(memory) is MappedSegments
    memory, devices = gpu.devices_for([plain, OnGpu()], 1 << 20)
    assert [type(device) for device in devices] == [GpuDevice] * gpu.HANDS
    assert len({device._stream for device in devices}) == gpu.HANDS
    _, (device, *_) = gpu.devices_for([OnGpu()], 1 << 20, 4096)
    assert device._room == 4096 // gpu.HANDS  # the hands have it together
    assert isinstance(memory, PinnedSegments)

    def missing() -> Any:
        raise ImportError("cuda")

    monkeypatch.setattr(gpu, "Cuda", missing)
    _, devices = gpu.devices_for([OnGpu()], 1 << 20)
    assert [type(device) for device in devices] == [CpuDevice] * gpu.HANDS
    assert "cuda-bindings is not installed" in caplog.text
