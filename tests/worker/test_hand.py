"""Which items rows are of, and how their errors are told."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Kind
from penstock.transport import messages as m
from penstock.transport import wire
from penstock.worker.hand import Rows, describe


def _item(rows: int) -> m.RunItem:
    return m.RunItem(1, 1, 0, 512, 64, rows, 0, rows)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20), st.data())
def test_rows_are_found_among_the_items(sizes: list[int], data: st.DataObject) -> None:
    total = sum(sizes)
    start = data.draw(st.integers(0, total - 1))
    stop = data.draw(st.integers(start + 1, total))
    expected = []
    first = 0
    for index, size in enumerate(sizes):
        begin, end = max(first, start), min(first + size, stop)
        if begin < end:
            expected.append((index, first, begin, end))
        first += size
    assert list(Rows([_item(size) for size in sizes]).among(start, stop)) == expected


def test_an_item_without_rows_is_found_too() -> None:
    assert list(Rows([_item(0)]).among(0, 0)) == [(0, 0, 0, 0)]


def _raise(depth: int = 0) -> None:
    if depth:
        _raise(depth - 1)
    raise ValueError("no\0where")


def _because() -> None:
    try:
        _raise()
    except ValueError as error:
        raise KeyError("it") from error


def _meanwhile() -> None:
    try:
        _raise()
    finally:
        raise KeyError("it")


def _instead() -> None:
    try:
        _raise()
    except ValueError:
        raise KeyError("it") from None


def _with_a_note() -> None:
    error = ValueError("no")
    error.add_note("see there")
    raise error


def _several() -> None:
    raise ExceptionGroup("both", [ValueError("this"), KeyError("that")])


@pytest.mark.parametrize(
    "model",
    [
        _raise,
        lambda: _raise(5),
        lambda: compile("a b", "a model", "exec"),
        _because,
        _meanwhile,
        _instead,
        _with_a_note,
        _several,
    ],
)
def test_errors_are_told_as_python_writes_them_however_often(model: Callable[[], None]) -> None:
    for _ in range(3):
        with pytest.raises(Exception) as raised:  # noqa: PT011 (each its own)
            model()
        kind, text = describe(raised.value)
        last, _, full = text.partition("\0")
        assert kind == Kind.MODEL
        assert full == "".join(traceback.format_exception(raised.value)).replace("\0", "")
        assert last in full


def test_errors_are_described_within_bounds() -> None:
    try:
        raise ValueError("x" * 100_000 + "\0hidden")
    except ValueError as error:
        kind, text = describe(error)
    assert kind == Kind.MODEL
    assert text.count("\0") == 1
    assert len(wire.encode(m.ItemFailed(1, 0, 0, 1, kind, text))) < wire.MAX_MESSAGE
