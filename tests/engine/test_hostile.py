"""A hostile client against a real engine: nobody else notices, and nothing is left of it.

`make fuzz SECONDS=600` lets the last test go on for so long.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import penstock
from tests.conditions import descriptors, is_alive, until
from tests.engine.hostile import Word, conversations, talk

_FUNCTIONS = Path(__file__).resolve().parent.parent / "models" / "functions.py"
_FUZZ_SECONDS = float(os.environ.get("PENSTOCK_FUZZ_SECONDS", "0"))
_NOISES = st.sampled_from([b"\0", b"\xff", bytes(range(256)), b"\0\0\0\0\0\0\0\x01"])
_SETTINGS = settings(
    max_examples=150,
    phases=[Phase.generate],  # the engine has a past: a smaller example proves nothing
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Bystander:
    """A well-behaved client that keeps asking, and keeps an eye on the answers."""

    def __init__(self, engine: penstock.Engine) -> None:
        self.faults: list[BaseException] = []
        self.answers = 0
        self._client = penstock.connect(engine.name, label="bystander")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                x = np.full((3, 5), self.answers % 1_000)
                got = self._client.predict(x, model="doubled")
                assert (got == x + x).all(), "a wrong answer"
                words = [f"word {self.answers}", "é", ""]
                told = self._client.predict(words, model="identity")
                assert told.tolist() == [word.encode() for word in words], "a wrong answer"
                self.answers += 1
        except BaseException as error:
            self.faults.append(error)

    def check(self) -> None:
        """It has got right answers since, and goes on."""
        assert self.faults == []
        before = self.answers
        until(lambda: self.answers > before or self.faults)
        assert self.faults == []

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self._client.close()
        assert self.faults == []


@pytest.fixture(scope="module")
def engine() -> Iterator[penstock.Engine]:
    models = [
        penstock.Model(f"{_FUNCTIONS}:identity"),
        penstock.Model(f"{_FUNCTIONS}:doubled"),
        penstock.Model(f"{_FUNCTIONS}:Counting", name="counting", batched=False),
        penstock.Model(f"{_FUNCTIONS}:identity", name="typed", inputs=("float32", (4,))),
    ]
    with penstock.Engine(models, client_memory=1 << 20, client_requests=64) as started:
        yield started


@pytest.fixture
def bystander(engine: penstock.Engine) -> Iterator[Bystander]:
    made = Bystander(engine)
    until(lambda: made.answers or made.faults)
    yield made
    made.close()


def _talk_and_look(
    engine: penstock.Engine, bystander: Bystander, words: list[Word], noise: bytes, patient: bool
) -> None:
    talk(engine.address, words, noise, patient)
    assert bystander.faults == []


def _nothing_is_left(engine: penstock.Engine, pids: list[int], before: list[int]) -> None:
    """The same processes, none of which was replaced, hold as many descriptors as before."""
    statistics = engine.statistics()
    assert statistics.deaths == 0
    assert [statistics.pid, *(worker.pid for worker in statistics.workers)] == pids
    until(lambda: len(engine.statistics().clients) == 2)  # the owner's and the bystander's
    for pid, count in zip(pids, before, strict=True):
        assert is_alive(pid)
        until(lambda pid=pid, count=count: descriptors(pid) <= count + 1)


def test_garbage_hurts_nobody(engine: penstock.Engine, bystander: Bystander) -> None:
    statistics = engine.statistics()
    pids = [statistics.pid, *(worker.pid for worker in statistics.workers)]
    before = [descriptors(pid) for pid in pids]

    @_SETTINGS
    @given(words=conversations(), noise=_NOISES, patient=st.booleans())
    def speak(words: list[Word], noise: bytes, patient: bool) -> None:
        _talk_and_look(engine, bystander, words, noise, patient)

    speak()
    bystander.check()
    _nothing_is_left(engine, pids, before)


def test_many_at_once_hurt_nobody(engine: penstock.Engine, bystander: Bystander) -> None:
    statistics = engine.statistics()
    pids = [statistics.pid, *(worker.pid for worker in statistics.workers)]
    before = [descriptors(pid) for pid in pids]

    @settings(_SETTINGS, max_examples=15)
    @given(several=st.lists(st.tuples(conversations(), _NOISES), min_size=4, max_size=8))
    def speak(several: list[tuple[list[Word], bytes]]) -> None:
        threads = [threading.Thread(target=talk, args=(engine.address, *one)) for one in several]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert bystander.faults == []

    speak()
    bystander.check()
    _nothing_is_left(engine, pids, before)


@pytest.mark.slow
@pytest.mark.skipif(not _FUZZ_SECONDS, reason="runs for PENSTOCK_FUZZ_SECONDS")
@pytest.mark.timeout(_FUZZ_SECONDS + 120)
def test_garbage_for_long(engine: penstock.Engine, bystander: Bystander) -> None:
    statistics = engine.statistics()
    pids = [statistics.pid, *(worker.pid for worker in statistics.workers)]
    before = [descriptors(pid) for pid in pids]
    until_time = time.monotonic() + _FUZZ_SECONDS

    @settings(_SETTINGS, max_examples=500)
    @given(words=conversations(), noise=_NOISES, patient=st.booleans())
    def speak(words: list[Word], noise: bytes, patient: bool) -> None:
        if time.monotonic() < until_time:
            _talk_and_look(engine, bystander, words, noise, patient)

    while time.monotonic() < until_time:
        speak()
        bystander.check()
    _nothing_is_left(engine, pids, before)
