"""Several hands: batches overlap, each gets its own answer, and no hand is left behind."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from penstock.model.function import Function
from penstock.spec import ModelSpec, Signature, TensorSpec
from penstock.transport import messages as m
from penstock.transport import wire
from penstock.transport.channel import Channel, Closed, pair
from penstock.transport.layouts import CAPACITY
from penstock.worker.device import CpuDevice
from penstock.worker.loop import Worker
from penstock.worker.memory import MappedSegments
from penstock.worker.warmup import Ready
from tests.conditions import until
from tests.worker.slots import ClientMemory

LIMIT = 20.0
BYTES: Signature = (TensorSpec("int64", (8,)),)
SUMS: Signature = (TensorSpec("int64", (2,)),)


class Concurrent(Function):
    """What runs several batches at a time, as a model on a GPU does."""

    device = "GPU"

    def __init__(self, function: Callable[[Any], Any], max_batch: int = 32) -> None:
        super().__init__(function, ModelSpec(), max_batch, True, "test")


class Gates:
    """A model's call waits until the test lets its batch through; the first number names it."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self._gates = {number: threading.Event() for number in range(1, 10)}

    def __call__(self, x: Any) -> Any:
        number = int(x[0, 0])
        self.begun.append(number)
        assert self._gates[number].wait(LIMIT)
        return x * 2

    def open(self, *numbers: int) -> None:
        for number in numbers or self._gates:
            self._gates[number].set()


class Gathering(CpuDevice):
    """Notes what was gathered."""

    def __init__(self, memory: MappedSegments, noted: list[int]) -> None:
        super().__init__(memory)
        self._noted = noted

    def gather(self, layout: Any, items: list[m.RunItem]) -> Any:
        gathered = super().gather(layout, items)
        self._noted.append(int(gathered[0][0][0, 0]))
        return gathered


class Company:
    """A worker with several hands, and the engine's end of its channel."""

    def __init__(self, *models: Function, hands: int = 3) -> None:
        ours, theirs = pair()
        self.channel = Channel(ours)
        self.gathered: list[int] = []
        mapped = MappedSegments()
        devices = [Gathering(mapped, self.gathered) for _ in range(hands)]
        self._worker = Worker(Channel(theirs), [Ready(each) for each in models], mapped, devices)
        self._theirs = theirs
        self.ended: list[Any] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.memory = ClientMemory()
        self.say(m.MapSegment(1, 1, self.memory.size), self.memory.descriptor)
        assert isinstance(self.told(), m.Warm)

    def _run(self) -> None:
        try:
            self.ended.append(self._worker.run())
        except Closed as error:
            self.ended.append(error)

    def say(self, record: Any, *descriptors: int) -> None:
        self.channel.send(wire.encode(record), descriptors)

    def told(self) -> Any:
        return wire.decode(until(self.channel.receive)[0])

    def send(self, batch: int, *items: m.RunItem, layout: int = 1) -> None:
        for data in wire.encode_run(batch, layout, [m.RUN_ITEM.pack(*item) for item in items]):
            self.channel.send(data)

    def ran(self) -> int:
        """The next batch that is answered as a whole."""
        while not isinstance(record := self.told(), m.Ran):
            assert isinstance(record, m.OutputLayout), record
        assert record.layout
        return record.batch

    def join(self) -> None:
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()

    def close(self) -> None:
        if not self.ended:
            self.say(m.Stop(0.0))
        self.join()
        self.channel.close()
        self._theirs.close()
        self.memory.close()


