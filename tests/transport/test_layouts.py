"""Short numbers for layouts: both ends agree, however often numbers are reused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.transport.layouts import LayoutNumbers


@given(st.integers(1, 5), st.lists(st.integers(0, 9), max_size=60))
def test_the_other_side_always_knows_what_a_number_means(capacity: int, layouts: list[int]) -> None:
    numbers: LayoutNumbers[int] = LayoutNumbers(capacity)
    other_side: dict[int, int] = {}
    for layout in layouts:
        number, new = numbers.number(layout)
        assert 1 <= number <= capacity
        if new:
            other_side[number] = layout
        assert other_side[number] == layout
    assert len(other_side) <= capacity


def test_a_known_layout_is_not_told_again() -> None:
    numbers: LayoutNumbers[str] = LayoutNumbers(2)
    assert numbers.number("a") == (1, True)
    assert numbers.number("b") == (2, True)
    assert numbers.number("a") == (1, False)


def test_the_least_recently_used_number_is_reused() -> None:
    numbers: LayoutNumbers[str] = LayoutNumbers(2)
    numbers.number("a")
    numbers.number("b")
    numbers.number("a")
    assert numbers.number("c") == (2, True)
    assert numbers.number("a") == (1, False)
    assert numbers.number("b") == (2, True)
