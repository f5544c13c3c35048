"""A worker's loop, with the engine's part played by the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from penstock.errors import Kind
from penstock.model.function import Function
from penstock.spec import ModelSpec, Signature, TensorSpec
from penstock.transport import messages as m
from penstock.transport import wire
from penstock.transport.channel import Channel, Closed, pair
from penstock.worker.device import CpuDevice, Placed
from penstock.worker.loop import Worker
from penstock.worker.warmup import Ready
from tests.conditions import descriptors, until
from tests.worker.slots import ClientMemory, read_apart


def _picky(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if (x < 0).any():
        raise ValueError(f"negative: {x.min()}")
    return x * 2


def _grown(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.repeat(x, 500, axis=1)


def _shouted(x: Any) -> Any:
    return np.array([word.upper() for word in x], object)


def _short(x: Any) -> Any:
    return x[:-1]


class Company:
    """A worker in a thread, and the engine's end of its channel."""

    def __init__(self, function: Callable[[Any], Any], batched: bool = True) -> None:
        ours, theirs = pair()
        self.channel = Channel(ours)
        runnable = Function(function, ModelSpec(), 32, batched, "test")
        self._worker = Worker(Channel(theirs), [Ready(runnable)])
        self._theirs = theirs
        self._thread = threading.Thread(target=self._worker.run, daemon=True)
        self._thread.start()
        self.memory = ClientMemory()
        self.say(m.MapSegment(1, 1, self.memory.size), self.memory.descriptor)
        self._batches = 0
        assert isinstance(wire.decode(until(self.channel.receive)[0]), m.Warm)

    def say(self, record: Any, *descriptors: int) -> None:
        self.channel.send(wire.encode(record), descriptors)

    def run(self, signature: Signature, items: list[m.RunItem]) -> list[tuple[Any, list[int]]]:
        """A batch; returns what the worker says of it."""
        self._batches += 1
        self.say(m.RunLayout(1, 0, signature))
        for data in wire.encode_run(self._batches, 1, [m.RUN_ITEM.pack(*item) for item in items]):
            self.channel.send(data)
        told: list[tuple[Any, list[int]]] = []
        while not told or not isinstance(told[-1][0], m.Ran):
            data, descriptors = until(self.channel.receive)
            told.append((wire.decode(data), descriptors))
        assert told[-1][0].batch == self._batches
        return told

    def close(self) -> None:
        self.say(m.Stop(0.0))
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.channel.close()
        self._theirs.close()
        self.memory.close()


