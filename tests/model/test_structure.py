"""Names of tensors in dicts and lists, and how functions are called with them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock.model.structure import flatten, needs_arguments, output_names, pack, passing


class Pair(NamedTuple):
    one: Any
    two: Any


@pytest.mark.parametrize(
    ("structure", "names"),
    [
        (1, [""]),
        ([1], [""]),
        ((1,), [""]),
        ({"a": 1}, ["a"]),
        ({"output_0": 1}, ["output_0"]),
        ([1, 2], ["output_0", "output_1"]),
        ({"b": 1, "a": 2}, ["b", "a"]),
        ({"a": [1, 2], "b": {"c": 3}}, ["a/0", "a/1", "b/c"]),
        (Pair(1, 2), ["output_0", "output_1"]),
        ([], []),
        ({}, []),
    ],
)
def test_names_of_outputs(structure: Any, names: list[str]) -> None:
    assert output_names(structure) == names
    assert pack(structure, iter([leaf for _, leaf in flatten(structure)])) == structure


def test_how_functions_are_called() -> None:
    def of_one(x: Any) -> Any:
        return x

    def of_two(a: Any, b: Any = 0) -> Any:
        return ("keywords", a, b)

    assert passing(of_one, [""])([7]) == 7
    assert passing(of_one, ["x"])([7]) == 7
    assert passing(of_one, ["a"])([7]) == {"a": 7}
    assert passing(of_one, ["a", "b"])([7, 8]) == {"a": 7, "b": 8}
    assert passing(of_two, ["b", "a"])([7, 8]) == ("keywords", 8, 7)
    assert passing(dict, ["a"])([7]) == {"a": 7}


def test_which_functions_take_rows() -> None:
    class Maker:
        def make(self) -> None: ...

        def take(self, rows: Any) -> None: ...

    assert not needs_arguments(lambda: 0)
    assert not needs_arguments(lambda size=3, *, seed=1: 0)
    assert not needs_arguments(functools.partial(lambda x: 0, 1))
    assert not needs_arguments(Maker().make)
    assert needs_arguments(lambda x: 0)
    assert needs_arguments(lambda x, size=3: 0)
    assert needs_arguments(lambda *arrays: 0)
    assert needs_arguments(lambda *, x: 0)
    assert needs_arguments(Maker().take)
    assert needs_arguments(np.add)
    assert needs_arguments(np.dot)
    assert needs_arguments(len)
