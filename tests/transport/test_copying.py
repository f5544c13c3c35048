"""Large copies by several threads: whole, right, and over when they are over."""

from __future__ import annotations

import os
import threading
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.transport import copying
from tests.conditions import until


@pytest.fixture(autouse=True)
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with many cores, from a few bytes on."""
    monkeypatch.setattr(copying, "_helpers", copying.Helpers(3))
    monkeypatch.setattr(copying, "_LARGE", 64)
    monkeypatch.setattr(copying, "_PART", 16)


@settings(max_examples=200)
@given(
    dtype=st.sampled_from(["u1", "<i4", ">i4", "<f8", ">f2", "bool", "bfloat16"]),
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    stride=st.sampled_from([1, 2, -1]),
    seed=st.integers(0, 99),
)
def test_all_of_it_arrives(dtype: str, shape: tuple[int, ...], stride: int, seed: int) -> None:
    kind: Any = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    wide = np.random.default_rng(seed).integers(0, 2, (shape[0] * 2, *shape[1:])).astype(kind)
    source = wide[:: 2 * stride] if abs(stride) == 1 else wide[::stride]
    around = np.full((shape[0] + 2, *shape[1:]), 7, source.dtype.newbyteorder("="))
    copying.copy(around[1:-1], source)
    assert around[1:-1].tolist() == source.tolist()
    assert (around[[0, -1]] == np.asarray(7).astype(around.dtype)).all()


def test_one_row_is_cut_as_well() -> None:
    source = np.arange(1 << 20, dtype=np.int64)[None]
    parts = copying._cut(np.empty_like(source), source)
    assert len(parts) > 1000
    target = np.zeros_like(source)
    copying.copy(target, source)
    assert (target == source).all()


def test_many_callers_at_a_time() -> None:
    sources = [np.full((64, 1 << 12), number, np.uint8) for number in range(8)]
    targets = [np.zeros_like(source) for source in sources]

    def work(number: int) -> None:
        for _ in range(20):
            targets[number][...] = 255
            copying.copy(targets[number], sources[number])
            assert (targets[number] == number).all()

    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


class Slow(copying.Part):
    """A part whose copying the test holds up."""

    def __init__(self, begun: threading.Event, go_on: threading.Event) -> None:
        super().__init__(np.zeros(1), np.ones(1))
        self._begun, self._go_on = begun, go_on
        self.copied = False

    def copy(self) -> None:
        self._begun.set()
        assert self._go_on.wait(20)
        self.copied = True


class Interrupted(copying.Part):
    """Ctrl-C comes when a helper is at work at the other part."""

    def __init__(self, begun: threading.Event) -> None:
        super().__init__(np.zeros(1), np.ones(1))
        self._begun = begun

    def copy(self) -> None:
        assert self._begun.wait(20)
        raise KeyboardInterrupt


def test_an_interrupted_caller_waits_for_its_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    slow = Slow(begun, go_on)
    monkeypatch.setattr(copying, "_cut", lambda target, source: [Interrupted(begun), slow])
    ends: list[Any] = []

    def call() -> None:
        try:
            copying.copy(np.zeros(64), np.ones(64))
        except KeyboardInterrupt:
            ends.append(slow.copied)

    caller = threading.Thread(target=call)
    caller.start()
    assert begun.wait(20)
    caller.join(0.2)
    assert caller.is_alive()
    assert not ends
    go_on.set()
    caller.join(20)
    assert ends == [True]


def test_what_no_helper_has_begun_is_not_begun_after_an_interrupt() -> None:
    part = Slow(threading.Event(), threading.Event())
    part.wait("caller")
    part.help("helper")
    assert not part.copied


def test_a_child_after_a_fork_copies_too() -> None:
    source = np.arange(1 << 16)
    copying.copy(np.empty_like(source), source)
    until(lambda: sum(each.name == "penstock-copy" for each in threading.enumerate()) >= 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if not child:
        if copying._helpers._started:
            os._exit(2)
        target = np.zeros_like(source)
        copying.copy(target, source)
        os._exit(0 if (target == source).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_few_cores_have_no_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, helpers in ((1, 0), (2, 0), (7, 0), (8, 1), (16, 3), (64, 3)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
        assert copying._wanted() == helpers


class Unseen(np.ndarray[Any, Any]):
    """Rows at which nobody should look: what is right stands elsewhere."""

    right: np.ndarray[Any, Any]

    def __array_finalize__(self, parent: Any) -> None:
        self.right, self.begins = getattr(parent, "right", None), getattr(parent, "begins", 0)

    def read_into(self, target: np.ndarray[Any, Any], address: int) -> None:
        start = address - self.begins
        flat = self.right.reshape(-1).view(np.uint8)
        target.reshape(-1).view(np.uint8)[...] = flat[start : start + target.nbytes]


@pytest.mark.parametrize("parts", [1, 4])
def test_what_says_how_is_read_and_not_looked_at(
    monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    monkeypatch.setattr(copying, "_READABLE", 8)
    monkeypatch.setattr(copying, "_LARGE", 64 if parts > 1 else 1 << 20)
    source = Unseen((32, 3), np.float32)
    source[...] = 0
    source.right = np.random.default_rng(0).random((32, 3), np.float32)
    source.begins = source.ctypes.data
    for some in (source, source[5:29], np.asarray(source)[5:][2:20], source[:1]):
        start = (some.ctypes.data - source.begins) // 12
        target = np.empty(some.shape, some.dtype)
        copying.copy(target, some)
        assert target.tolist() == source.right[start : start + len(some)].tolist()
    target = np.ones((32, 2), np.float32)
    copying.copy(target, source[:, ::2])  # no row is in one piece
    assert not target.any()
    source[...] = 5
    wide = np.zeros((32, 6), np.float32)
    copying.copy(wide[:, ::2], source)  # nor is what it goes to: then it is looked at
    assert (wide[:, ::2] == 5).all()
