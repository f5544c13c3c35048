"""A client that misuses its own memory: at worst its own answer is wrong.

A bystander asks all the while, and no worker may die of what a client does with its segments.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import threading
from typing import NamedTuple

import numpy as np
import pytest

from penstock import Engine
from penstock.spec import TensorSpec
from penstock.transport import messages as m
from penstock.transport import segment
from penstock.transport.channel import Closed
from tests.faults import leftovers
from tests.faults.company import Bystander, outstanding, worker_pids
from tests.faults.files import let_go, source, started
from tests.faults.models import Verb, answer_to, row, rows
from tests.faults.raw import RawClient
from tests.faults.waiting import eventually

_PUNCH_HOLE = 0x01 | 0x02  # keep the size, make a hole
_SIZE = 1 << 20
_F_SEAL_WRITE, _F_SEAL_FUTURE_WRITE = 0x0008, 0x0010


def _punch(descriptor: int, size: int = _SIZE) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    assert libc.fallocate(descriptor, _PUNCH_HOLE, 0, size) == 0, ctypes.get_errno()


class Scene(NamedTuple):
    """An engine, a bystander, and somebody up to no good with a segment of a megabyte."""

    engine: Engine
    onlooker: Bystander
    hostile: RawClient
    descriptor: int
    mapping: mmap.mmap


@pytest.fixture
def scene(start, bystander, raw):
    engine = start(workers=2, max_batch=8)
    onlooker = bystander(engine)
    hostile = raw(engine)
    descriptor, mapping = hostile.segment(_SIZE)
    hostile.layout(row(Verb.ANSWER, extra=61)[None])
    onlooker.go_on()
    yield Scene(engine, onlooker, hostile, descriptor, mapping)
    os.close(descriptor)
    onlooker.go_on()
    assert engine.statistics().deaths == 0, "no worker died of it"


def test_it_cannot_be_truncated_or_grown(scene):
    hostile = scene.hostile
    descriptor = scene.descriptor
    mapping = scene.mapping
    for size in (0, 4096, _SIZE - 1, _SIZE + 1, 2 * _SIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    hostile.ask(row(Verb.ANSWER, 0, 3, 61)[None], mapping)
    hostile.ends()


def test_rewritten_while_it_is_read(scene):
    onlooker = scene.onlooker
    hostile = scene.hostile
    mapping = scene.mapping
    ends = threading.Event()

    def scribble() -> None:
        chance = np.random.default_rng(1)
        numbers = np.frombuffer(mapping, np.int64).reshape(-1, 64)
        while not ends.is_set():
            numbers[:, 2:] = chance.integers(-(1 << 40), 1 << 40, (1, 62))

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        for _ in range(200):
            hostile.submit(rows=8, input_bytes=8 * 512, length=16 << 10)
            hostile.ends()
        onlooker.go_on(20)
    finally:
        ends.set()
        thread.join()


def test_holes_are_punched_while_it_is_read(scene):
    onlooker = scene.onlooker
    hostile = scene.hostile
    descriptor = scene.descriptor
    ends = threading.Event()

    def punch() -> None:
        while not ends.is_set():
            _punch(descriptor)

    thread = threading.Thread(target=punch)
    thread.start()
    try:
        for _ in range(300):
            hostile.submit(rows=8, input_bytes=8 * 512, length=16 << 10)
            hostile.ends()
        onlooker.go_on(20)
    finally:
        ends.set()
        thread.join()


def test_holes_are_punched_before_a_worker_has_mapped_it(scene):
    """The engine has checked the segment when it came; the worker sees it later."""
    hostile = scene.hostile
    descriptor = scene.descriptor
    _punch(descriptor)
    for _ in range(20):
        hostile.submit(rows=8, input_bytes=8 * 512, length=16 << 10)
    hostile.ends(20)


def test_unmapped_and_closed_while_it_is_read(scene):
    onlooker = scene.onlooker
    hostile = scene.hostile
    mapping = scene.mapping
    hostile.ask(row(Verb.WAIT, 1, 3, 61)[None], mapping)
    started(1)
    mapping.close()
    onlooker.go_on()
    let_go(1)
    hostile.ends()


def test_dropped_while_a_batch_reads_it(scene):
    engine = scene.engine
    onlooker = scene.onlooker
    hostile = scene.hostile
    mapping = scene.mapping
    hostile.ask(row(Verb.WAIT, 1, 3, 61)[None], mapping)
    started(1)
    hostile.send(m.DropSegment(1))
    onlooker.go_on()
    let_go(1)
    with contextlib.suppress(Closed):  # or it is thrown out for that
        hostile.ends()
    pid = engine.statistics().pid
    eventually(
        lambda: (
            leftovers.segments_held(pid)
            == sum(client.segments for client in engine.statistics().clients)
        )
    )


def test_dropped_while_requests_wait_for_it(scene):
    """Its requests may end in any way, and the engine goes on."""
    engine = scene.engine
    onlooker = scene.onlooker
    hostile = scene.hostile
    pid = engine.statistics().pid
    held = []
    for number in (1, 2):
        held.append(engine.submit(row(Verb.WAIT, number, 3)[None]))
        started(number)
    held += [engine.submit(row(Verb.SLEEP, 1, 3)[None]) for _ in range(40)]  # in front of it
    for _ in range(4):
        hostile.submit(rows=1, input_bytes=512, length=8 << 10)
    eventually(lambda: outstanding(engine) >= 46)
    hostile.send(m.DropSegment(1))
    let_go(1, 2)
    for future in held:
        assert future.result(10)[0, 0] == 22
    onlooker.go_on()
    assert engine.statistics().pid == pid


def test_used_again_after_it_was_dropped(scene):
    hostile = scene.hostile
    mapping = scene.mapping
    hostile.send(m.DropSegment(1))
    hostile.ask(row(Verb.ANSWER, 0, 3, 61)[None], mapping)
    assert "unknown" in hostile.why_closed()


def test_the_same_memory_under_two_numbers(scene):
    hostile = scene.hostile
    descriptor = scene.descriptor
    mapping = scene.mapping
    hostile.send(m.AddSegment(2, _SIZE), descriptor)
    hostile.ask(row(Verb.ANSWER, 0, 3, 61)[None], mapping)
    hostile.submit(rows=1, input_bytes=512, length=8 << 10, segment=2)
    hostile.ends(2)
    hostile.send(m.DropSegment(1))
    hostile.submit(rows=1, input_bytes=512, length=8 << 10, segment=2)
    hostile.ends()


def test_the_answers_room_is_the_next_requests_input(start, bystander, raw):
    """Requests whose slots overlap spoil only each other."""
    engine = start({"act": source("act"), "checksum": source("checksum")}, workers=2)
    onlooker = bystander(engine, "act")
    hostile = raw(engine)
    descriptor, _ = hostile.segment(_SIZE)
    os.close(descriptor)
    hostile.layout(np.zeros((1, 512), np.uint8), model=1)
    for offset in range(0, 64 << 10, 512):
        hostile.submit(rows=1, input_bytes=512, length=4096, offset=offset)
    hostile.ends(128)
    onlooker.go_on()
    assert engine.statistics().deaths == 0


# ── descriptors that are no segments ────────────────────────────────────────────────────────────


def _memfd(seals: int, size: int = _SIZE, allocate: bool = True) -> int:
    descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if allocate:
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _read_only() -> int:
    whole = segment.create(_SIZE)
    try:
        return os.open(f"/proc/self/fd/{whole}", os.O_RDONLY)
    finally:
        os.close(whole)


def _file(folder) -> int:
    descriptor = os.open(folder / "plain", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, _SIZE)
    return descriptor


def _pipe() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader


_BAD = {
    "a regular file": _file,
    "a pipe": lambda _: _pipe(),
    "a socket": lambda _: os.dup(1),
    "no seals": lambda _: _memfd(0),
    "only sealed against growing": lambda _: _memfd(fcntl.F_SEAL_GROW),
    "seals that can be added to": lambda _: _memfd(fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK),
    "sealed against writing": lambda _: _memfd(segment.SEALS | _F_SEAL_WRITE),
    "sealed against writing later": lambda _: _memfd(segment.SEALS | _F_SEAL_FUTURE_WRITE),
    "read only": lambda _: _read_only(),
    "too short": lambda _: segment.create(_SIZE - 4096),
    "too long": lambda _: segment.create(_SIZE + 4096),
    "not allocated": lambda _: _memfd(segment.SEALS, allocate=False),
}


@pytest.fixture
def onlooker(start, bystander):
    engine = start(workers=1, max_batch=8)
    onlooker = bystander(engine)
    onlooker.engine = engine
    onlooker.go_on()
    return onlooker


@pytest.mark.parametrize("what", _BAD)
def test_a_descriptor_that_is_no_segment(onlooker, raw, folder, what):
    """It is refused; were it accepted, no worker may die of it."""
    engine = onlooker.engine
    before = leftovers.footprint(engine.statistics().pid)
    hostile = raw(engine)
    descriptor = _BAD[what](folder)
    with contextlib.suppress(Closed):  # thrown out before it has sent all
        hostile.send(m.AddSegment(1, _SIZE), descriptor)
        hostile.layout(row(Verb.ANSWER, extra=61)[None])
        hostile.submit(rows=1, input_bytes=512, length=8 << 10)
    os.close(descriptor)
    hostile.why_closed()
    hostile.close()
    onlooker.go_on()
    assert engine.statistics().deaths == 0
    pid = engine.statistics().pid
    eventually(lambda: not before.growth(leftovers.footprint(pid), kilobytes=4096))


@pytest.mark.parametrize("count", [0, 2, 4, 5, 64])
def test_more_or_fewer_descriptors_than_expected(onlooker, raw, count):
    engine = onlooker.engine
    pid = engine.statistics().pid
    before = leftovers.footprint(pid)
    hostile = raw(engine)
    descriptor = segment.create(_SIZE)
    hostile.send(m.AddSegment(1, _SIZE), *[descriptor] * count)
    os.close(descriptor)
    assert hostile.why_closed() or count > 4
    hostile.close()
    onlooker.go_on()
    eventually(lambda: not before.growth(leftovers.footprint(pid), kilobytes=4096))


def test_descriptors_that_nobody_asked_for_are_closed(onlooker, raw):
    engine = onlooker.engine
    pid = engine.statistics().pid
    before = leftovers.footprint(pid)
    hostile = raw(engine)
    hostile.send(m.Ask(1, 0), 1, 1, 1)
    assert "descriptors" in hostile.why_closed()
    hostile.close()
    onlooker.go_on()
    eventually(lambda: not before.growth(leftovers.footprint(pid), kilobytes=4096))


def test_a_crowd_of_tiny_segments_does_not_use_up_the_engines_descriptors(onlooker, raw):
    engine = onlooker.engine
    pid = engine.statistics().pid
    before = leftovers.footprint(pid)
    hostile = raw(engine)
    descriptor = segment.create(1)
    most = 0
    with contextlib.suppress(Closed):
        for number in range(1, 12_000):
            hostile.send(m.AddSegment(number, 1), descriptor)
            if number % 1000 == 0:
                most = max(most, leftovers.footprint(pid).descriptors)
    os.close(descriptor)
    assert hostile.why_closed(2), "it went too far and was thrown out"
    assert most < before.descriptors + 8192
    hostile.close()
    onlooker.go_on()
    eventually(lambda: not before.growth(leftovers.footprint(pid), kilobytes=8192))


# ── what messages say of the memory ─────────────────────────────────────────────────────────────

_HUGE = 1 << 62
_LAYOUTS = {
    "rows of nothing in a huge shape": ((TensorSpec("float32", (_HUGE, 0)),), 1),
    "no rows of a huge shape": ((TensorSpec("float32", (_HUGE,)),), 0),
    "no rows of an impossible shape": ((TensorSpec("float32", (1 << 63, 4)),), 0),
    "huge strings": ((TensorSpec("string", (1 << 40,)),), 1),
    "huge and many strings": ((TensorSpec("string", (1 << 30, 1 << 30)),), 4),
    "sixteen axes": ((TensorSpec("int8", (1,) * 16),), 1),
    "sixteen huge axes and a zero": ((TensorSpec("int8", (*(1 << 60,) * 15, 0)),), 1),
}


@pytest.mark.parametrize("what", _LAYOUTS)
def test_shapes_that_are_lies(start, raw, what):
    engine = start({"echo": source("echo"), "act": source("act")}, workers=1)
    hostile = raw(engine)
    descriptor, _ = hostile.segment(_SIZE)
    os.close(descriptor)
    signature, count = _LAYOUTS[what]
    with contextlib.suppress(Closed):  # thrown out before it has sent all
        hostile.layout(signature, model=0)
        hostile.submit(rows=count, input_bytes=4096, length=8192)
    x = rows(row(Verb.ANSWER, 0, 1), row(Verb.ANSWER, 0, 2))
    for _ in range(3):
        assert engine.predict(x, model="act")[:, 0].tolist() == answer_to(x).tolist()
    with contextlib.suppress(Closed):
        hostile.ends()
    assert engine.statistics().deaths == 0


@pytest.mark.parametrize(
    "offsets",
    [
        [1 << 63, 1 << 63],
        [0, (1 << 64) - 1],
        [8, 4],
        [0, 1 << 20],
    ],
)
def test_strings_whose_offsets_are_lies(start, raw, offsets):
    engine = start("lengths", workers=1)
    hostile = raw(engine)
    descriptor, mapping = hostile.segment(_SIZE)
    os.close(descriptor)
    hostile.layout((TensorSpec("string", ()),))
    mapping[:16] = np.array(offsets, np.uint64).tobytes()
    number = hostile.submit(rows=1, input_bytes=64, length=8192)
    failed = hostile.until(m.Failed)
    assert failed.request == number
    assert "cannot be read" in failed.text
    assert engine.predict(np.array(["four"]))[0] == 4
    assert engine.statistics().deaths == 0


def test_strings_that_change_while_they_are_read(start, raw):
    engine = start("lengths", workers=1)
    hostile = raw(engine)
    descriptor, mapping = hostile.segment(_SIZE)
    os.close(descriptor)
    hostile.layout((TensorSpec("string", (64,)),))
    ends = threading.Event()

    def scribble() -> None:
        chance = np.random.default_rng(1)
        good = np.arange(65, dtype=np.uint64) * 4
        offsets = np.frombuffer(mapping, np.uint64, 65)
        while not ends.is_set():
            offsets[:] = good
            offsets[chance.integers(0, 65)] = chance.integers(0, 1 << 63)

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        for _ in range(300):
            hostile.submit(rows=1, input_bytes=4096, length=8192)
            hostile.ends()
        assert engine.predict(np.array(["four"]))[0] == 4
    finally:
        ends.set()
        thread.join()
    assert engine.statistics().deaths == 0


def test_the_publics_own_memory_may_be_rewritten_too(start, client, bystander):
    """A proper client whose process scribbles over its own segments gets wrong answers at worst."""
    engine = start(workers=2, max_batch=8)
    onlooker = bystander(engine)
    other = client(engine)
    other.predict(row(Verb.ANSWER, 0, 1, 61)[None])
    arena = other._session()._allowance._arena
    views = [block.memory.view for block in arena._blocks.values()]
    ends = threading.Event()

    def scribble() -> None:
        while not ends.is_set():
            for view in views:
                np.frombuffer(view, np.uint8)[:] = 0

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        for number in range(200):
            other.predict(row(Verb.ANSWER, 0, number, 61)[None])
        onlooker.go_on()
    finally:
        ends.set()
        thread.join()
        views.clear()
    assert engine.statistics().deaths == 0
    assert len(worker_pids(engine)) == 2