@pytest.fixture
def company() -> Iterator[Callable[..., Company]]:
    interval = sys.getswitchinterval()
    made: list[Company] = []

    def make(*models: Function, **options: Any) -> Company:
        made.append(Company(*models, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
    sys.setswitchinterval(interval)


def _numbered(worker: Company, layout: int = 1, model: int = 0) -> dict[int, m.RunItem]:
    """Requests 1 to 9, each of two rows of its number."""
    items = {}
    for number in range(1, 10):
        signature, items[number] = worker.memory.write(np.full((2, 8), number, np.int64))
    worker.say(m.RunLayout(layout, model, signature))
    return items


def _answer(worker: Company, item: m.RunItem) -> Any:
    return worker.memory.read(item, BYTES, 0, item.rows)[0].tolist()


def test_the_next_batches_are_gathered_while_others_run(company: Callable[..., Company]) -> None:
    gates = Gates()
    worker = company(Concurrent(gates))
    items = _numbered(worker)
    for number in range(1, 6):
        worker.send(number, items[number])
    until(lambda: worker.gathered == [1, 2, 3] and len(gates.begun) == 2)
    slow, quick = gates.begun
    waiting = ({1, 2, 3} - {slow, quick}).pop()  # no more than two run at a time
    gates.open(quick)  # it overtakes: the next one is run, and its hand gathers the fourth
    assert worker.ran() == quick
    until(lambda: worker.gathered == [1, 2, 3, 4] and len(gates.begun) == 3)
    assert gates.begun == [slow, quick, waiting]
    assert _answer(worker, items[quick]) == [[2 * quick] * 8] * 2
    gates.open()
    assert sorted(worker.ran() for _ in range(4)) == sorted({1, 2, 3, 4, 5} - {quick})
    for number in range(1, 6):
        assert _answer(worker, items[number]) == [[2 * number] * 8] * 2


def test_what_is_not_concurrent_runs_one_at_a_time_and_in_order(
    company: Callable[..., Company],
) -> None:
    gates, running, most = Gates(), [0], [0]

    def plain(x: Any) -> Any:
        running[0] += 1
        most[0] = max(most[0], running[0])
        try:
            return gates(x)
        finally:
            running[0] -= 1

    worker = company(Concurrent(gates), Function(plain, ModelSpec(), 32, True, "test"), hands=3)
    items = _numbered(worker, layout=1, model=1)
    worker.say(m.RunLayout(2, 0, BYTES))
    worker.send(9, items[9], layout=2)
    for number in range(1, 6):
        worker.send(number, items[number])
    until(lambda: gates.begun == [9, 1])
    until(lambda: worker.gathered == [9, 1, 2])
    gates.open(*range(1, 6))
    assert [worker.ran() for _ in range(5)] == [1, 2, 3, 4, 5]
    assert gates.begun == [9, 1, 2, 3, 4, 5]
    assert most == [1]
    gates.open(9)
    assert worker.ran() == 9


def test_a_layout_means_what_it_did_though_other_hands_have_many(
    company: Callable[..., Company], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one hand scatters, another answers in more shapes than there are numbers."""
    scattering, go_on = threading.Event(), threading.Event()
    scatter = CpuDevice.scatter

    def slow(self: Any, targets: Any, signature: Signature, arrays: Any) -> Any:
        if signature[0].shape == (0,):
            scattering.set()
            assert go_on.wait(LIMIT)
        return scatter(self, targets, signature, arrays)

    monkeypatch.setattr(CpuDevice, "scatter", slow)
    worker = company(Concurrent(lambda x: np.zeros((len(x), int(x[0, 0])), np.uint8)), hands=2)
    view = worker.memory.mapping.view
    signature, first = worker.memory.write(np.zeros((1, 8), np.int64))
    _, item = worker.memory.write(np.zeros((1, 8), np.int64))
    worker.say(m.RunLayout(1, 0, signature))
    means: dict[int, Signature] = {}
    seen: dict[int, int] = {}

    def look(batch: int) -> None:
        while batch not in seen:
            record = worker.told()
            if isinstance(record, m.OutputLayout):
                means[record.layout] = record.tensors
            else:
                seen[record.batch] = means[record.layout][0].sizes[0]

    worker.send(10_000, first)
    assert scattering.wait(LIMIT)
    for number in range(1, CAPACITY + 2):
        view[item.offset : item.offset + 8] = number.to_bytes(8, "little")
        worker.send(number, item)
        look(number)
    go_on.set()
    look(10_000)
    assert seen.pop(10_000) == 0
    assert all(batch == size for batch, size in seen.items())


def _checksums(x: Any) -> Any:
    places = np.arange(1, 9)
    first = (x * places).sum(1)
    for _ in range(3):  # lets others have their turn, and looks again
        second = (x * places).sum(1)
    return np.stack([first, second], 1)


def test_buffers_are_not_filled_again_before_their_batch_was_answered(
    company: Callable[..., Company],
) -> None:
    worker = company(Concurrent(_checksums), hands=3)
    generator = np.random.default_rng(5)
    free: deque[tuple[m.RunItem, Any]] = deque()
    view = worker.memory.mapping.view
    for _ in range(24):
        rows = int(generator.integers(1, 9))
        signature, item = worker.memory.write(np.zeros((rows, 8), np.int64), room=512)
        array = np.frombuffer(view, np.int64, rows * 8, item.offset).reshape(rows, 8)
        free.append((item, array))
    worker.say(m.RunLayout(1, 0, signature))
    flying: dict[int, list[tuple[m.RunItem, Any]]] = {}
    for batch in range(1, 3001):
        chosen = [free.popleft() for _ in range(int(generator.integers(1, 4)))]
        for _, array in chosen:
            array[...] = generator.integers(0, 1 << 30, array.shape)
        flying[batch] = chosen
        worker.send(batch, *(item for item, _ in chosen))
        while len(flying) > 5 or (batch == 3000 and flying):
            for item, array in flying.pop(worker.ran()):
                wanted = (array * np.arange(1, 9)).sum(1)
                (got,) = worker.memory.read(item, SUMS, 0, item.rows)
                np.testing.assert_array_equal(got, np.stack([wanted, wanted], 1))
                free.append((item, array))
    del array, chosen
    free.clear()


def test_stop_ends_every_hand_when_its_batch_is_answered(company: Callable[..., Company]) -> None:
    gates = Gates()
    worker = company(Concurrent(gates))
    items = _numbered(worker)
    worker.send(1, items[1])
    worker.send(2, items[2])
    worker.say(m.Stop(0.0))
    until(lambda: gates.begun == [1, 2])
    assert not worker.ended
    gates.open()
    assert sorted(worker.ran() for _ in range(2)) == [1, 2]
    worker.join()
    assert worker.ended == [True]
    assert not _hands()


def test_a_lost_engine_ends_every_hand(company: Callable[..., Company]) -> None:
    gates = Gates()
    worker = company(Concurrent(gates))
    items = _numbered(worker)
    worker.send(1, items[1])
    until(lambda: gates.begun == [1])
    worker.channel.end()
    gates.open()
    worker.join()
    assert [type(end) for end in worker.ended] == [Closed]
    assert not _hands()


def _hands() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("penstock-hand")]


BROKEN = """
import sys
from tests.worker.test_hands import worker_that_breaks
worker_that_breaks(int(sys.argv[1]), int(sys.argv[2]))
"""


def worker_that_breaks(descriptor: int, which: int) -> None:
    """In a process of its own: this hand's device is lost with its first batch."""

    class Lost(BaseException):
        pass

    class Breaking(CpuDevice):
        def gather(self, layout: Any, items: list[m.RunItem]) -> Any:
            raise Lost("the device is gone")

    mapped = MappedSegments()
    devices = [Breaking(mapped) if number == which else CpuDevice(mapped) for number in range(3)]
    model = Concurrent(lambda x: x)
    Worker(Channel(socket.socket(fileno=descriptor)), [Ready(model)], mapped, devices).run()
    print("left behind")


@pytest.mark.parametrize("which", [0, 2])
def test_what_a_hand_cannot_deal_with_ends_the_process(which: int) -> None:
    ours, theirs = pair()
    channel = Channel(ours)
    process = subprocess.Popen(
        [sys.executable, "-c", BROKEN, str(theirs.fileno()), str(which)],
        pass_fds=[theirs.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    theirs.close()
    memory = ClientMemory()
    try:
        signature, item = memory.write(np.zeros((1, 8), np.int64))
        channel.send(wire.encode(m.MapSegment(1, 1, memory.size)), [memory.descriptor])
        channel.send(wire.encode(m.RunLayout(1, 0, signature)))
        batch = 0
        while process.poll() is None:  # until that hand has its turn
            batch += 1
            for data in wire.encode_run(batch, 1, [m.RUN_ITEM.pack(*item)]):
                channel.send(data)
            until(lambda: channel.receive() or process.poll() is not None)
    except Closed:
        pass
    try:
        out, error = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
        channel.close()
        memory.close()
    assert process.returncode == 1
    assert "Lost: the device is gone" in error
    assert "left behind" not in out
