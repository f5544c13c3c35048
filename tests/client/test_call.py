"""One call's rows, joined again: outputs, errors, or both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.call import Call
from penstock.errors import DeadlineExceeded, ModelError, Overloaded, PenstockError, RowsFailed
from penstock.spec import Signature, TensorSpec

_FLOATS: Signature = (TensorSpec("float64", (2,)),)
_BOTH: Signature = (TensorSpec("int64", (), "number"), TensorSpec("string", (), "text"))


class Resolved:
    """What an answer was resolved with, once."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[Any, BaseException | None]] = []

    def resolve(self, value: Any, error: BaseException | None) -> None:
        self.outcomes.append((value, error))

    @property
    def value(self) -> Any:
        ((value, error),) = self.outcomes
        assert error is None
        return value

    @property
    def error(self) -> Any:
        ((value, error),) = self.outcomes
        assert value is None
        return error


def _call(rows: int) -> tuple[Call, Resolved]:
    call = Call(None, rows, 0, 0)  # type: ignore[arg-type]
    call.answer = Resolved()  # type: ignore[assignment]
    return call, call.answer  # type: ignore[return-value]


def _floats(start: int, rows: int) -> list[Any]:
    return [np.arange(2.0 * start, 2.0 * (start + rows)).reshape(rows, 2)]


def _strings(*texts: bytes) -> Any:
    array = np.empty(len(texts), object)
    array[:] = texts
    return array


@st.composite
def _pieces(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=8))
    pieces, at = [], 0
    for size in sizes:
        pieces.append((at, size))
        at += size
    return at, draw(st.permutations(pieces))


@given(_pieces())
def test_pieces_are_joined_in_any_order(made: tuple[int, list[tuple[int, int]]]) -> None:
    rows, pieces = made
    call, resolved = _call(rows)
    for number, (start, count) in enumerate(pieces):
        assert not resolved.outcomes
        assert not call.over
        call.put(start, _FLOATS, _floats(start, count))
        assert call.over == (number == len(pieces) - 1)
    np.testing.assert_array_equal(resolved.value, _floats(0, rows)[0])


@given(_pieces(), st.data())
def test_every_row_ends_once_whatever_fails(
    made: tuple[int, list[tuple[int, int]]], data: st.DataObject
) -> None:
    rows, pieces = made
    call, resolved = _call(rows)
    failed: set[int] = set()
    for start, count in pieces:
        if data.draw(st.booleans()):
            call.fail(start, count, ModelError(f"piece {start}"))
            failed.update(range(start, start + count))
        else:
            call.put(start, _FLOATS, _floats(start, count))
    expected = _floats(0, rows)[0]
    expected[sorted(failed)] = 0
    if not failed:
        np.testing.assert_array_equal(resolved.value, expected)
    elif len(failed) == rows:
        assert type(resolved.error) is ModelError
    else:
        error = resolved.error
        assert isinstance(error, RowsFailed)
        assert set(error.errors) == failed
        assert error.rows == rows
        np.testing.assert_array_equal(error.results, expected)
        assert error.__cause__ is error.errors[min(failed)]


def test_a_whole_answer_is_not_copied() -> None:
    call, resolved = _call(3)
    arrays = _floats(0, 3)
    call.put(0, _FLOATS, arrays)
    assert resolved.value is arrays[0]


def test_several_outputs_are_a_dict() -> None:
    call, resolved = _call(2)
    call.put(1, _BOTH, [np.array([5]), _strings(b"five")])
    call.put(0, _BOTH, [np.array([4]), _strings(b"four")])
    assert resolved.value["number"].tolist() == [4, 5]
    assert resolved.value["text"].tolist() == [b"four", b"five"]


def test_failed_rows_hold_zeros_and_empty_bytes() -> None:
    call, resolved = _call(3)
    call.put(0, _BOTH, [np.array([1, 2]), _strings(b"a", b"b")])
    call.fail(2, 1, ModelError("no"))
    results = resolved.error.results
    assert results["number"].tolist() == [1, 2, 0]
    assert results["text"].tolist() == [b"a", b"b", b""]


@pytest.mark.parametrize("ending", ["put", "fail"])
def test_a_call_without_rows(ending: str) -> None:
    call, resolved = _call(0)
    if ending == "put":
        call.put(0, _FLOATS, _floats(0, 0))
        assert resolved.value.shape == (0, 2)
    else:
        call.fail(0, 0, ModelError("no"))
        assert type(resolved.error) is ModelError


def test_rows_that_failed_alike_are_one_error_with_a_note() -> None:
    call, resolved = _call(3)
    for row in range(3):
        call.fail(row, 1, Overloaded("full"))
    assert type(resolved.error) is Overloaded
    assert "3 rows" in "".join(resolved.error.__notes__)


def test_rows_that_failed_differently_are_told_apart() -> None:
    call, resolved = _call(2)
    call.fail(0, 1, Overloaded("full"))
    call.fail(1, 1, ModelError("bad"))
    error = resolved.error
    assert isinstance(error, RowsFailed)
    assert error.results is None
    assert not error.retryable


def test_giving_up_before_anything_is_there() -> None:
    call, resolved = _call(4)
    call.give_up(DeadlineExceeded("late"))
    assert isinstance(resolved.error, DeadlineExceeded)
    call.give_up(ModelError("again"))
    call.put(0, _FLOATS, _floats(0, 4))
    assert len(resolved.outcomes) == 1


def test_giving_up_keeps_what_is_there() -> None:
    call, resolved = _call(4)
    call.put(1, _FLOATS, _floats(1, 2))
    call.give_up(DeadlineExceeded("late"))
    error = resolved.error
    assert isinstance(error, RowsFailed)
    assert sorted(error.errors) == [0, 3]
    np.testing.assert_array_equal(error.results[1:3], _floats(1, 2)[0])
    call.put(0, _FLOATS, _floats(0, 1))
    assert len(resolved.outcomes) == 1


def test_outputs_of_different_shapes_cannot_be_joined() -> None:
    call, resolved = _call(2)
    call.put(0, _FLOATS, _floats(0, 1))
    other = (TensorSpec("float64", (3,)),)
    call.put(1, other, [np.zeros((1, 3))])
    error = resolved.error
    assert isinstance(error, RowsFailed)
    assert "float64 (rows, 2)" in str(error.errors[1])
    assert "float64 (rows, 3)" in str(error.errors[1])
    assert isinstance(error.errors[1], PenstockError)


def test_rows_that_come_as_their_caller_gives_up_hurt_nobody() -> None:
    """The caller does so in its own thread; an error here would end the connection of all calls."""
    call, resolved = _call(3)

    class Meanwhile(tuple):  # type: ignore[type-arg]
        def __ne__(self, other: object) -> bool:
            call.give_up(DeadlineExceeded("late"))
            return False

    call.put(0, _FLOATS, _floats(0, 1))
    call.put(1, Meanwhile(_FLOATS), _floats(1, 1))
    assert isinstance(resolved.error, RowsFailed)
    assert sorted(resolved.error.errors) == [1, 2]
