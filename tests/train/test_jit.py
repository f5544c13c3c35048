"""XLA or not, by what steps take; the fakes stand in for steps and for the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.train.jit import TIMED, Contest, NotCompiled, Tried
from tests.model.tensorflow_process import in_tensorflow
from tests.train.learning import network, rows


class InvalidArgumentError(Exception):
    """Named as TensorFlow's, which XLA raises for what it cannot compile."""


class FakeSteps:
    """Two ways of taking a step that take as long as they say."""

    def __init__(self, plain: float, compiled: float, first: float = 10.0) -> None:
        self._seconds, self._first = {False: plain, True: compiled}, first
        self.now = 0.0
        self.ways: list[bool] = []

    def make(self, compiled: bool) -> Callable[[int], int]:
        fresh = [True]

        def step(batch: int) -> int:
            self.ways.append(compiled)
            self.now += self._seconds[compiled] + (self._first if fresh.pop() else 0.0)
            fresh.append(False)
            return batch

        return step

    def tried(self, steps: int | None) -> Tried:
        return Tried(self.make, Contest(steps), lambda given: None, lambda: self.now)


@pytest.mark.parametrize(("compiled", "better"), [(0.5, True), (0.99, False), (2.0, False)])
def test_the_quicker_way_is_kept_and_every_step_counts(compiled: float, better: bool) -> None:
    steps = FakeSteps(1.0, compiled)
    tried = steps.tried(1000)
    assert [tried(number) for number in range(40)] == list(range(40))
    each = TIMED + 1
    assert steps.ways == [False] * each + [True] * each + [better] * (40 - 2 * each)
    report = tried.contest.report()
    assert report["jit"] is better
    assert report["compiled_ms"] == pytest.approx(1000 * compiled)
    assert report["compilation_s"] == pytest.approx(10 + compiled)


def test_nothing_is_compiled_for_a_run_that_ends_soon() -> None:
    steps = FakeSteps(0.01, 0.001)
    tried = steps.tried(100)
    for number in range(100):
        tried(number)
    assert True not in steps.ways
    assert "too little" in tried.contest.why


def test_a_run_without_known_end_is_worth_it() -> None:
    steps = FakeSteps(0.01, 0.001)
    tried = steps.tried(None)
    for number in range(20):
        tried(number)
    assert tried.contest.compiled is True


def test_what_cannot_be_compiled_is_told_and_the_rest_runs_as_it_is() -> None:
    def make(compiled: bool) -> Callable[[Any], Any]:
        def step(batch: Any) -> Any:
            if compiled:
                raise InvalidArgumentError("Detected unsupported operations: Unique\nmore")
            return batch

        return step

    tried = Tried(make, Contest(None), lambda given: None)
    for number in range(TIMED + 1):
        tried(number)
    with pytest.raises(NotCompiled, match="Unique"):
        tried(99)
    assert tried(99) == 99
    assert tried.contest.report()["jit"] is False


def test_errors_of_the_step_itself_are_raised() -> None:
    def make(compiled: bool) -> Callable[[Any], Any]:
        return lambda batch: 1 / 0

    with pytest.raises(ZeroDivisionError):
        Tried(make, Contest(None), lambda given: None)(1)


def test_what_is_undone_is_the_step_in_use() -> None:
    undone: list[bool] = []

    class FakeStep:
        def __init__(self, compiled: bool) -> None:
            self._compiled = compiled

        def __call__(self, batch: int) -> None:
            if batch == TIMED + 1:
                raise MemoryError

        def undo(self) -> None:
            undone.append(self._compiled)

    tried = Tried(FakeStep, Contest(None), lambda given: None)
    tried.undo()  # no step was taken: nothing is to be undone
    for number in range(TIMED + 1):
        tried(number)
    with pytest.raises(MemoryError):
        tried(TIMED + 1)  # the first one that is compiled
    tried.undo()
    assert undone == [True]


@in_tensorflow
def test_out_of_memory_while_both_ways_are_tried_undoes_the_step() -> None:
    import tensorflow as tf

    import penstock
    from penstock.train import assembly
    from penstock.train.step import TrainStep

    take, taken, undone = TrainStep.__call__, [], []

    def short_of_memory(self: Any, iterator: Any) -> Any:
        if len(taken) == 3 and not undone:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating a tensor")
        taken.append(self)
        return take(self, iterator)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "compiled_at_first", lambda *_: "auto")
        patch.setattr(TrainStep, "__call__", short_of_memory)
        patch.setattr(TrainStep, "undo", lambda self: undone.append(self))
        got = penstock.train.fit(network(), *rows(), batch_size=8, verbose=0)
    assert undone == taken[2:3]
    assert (len(taken), got.report["micros"]) == (5, 2)
