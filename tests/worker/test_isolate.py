"""When a batch raises: only the rows that raise by themselves fail."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spec import Signature, TensorSpec
from penstock.worker.isolate import Answered, Raised, outcomes

_OUTPUT: Signature = (TensorSpec("int64"),)


class Model:
    """Doubles numbers; raises when one of the guilty is among them."""

    def __init__(self, guilty: set[int]) -> None:
        self.guilty = guilty
        self.calls: list[tuple[int, int]] = []

    def __call__(self, start: int, stop: int) -> tuple[Signature, list[np.ndarray]]:  # type: ignore[type-arg]
        self.calls.append((start, stop))
        for row in range(start, stop):
            if row in self.guilty:
                raise ValueError(f"row {row}")
        return _OUTPUT, [np.arange(start, stop) * 2]


@given(st.integers(1, 70), st.sets(st.integers(0, 69)))
def test_the_guilty_fail_one_by_one_and_the_others_are_answered(
    rows: int, guilty: set[int]
) -> None:
    model = Model(guilty)
    at = 0
    for outcome in outcomes(model, rows, divisible=True):
        assert outcome.start == at
        at += outcome.rows
        if isinstance(outcome, Raised):
            assert outcome.rows == 1
            assert outcome.start in guilty
            assert str(outcome.error) == f"row {outcome.start}"
        else:
            answered = list(range(outcome.start, outcome.start + outcome.rows))
            assert guilty.isdisjoint(answered)
            assert outcome.arrays[0].tolist() == [2 * row for row in answered]
    assert at == rows
    assert len(model.calls) <= max(2 * rows - 1, 1)


def test_where_all_rows_raise_they_are_soon_tried_one_by_one() -> None:
    model = Model(set(range(4096)))
    assert len(list(outcomes(model, 4096, divisible=True))) == 4096
    assert len(model.calls) <= 4096 + 24


def test_rows_one_by_one_end_with_the_first_that_does_not_raise() -> None:
    model = Model(set(range(20)))
    list(outcomes(model, 1024, divisible=True))
    assert len(model.calls) <= 20 + 2 * 10 + 4


def test_a_batch_that_does_not_raise_is_run_once() -> None:
    model = Model(set())
    (outcome,) = outcomes(model, 64, divisible=True)
    assert isinstance(outcome, Answered)
    assert model.calls == [(0, 64)]


def test_finding_one_row_takes_few_runs() -> None:
    model = Model({37})
    list(outcomes(model, 1024, divisible=True))
    assert len(model.calls) <= 2 * 10 + 1


def test_what_may_not_be_taken_apart_fails_as_a_whole() -> None:
    model = Model({3})
    (outcome,) = outcomes(model, 8, divisible=False)
    assert isinstance(outcome, Raised)
    assert (outcome.start, outcome.rows) == (0, 8)
    assert model.calls == [(0, 8)]


@pytest.mark.parametrize("divisible", [True, False])
def test_no_rows_are_run_once_too(divisible: bool) -> None:
    model = Model(set())
    (outcome,) = outcomes(model, 0, divisible)
    assert isinstance(outcome, Answered)
    assert outcome.rows == 0

    def refuse(start: int, stop: int) -> tuple[Signature, list[np.ndarray]]:  # type: ignore[type-arg]
        raise ValueError("nothing to do")

    (failed,) = outcomes(refuse, 0, divisible)
    assert isinstance(failed, Raised)
    assert failed.rows == 0


@pytest.mark.parametrize("fatal", [KeyboardInterrupt, SystemExit])
def test_what_should_end_the_process_does(fatal: type[BaseException]) -> None:
    def run(start: int, stop: int) -> tuple[Signature, list[np.ndarray]]:  # type: ignore[type-arg]
        raise fatal

    with pytest.raises(fatal):
        list(outcomes(run, 4, divisible=True))


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit])
def test_what_is_no_exception_to_python_fails_its_rows(kind: type[BaseException]) -> None:
    def run(start: int, stop: int) -> tuple[Signature, list[np.ndarray]]:  # type: ignore[type-arg]
        if start <= 2 < stop:
            raise kind("no more")
        return _OUTPUT, [np.arange(start, stop)]

    results = list(outcomes(run, 4, divisible=True))
    failed = [(one.start, one.rows, type(one.error)) for one in results if isinstance(one, Raised)]
    assert failed == [(2, 1, kind)]
    assert sum(one.rows for one in results) == 4
