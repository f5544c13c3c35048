"""Gather, run and scatter on the CPU, in real segments."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.function import Function
from penstock.spec import DTYPES, STRING, ModelSpec, Signature, TensorSpec
from penstock.transport import segment
from penstock.transport.messages import RunItem
from penstock.transport.tensors import answer_room, collect, numpy_dtype, plan_of
from penstock.worker.device import IN_SLOT, CpuDevice, RunLayout, Target, row_by_row
from penstock.worker.memory import MappedSegments
from tests.conditions import descriptors
from tests.worker.slots import ClientMemory, read_apart


def _identity(x: Any) -> Any:
    return x


def _layout(signature: Signature, max_batch: int = 32, batched: bool = True) -> RunLayout:
    runnable = Function(_identity, ModelSpec(), max_batch, batched, "test")
    return RunLayout(0, runnable, signature, plan_of(signature))


@pytest.fixture
def memory() -> Iterator[ClientMemory]:
    made = ClientMemory()
    yield made
    made.close()


def _device(*memories: ClientMemory) -> CpuDevice:
    mapped = MappedSegments()
    for one in memories:
        mapped.map(one.client, one.number, one.size, os.dup(one.descriptor))
    return CpuDevice(mapped)


_DTYPES = sorted(DTYPES)


def _made(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    generator = np.random.default_rng(seed)
    if dtype == STRING:
        array = np.empty(shape, object)
        flat = array.reshape(-1)
        for index in range(flat.size):
            flat[index] = generator.bytes(int(generator.integers(0, 9)))
        return array
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    return generator.integers(0, 7, shape).astype(numpy_dtype(dtype))


def _same(one: Any, other: Any) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(one.tolist() == other.tolist())


@given(
    dtypes=st.lists(st.sampled_from(_DTYPES), min_size=1, max_size=3),
    shape=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    room=st.sampled_from([0, 64, 2048]),
)
def test_rows_go_through_a_batch_and_come_back_to_their_own_slots(
    dtypes: list[str], shape: tuple[int, ...], counts: list[int], room: int
) -> None:
    memories = [ClientMemory(client, 1, 1 << 16) for client in (1, 2)]
    device = _device(*memories)
    inputs: list[dict[str, Any]] = []
    items: list[RunItem] = []
    signature: Signature = ()
    for which, rows in enumerate(counts):
        x = {f"t{n}": _made(d, (rows, *shape), which + n) for n, d in enumerate(dtypes)}
        signature, item = memories[which % 2].write(x, room)
        inputs.append(x)
        items.append(item)
    layout = _layout(signature)
    arrays, unreadable = device.gather(layout, items)
    assert unreadable == {}
    for number, array in enumerate(arrays):
        expected = np.concatenate([x[f"t{number}"] for x in inputs])
        assert _same(array, expected)
    before = [bytes(one.mapping.view) for one in memories]
    outputs_signature, outputs = device.run(layout, arrays, sum(counts))
    targets: list[Target] = []
    first = 0
    for item in items:
        targets.append(Target(item, 0, first, item.rows))
        first += item.rows
    placed = device.scatter(targets, outputs_signature, outputs)
    for item, place, x, which in zip(items, placed, inputs, range(9), strict=False):
        if place.descriptor < 0:
            answer = memories[which % 2].read(item, outputs_signature, 0, item.rows)
        else:
            answer = read_apart(place, outputs_signature, item.rows)
        for number, array in enumerate(answer):
            assert _same(array, x[f"t{number}"])
    for one, old in zip(memories, before, strict=True):
        _only_rooms_have_changed(one, old, items)
        one.close()


def _only_rooms_have_changed(one: ClientMemory, before: bytes, items: list[RunItem]) -> None:
    now = bytearray(one.mapping.view)
    for item in items:
        if item.client == one.client:
            begin, end = answer_room(
                item.offset, item.length, item.input_bytes, item.total, 0, item.total
            )
            now[begin:end] = before[begin:end]
    assert bytes(now) == before


@given(
    order=st.permutations(range(12)),
    rooms=st.lists(st.sampled_from([64, 128, 0]), min_size=12, max_size=12),
    wide=st.sampled_from([0, 1, 8]),
)
def test_answers_that_are_written_together_reach_their_own_slots_and_nothing_else(
    order: list[int], rooms: list[int], wide: int
) -> None:
    memories = [ClientMemory(client, 1, 1 << 14) for client in (1, 2)]
    device = _device(*memories)
    items = []
    for number, room in enumerate(rooms):
        owner = memories[number // 6]
        items.append((owner, owner.write(np.full((1, 16), 7, np.int64), room)[1]))
    before = [bytes(one.mapping.view) for one in memories]
    answers = np.arange(12 * wide, dtype=np.int64).reshape(12, wide) + 1
    signature: Signature = (TensorSpec("int64", (wide,)),)
    targets = [Target(items[slot][1], 0, row, 1) for row, slot in enumerate(order)]
    placed = device.scatter(targets, signature, [answers])
    for row, slot in enumerate(order):
        owner, item = items[slot]
        if placed[row] is IN_SLOT:
            (got,) = owner.read(item, signature, 0, 1)
            begin, _ = answer_room(item.offset, item.length, item.input_bytes, 1, 0, 1)
            owner.mapping.view[begin : begin + 8 * wide] = before[slot // 6][begin:][: 8 * wide]
        else:
            assert rooms[slot] == 0
            (got,) = read_apart(placed[row], signature, 1)
        assert got.tolist() == [answers[row].tolist()]
    assert [bytes(one.mapping.view) for one in memories] == before
    for one in memories:
        one.close()


def test_single_rows_of_a_request(memory: ClientMemory) -> None:
    device = _device(memory)
    x = {"a": np.arange(12, dtype=np.int16).reshape(4, 3), "b": np.arange(4.0)}
    signature, item = memory.write(x)
    for row in (2, 0, 3, 1):
        alone = item._replace(start=row, rows=1)
        arrays, _ = device.gather(_layout(signature), [alone])
        assert arrays[0].tolist() == [x["a"][row].tolist()]
        assert arrays[1].tolist() == [x["b"][row]]
        assert device.scatter([Target(alone, row, 0, 1)], signature, arrays) == [IN_SLOT]
    for row in range(4):
        a, b = memory.read(item, signature, row, 1)
        assert a.tolist() == [x["a"][row].tolist()]
        assert b.tolist() == [x["b"][row]]


def test_single_rows_of_strings(memory: ClientMemory) -> None:
    device = _device(memory)
    words = ["", "one", "two\0", "drei" * 40]
    signature, item = memory.write(words)
    for row in range(4):
        alone = item._replace(start=row, rows=1)
        (got,), unreadable = device.gather(_layout(signature), [alone])
        assert got.tolist() == [words[row].encode()]
        assert unreadable == {}


def test_spoilt_strings_spoil_only_their_own_request(memory: ClientMemory) -> None:
    device = _device(memory)
    signature, good = memory.write(["good", "words"])
    _, bad = memory.write(["bad", "words"])
    memory.mapping.view[bad.offset + 8 : bad.offset + 16] = b"\xff" * 8
    (got,), unreadable = device.gather(_layout(signature), [good, bad, good])
    assert list(unreadable) == [1]
    assert "offsets" in unreadable[1]
    assert got.shape == (6,)
    assert got[:2].tolist() == got[4:].tolist() == [b"good", b"words"]


def test_what_does_not_fit_goes_into_a_segment_of_its_own(memory: ClientMemory) -> None:
    device = _device(memory)
    signature, item = memory.write(np.zeros((2, 4), np.float32), room=64)
    big = (TensorSpec("float64", (1_000,)),)
    outputs = [np.random.default_rng(1).random((2, 1_000))]
    before = descriptors()
    (placed,) = device.scatter([Target(item, 0, 0, 2)], big, outputs)
    assert placed.size == 16_000
    assert descriptors() == before + 1
    (got,) = read_apart(placed, big, 2)
    np.testing.assert_array_equal(got, outputs[0])
    assert descriptors() == before
    assert signature


def test_an_answer_without_bytes_has_its_place_in_a_slot_that_is_full_to_the_last_byte() -> None:
    """A client may say that its input fills an odd slot at the very end of its segment."""
    memory = ClientMemory(size=4097)
    device = _device(memory)
    item = RunItem(1, 1, 4096, 1, 1, 0, 0, 0)
    layout = _layout((TensorSpec("float32", (3,)),))
    arrays, _ = device.gather(layout, [item])
    for output in (
        (TensorSpec("float32", (3,)),),
        (TensorSpec("float32", (3,), "a"), TensorSpec("int8", (), "b")),
        (TensorSpec("string"),),
    ):
        outputs = [np.zeros((0, *spec.sizes), numpy_dtype(spec.dtype)) for spec in output]
        (placed,) = device.scatter([Target(item, 0, 0, 0)], output, outputs)
        if placed.descriptor >= 0:
            os.close(placed.descriptor)
    assert arrays[0].shape == (0, 3)
    memory.close()


def test_buffers_are_used_again_and_not_kept_for_ever(memory: ClientMemory) -> None:
    device = _device(memory)
    layout = _layout((TensorSpec("int8", (4,)),))
    _, item = memory.write(np.ones((4, 4), np.int8))
    first = device.gather(layout, [item])[0][0]
    second = device.gather(layout, [item])[0][0]
    assert first.ctypes.data == second.ctypes.data
    for size in range(100):
        other, entry = memory.write(np.zeros((1, size), np.int8), room=0)
        device.gather(_layout(other), [entry])
    assert len(device._buffers) <= 32


def test_of_large_buffers_few_are_kept(
    memory: ClientMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.worker.device._KEPT_BYTES", 5_000)
    device = _device(memory)
    for size in (100, 3_000, 3_001, 3_002, 100):
        x = np.full((1, size), 7, np.int8)
        signature, entry = memory.write(x)
        (got,), _ = device.gather(_layout(signature), [entry])
        np.testing.assert_array_equal(got, x)
        unused = [held[0][0].nbytes for held in device._buffers.values()][:-1]
        assert sum(unused) <= 5_000
    assert len(device._buffers) == 1


def test_large_batches_after_small_ones(memory: ClientMemory) -> None:
    device = _device(memory)
    for rows in (1, 3, 2, 7, 1, 31, 32, 5):
        x = np.arange(rows * 2, dtype=np.int32).reshape(rows, 2)
        signature, item = memory.write(x)
        (got,), _ = device.gather(_layout(signature), [item])
        np.testing.assert_array_equal(got, x)
        assert got.ctypes.data % 64 == 0


class _Laddered(Function):
    """Runs at 4 and at 8 rows; remembers what it was given."""

    seen: Any = None

    def __call__(self, inputs: Any, rows: int) -> Any:
        self.seen = inputs
        return super().__call__(inputs, rows)

    def padded(self, rows: int) -> int:
        return 0 if rows == 0 else 4 if rows <= 4 else 8


@pytest.mark.parametrize("words", [False, True])
def test_batches_are_padded_with_their_first_row(memory: ClientMemory, words: bool) -> None:
    device = _device(memory)
    runnable = _Laddered(_identity, ModelSpec(), 8, True, "test")
    for counts in ([3], [1, 0, 2], [0, 1], [4], [2, 5], [8], [0], [5]):
        rows = sum(counts)
        numbers = np.arange(2, 2 + rows * 2, dtype=np.float32).reshape(rows, 2)
        items: list[RunItem] = []
        done = 0
        for count in counts:
            x: dict[str, Any] = {"numbers": numbers[done : done + count]}
            if words:
                x["words"] = np.array([f"{n}" for n in x["numbers"][:, 0]], object)
            signature, item = memory.write(x)
            items.append(item)
            done += count
        layout = RunLayout(0, runnable, signature, plan_of(signature))
        arrays, unreadable = device.gather(layout, items)
        size = runnable.padded(rows)
        assert [len(array) for array in arrays] == [size] * len(signature)
        assert unreadable == {}
        assert arrays[0][rows:].tolist() == numbers[:1].tolist() * (size - rows)
        assert arrays[0].ctypes.data % 64 == 0 or size == 0
        outputs_signature, outputs = device.run(layout, arrays, rows)
        assert len(runnable.seen["numbers"]) == size
        np.testing.assert_array_equal(outputs[0], numbers)
        if words:
            assert outputs[1].tolist() == [f"{n}".encode() for n in numbers[:, 0]]
        targets = [Target(item, 0, sum(counts[:n]), item.rows) for n, item in enumerate(items)]
        for item, place in zip(
            items, device.scatter(targets, outputs_signature, outputs), strict=True
        ):
            assert place is IN_SLOT
            assert len(memory.read(item, outputs_signature, 0, item.rows)[0]) == item.rows


def test_an_answer_that_is_the_batch_buffer_itself_is_out_before_the_next_batch(
    memory: ClientMemory,
) -> None:
    device = _device(memory)
    written = [memory.write(np.full((2, 3), n, np.float32)) for n in range(3)]
    layout = RunLayout(
        0, _Laddered(_identity, ModelSpec(), 8, True, "test"), written[0][0], plan_of(written[0][0])
    )
    for signature, item in written:
        arrays, _ = device.gather(layout, [item])
        _, outputs = device.run(layout, arrays, 2)
        assert outputs[0].ctypes.data == arrays[0].ctypes.data
        assert device.scatter([Target(item, 0, 0, 2)], signature, outputs) == [IN_SLOT]
    for n, (signature, item) in enumerate(written):
        assert memory.read(item, signature, 0, 2)[0].tolist() == [[n] * 3] * 2


def test_models_see_what_callers_passed(memory: ClientMemory) -> None:
    seen: list[Any] = []

    def look(x: Any) -> Any:
        seen.append(x)
        return np.zeros(2)

    runnable = Function(look, ModelSpec(), 8, True, "test")
    for x in (np.ones((2, 3)), {"a": np.ones(2), "b": np.zeros((2, 1))}, {"only": np.ones(2)}):
        signature, item = memory.write(x)
        layout = RunLayout(0, runnable, signature, plan_of(signature))
        device = _device(memory)
        arrays, _ = device.gather(layout, [item])
        device.run(layout, arrays, 2)
    bare, two, one = seen
    assert isinstance(bare, np.ndarray)
    assert sorted(two) == ["a", "b"]
    assert list(one) == ["only"]


def test_mapped_segments_are_closed_and_unmapped() -> None:
    mapped = MappedSegments()
    before = descriptors()
    made = segment.create(4096)
    mapped.map(1, 2, 4096, made)
    assert descriptors() <= before + 1  # Python's mmap keeps one of its own
    assert len(mapped) == 1
    view = mapped.view(1, 2)
    view[0] = 5
    mapped.unmap(1, 2)
    assert len(mapped) == 0
    assert descriptors() == before
    with pytest.raises(KeyError):
        mapped.view(1, 2)
    with pytest.raises(ValueError, match="released"):
        view[0]


def test_a_segment_that_cannot_be_mapped_has_nothing_to_read() -> None:
    mapped = MappedSegments()
    before = descriptors()
    mapped.map(1, 2, 4096, os.open(os.devnull, os.O_RDWR))
    assert len(mapped.view(1, 2)) == 0
    mapped.unmap(1, 2)
    assert descriptors() == before


def test_collected_arrays_are_what_a_worker_reads(memory: ClientMemory) -> None:
    """Whatever order in memory the caller's array has."""
    device = _device(memory)
    base = np.arange(24, dtype=np.float64).reshape(4, 6)
    for x in (base.T, base[::-1], base[:, ::2], np.asfortranarray(base), base.astype(">f8")):
        signature, item = memory.write(x)
        assert collect(x, ModelSpec())[0] == signature
        (got,), _ = device.gather(_layout(signature), [item])
        np.testing.assert_array_equal(got, x)