@pytest.fixture
def company() -> Iterator[Callable[..., Company]]:
    made: list[Company] = []

    def make(*arguments: Any, **options: Any) -> Company:
        made.append(Company(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_usual_batch_is_one_answer(company: Callable[..., Company]) -> None:
    worker = company(_picky)
    x = [np.full((rows, 3), rows, np.float32) for rows in (1, 3, 2)]
    written = [worker.memory.write(array) for array in x]
    told = worker.run(written[0][0], [item for _, item in written])
    assert [type(record) for record, _ in told] == [m.OutputLayout, m.Ran]
    assert told[1][0].layout == told[0][0].layout
    for array, (_, item) in zip(x, written, strict=True):
        (got,) = worker.memory.read(item, told[0][0].tensors, 0, len(array))
        np.testing.assert_array_equal(got, array * 2)
    again = worker.run(written[0][0], [written[0][1]])
    assert [type(record) for record, _ in again] == [m.Ran]


def test_rows_that_raise_are_told_one_by_one(company: Callable[..., Company]) -> None:
    worker = company(_picky)
    x = np.array([[1.0], [-2.0], [3.0], [-4.0]])
    signature, item = worker.memory.write(x)
    _, other = worker.memory.write(np.array([[9.0]]))
    told = worker.run(signature, [item, other])
    failed = [record for record, _ in told if isinstance(record, m.ItemFailed)]
    assert [(f.item, f.start, f.rows, f.kind) for f in failed] == [
        (0, 1, 1, Kind.MODEL),
        (0, 3, 1, Kind.MODEL),
    ]
    message, _, remote = failed[0].text.partition("\0")
    assert message == "ValueError: negative: -2.0"
    assert "_picky" in remote
    parts = [record for record, _ in told if isinstance(record, m.ItemPart)]
    assert [(p.item, p.start, p.rows, p.place) for p in parts] == [
        (0, 0, 1, 0),
        (0, 2, 1, 0),
        (1, 0, 1, 0),
    ]
    assert told[-1][0].layout == 0
    (output,) = [record.tensors for record, _ in told if isinstance(record, m.OutputLayout)]
    assert worker.memory.read(item, output, 0, 1)[0].tolist() == [[2.0]]
    assert worker.memory.read(item, output, 2, 1)[0].tolist() == [[6.0]]
    assert worker.memory.read(other, output, 0, 1)[0].tolist() == [[18.0]]


def _one_row(worker: Company) -> tuple[Signature, list[m.RunItem]]:
    signature, item = worker.memory.write(np.array([[0]], np.int64), room=8_000)
    return signature, [item]


def test_large_answers_travel_in_segments(company: Callable[..., Company]) -> None:
    worker = company(_grown)
    worker.run(*_one_row(worker))
    before = descriptors()
    small, item = worker.memory.write(np.array([[1], [2]], np.int64), room=64)
    _, roomy = worker.memory.write(np.array([[3]], np.int64), room=8_000)
    told = worker.run(small, [item, roomy])
    output = (TensorSpec("int64", (500,)),)
    parts = [(record, given) for record, given in told if isinstance(record, m.ItemPart)]
    assert [(p.item, p.rows, p.place) for p, _ in parts] == [(0, 2, 1), (1, 1, 0)]
    (got,) = read_apart(Placed(parts[0][0].size, parts[0][1][0]), output, 2)
    assert got.tolist() == [[1] * 500, [2] * 500]
    assert worker.memory.read(roomy, output, 0, 1)[0].tolist() == [[3] * 500]
    until(lambda: descriptors() <= before)


def test_spoilt_strings_are_an_input_error_of_their_own(company: Callable[..., Company]) -> None:
    worker = company(_shouted)
    signature, good = worker.memory.write(["good"])
    _, bad = worker.memory.write(["bad", "words"])
    worker.memory.mapping.view[bad.offset : bad.offset + 8] = b"\xff" * 8
    told = worker.run(signature, [bad, good])
    (failed,) = [record for record, _ in told if isinstance(record, m.ItemFailed)]
    assert (failed.item, failed.start, failed.rows, failed.kind) == (0, 0, 2, Kind.INPUT)
    (part,) = [record for record, _ in told if isinstance(record, m.ItemPart)]
    assert (part.item, part.rows) == (1, 1)
    (output,) = [record.tensors for record, _ in told if isinstance(record, m.OutputLayout)]
    assert worker.memory.read(good, output, 0, 1)[0].tolist() == [b"GOOD"]


def test_without_memory_for_a_batch_its_parts_are_run(
    company: Callable[..., Company], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is unreadable is found out with the parts; one row is larger than all memory."""
    gather = CpuDevice.gather

    def with_little_memory(device: CpuDevice, layout: Any, items: list[m.RunItem]) -> Any:
        arrays, unreadable = gather(device, layout, items)
        words = [word for array in arrays for word in array.tolist()]
        if sum(map(len, words)) > 8:
            raise MemoryError
        return arrays, unreadable

    monkeypatch.setattr(CpuDevice, "gather", with_little_memory)
    worker = company(_shouted)
    signature, several = worker.memory.write(["one", "far too long", "two"])
    _, bad = worker.memory.write(["bad", "words"])
    worker.memory.mapping.view[bad.offset : bad.offset + 8] = b"\xff" * 8
    _, last = worker.memory.write(["six"])
    told = worker.run(signature, [several, bad, last])
    failed = [record for record, _ in told if isinstance(record, m.ItemFailed)]
    assert {(f.item, row): Kind(f.kind) for f in failed for row in _rows(f)} == {
        (0, 1): Kind.OVERLOADED,
        (1, 0): Kind.INPUT,
        (1, 1): Kind.INPUT,
    }
    parts = [record for record, _ in told if isinstance(record, m.ItemPart)]
    assert sorted((p.item, row) for p in parts for row in _rows(p)) == [(0, 0), (0, 2), (2, 0)]
    (output,) = [record.tensors for record, _ in told if isinstance(record, m.OutputLayout)]
    assert worker.memory.read(several, output, 2, 1)[0].tolist() == [b"TWO"]
    assert worker.memory.read(last, output, 0, 1)[0].tolist() == [b"SIX"]


def _rows(record: Any) -> range:
    return range(record.start, record.start + record.rows)


def test_a_wrong_number_of_rows_fails_row_by_row(company: Callable[..., Company]) -> None:
    worker = company(_short)
    signature, item = worker.memory.write(np.zeros((2, 1)))
    told = worker.run(signature, [item])
    failed = [record for record, _ in told if isinstance(record, m.ItemFailed)]
    assert [(f.start, f.rows) for f in failed] == [(0, 1), (1, 1)]
    assert "expected 1 rows, as many as came in, got 0" in failed[0].text


def _in_place(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    x += 100
    if (x < 100).any():
        raise ValueError("negative")
    return x


class _OneBuffer:
    """Returns the same array every time, filled anew."""

    def __init__(self) -> None:
        self.out = np.zeros((32, 1))

    def __call__(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if (x < 0).any():
            raise ValueError("negative")
        self.out[: len(x)] = x + 100
        return self.out[: len(x)]


@pytest.mark.parametrize("function", [_in_place, _OneBuffer()])
def test_neighbours_of_a_row_that_raises_get_the_answers_that_they_would_get_alone(
    company: Callable[..., Company], function: Callable[[Any], Any]
) -> None:
    """Whatever the model did to its input, or does with its output, before and after."""
    worker = company(function)
    x = np.array([[1.0], [2.0], [-1.0], [4.0], [5.0], [6.0], [7.0], [-2.0]])
    signature, item = worker.memory.write(x)
    told = worker.run(signature, [item])
    (output,) = [record.tensors for record, _ in told if isinstance(record, m.OutputLayout)]
    answered: dict[int, float] = {}
    for record, _ in told:
        if isinstance(record, m.ItemPart):
            (got,) = worker.memory.read(item, output, record.start, record.rows)
            answered.update(zip(range(record.start, 8), got[:, 0].tolist(), strict=False))
    assert answered == {0: 101.0, 1: 102.0, 3: 104.0, 4: 105.0, 5: 106.0, 6: 107.0}


def test_what_may_not_be_taken_apart_fails_whole(company: Callable[..., Company]) -> None:
    worker = company(_picky, batched=False)
    signature, item = worker.memory.write(np.array([[1.0], [-2.0], [3.0]]))
    told = worker.run(signature, [item])
    (failed,) = [record for record, _ in told if isinstance(record, m.ItemFailed)]
    assert (failed.start, failed.rows) == (0, 3)


@pytest.mark.parametrize("function", [_picky, _short])
def test_no_rows(company: Callable[..., Company], function: Callable[[Any], Any]) -> None:
    worker = company(function)
    signature, item = worker.memory.write(np.zeros((0, 3)))
    told = worker.run(signature, [item])
    assert isinstance(told[-1][0], m.Ran)
    assert not any(isinstance(record, m.ItemFailed) for record, _ in told)


def test_many_items_in_several_messages(company: Callable[..., Company]) -> None:
    worker = company(_picky)
    signature, item = worker.memory.write(np.ones((1, 2)))
    told = worker.run(signature, [item] * 3_000)
    assert isinstance(told[-1][0], m.Ran)
    assert told[-1][0].layout


def test_segments_come_and_go(company: Callable[..., Company]) -> None:
    worker = company(_picky)
    for number in range(2, 30):
        memory = ClientMemory(1, number, 1 << 16)
        worker.say(m.MapSegment(1, number, 1 << 16), memory.descriptor)
        signature, item = memory.write(np.full((1, 1), float(number)))
        told = worker.run(signature, [item])
        worker.say(m.UnmapSegment(1, number))
        layouts = [record.tensors for record, _ in told if isinstance(record, m.OutputLayout)]
        output = layouts[0] if layouts else (TensorSpec("float64", (1,)),)
        assert memory.read(item, output, 0, 1)[0].tolist() == [[2.0 * number]]
        memory.close()
    until(lambda: len(worker._worker._memory) == 1)


def test_the_engines_end_ends_the_worker() -> None:
    ours, theirs = pair()
    runnable = Function(_picky, ModelSpec(), 32, True, "test")
    worker = Worker(Channel(theirs), [Ready(runnable)])
    ours.close()
    with pytest.raises(Closed):
        worker.run()
    theirs.close()


# ── series ─────────────────────────────────────────────────────────────────────────────────────


def test_a_series_is_answered_with_one_word(company: Callable[..., Company]) -> None:
    worker = company(_picky)
    signature, series, alone = worker.memory.series([np.full((1, 3), n) for n in range(6)])
    layout, ran = [record for record, _ in worker.run(signature, [series])]
    assert ran.layout == layout.layout
    for number, item in enumerate(alone):
        assert worker.memory.read(item, layout.tensors, 0, 1)[0].tolist() == [[2 * number] * 3]


def test_rows_of_a_series_that_raise_are_told_one_by_one(company: Callable[..., Company]) -> None:
    worker = company(_picky)
    rows = [np.array([[value]]) for value in (1.0, -2.0, 3.0, 4.0)]
    signature, series, alone = worker.memory.series(rows)
    told = [record for record, _ in worker.run(signature, [series])]
    failed = [record for record in told if isinstance(record, m.ItemFailed)]
    assert [(f.item, f.start, f.rows) for f in failed] == [(0, 1, 1)]
    parts = [record for record in told if isinstance(record, m.ItemPart)]
    covered = [row for part in parts for row in range(part.start, part.start + part.rows)]
    assert covered == [0, 2, 3]
    (output,) = [record.tensors for record in told if isinstance(record, m.OutputLayout)]
    for row, value in ((0, 2.0), (2, 6.0), (3, 8.0)):
        assert worker.memory.read(alone[row], output, 0, 1)[0].tolist() == [[value]]


def test_answers_to_a_series_that_do_not_fit_come_apart_one_by_one(
    company: Callable[..., Company],
) -> None:
    worker = company(_grown)
    rows = [np.full((1, 2), float(number)) for number in range(3)]
    signature, series, _ = worker.memory.series(rows, room=64)
    told = worker.run(signature, [series])
    (output,) = [record.tensors for record, _ in told if isinstance(record, m.OutputLayout)]
    parts = [(record, files) for record, files in told if isinstance(record, m.ItemPart)]
    assert [(part.start, part.rows, part.place) for part, _ in parts] == [
        (0, 1, 1),
        (1, 1, 1),
        (2, 1, 1),
    ]
    for number, (part, [descriptor]) in enumerate(parts):
        (answer,) = read_apart(Placed(part.size, descriptor), output, 1)
        assert answer.tolist() == [[number] * 1000]