# ── series ─────────────────────────────────────────────────────────────────────────────────────


@given(
    dtypes=st.lists(st.sampled_from([d for d in _DTYPES if d != "string"]), min_size=1, max_size=3),
    shape=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    rows=st.integers(1, 6),
    data=st.data(),
    room=st.sampled_from([0, 64, 128, 2048]),
)
def test_a_series_is_gathered_and_answered_as_its_requests_would_be(
    dtypes: list[str], shape: tuple[int, ...], rows: int, data: st.DataObject, room: int
) -> None:
    memory = ClientMemory(1, 1, 1 << 17)
    device = _device(memory)
    inputs = [
        {f"t{n}": _made(d, (1, *shape), 7 * row + n) for n, d in enumerate(dtypes)}
        for row in range(rows)
    ]
    other = {f"t{n}": _made(d, (1, *shape), 99 + n) for n, d in enumerate(dtypes)}
    _, before = memory.write(other, room)
    signature, series, alone = memory.series(inputs, room)
    start = data.draw(st.integers(0, rows - 1))
    count = data.draw(st.integers(1, rows - start))
    part = series._replace(start=start, rows=count)
    layout = _layout(signature)
    arrays, unreadable = device.gather(layout, [before, part])
    wanted, _ = _device(memory).gather(layout, [before, *alone[start : start + count]])
    assert unreadable == {}
    for got, expected in zip(arrays, wanted, strict=True):
        assert _same(got, expected)
    untouched = bytes(memory.mapping.view)
    outputs_signature, outputs = device.run(layout, arrays, count + 1)
    targets = row_by_row(Target(part, start, 1, count), plan_of(outputs_signature))
    placed = device.scatter(targets, outputs_signature, outputs)
    for target, place in zip(targets, placed, strict=True):
        assert place.descriptor < 0 or target.rows == 1
        for row in range(target.start, target.start + target.rows):
            if place.descriptor < 0:
                answer = memory.read(alone[row], outputs_signature, 0, 1)
            else:
                answer = read_apart(place, outputs_signature, 1)
            for number, array in enumerate(answer):
                assert _same(array, inputs[row][f"t{number}"])
    _only_rooms_have_changed(memory, untouched, alone[start : start + count])
    memory.close()


def test_of_a_series_that_cannot_be_mapped_no_row_is_read() -> None:
    memory = ClientMemory(1, 1)
    signature, series, _ = memory.series([np.full((1, 3), row) for row in range(3)])
    mapped = MappedSegments()
    mapped.map(1, 1, 0, os.dup(memory.descriptor))  # no size: the kernel refuses
    (got,), unreadable = CpuDevice(mapped).gather(_layout(signature), [series])
    assert list(unreadable) == [0]
    assert len(got) == 3
    memory.close()
