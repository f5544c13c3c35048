"""Arrays as `fit` takes them: alone, or in dicts, tuples and lists.

Whatever numpy can look at without copying is an array: tensors and data frames, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from penstock.errors import InputError

Array = np.ndarray[Any, Any]


def is_array(value: Any) -> bool:
    """Whether it is one array, not several."""
    return hasattr(value, "__array__") and not isinstance(value, np.generic)


def is_tree(value: Any) -> bool:
    """Whether it is arrays in dicts, tuples or lists."""
    if isinstance(value, Mapping):
        return bool(value) and all(is_tree(item) for item in value.values())
    if isinstance(value, (tuple, list)):
        return bool(value) and all(is_tree(item) for item in value)
    return is_array(value)


def tree_of(value: Any, name: str) -> Any:
    """The same structure with numpy arrays; lists become tuples, as in `tf.data`."""
    if isinstance(value, Mapping) and value:
        return {key: tree_of(item, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (tuple, list)) and value and all(map(is_tree, value)):
        return tuple(tree_of(item, f"{name}[{place}]") for place, item in enumerate(value))
    if not is_array(value):
        raise InputError(
            f"{name}: expected an array, or a dict, tuple or list of arrays; got {_told(value)}"
        )
    array = np.asarray(value)
    if array.ndim == 0:
        raise InputError(f"{name}: expected rows along the first axis, got a scalar")
    if array.dtype == object and not all(isinstance(v, (str, bytes)) for v in array.ravel()[:100]):
        raise InputError(f"{name}: expected numbers or texts, got an array of objects")
    if array.dtype.kind in "SU":
        array = array.astype(object)
    elif not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def leaves(tree: Any, name: str) -> Iterator[tuple[str, Array]]:
    """Its arrays with their names; none where there is nothing."""
    if isinstance(tree, dict):
        for key in tree:
            yield from leaves(tree[key], f"{name}[{key!r}]")
    elif isinstance(tree, tuple):
        for place, item in enumerate(tree):
            yield from leaves(item, f"{name}[{place}]")
    elif tree is not None:
        yield name, tree


def packed(tree: Any, parts: Iterator[Any]) -> Any:
    """Parts, in the order of `leaves`, in the places of its arrays."""
    if isinstance(tree, dict):
        return {key: packed(item, parts) for key, item in tree.items()}
    if isinstance(tree, tuple):
        return tuple(packed(item, parts) for item in tree)
    return None if tree is None else next(parts)


def same_rows(trees: Mapping[str, Any]) -> int:
    """How many rows all arrays have. Raises `InputError` where they differ or there are none."""
    counts = {
        name: len(array) for where, tree in trees.items() for name, array in leaves(tree, where)
    }
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise InputError(f"expected as many rows in every array; {told}")
    rows = next(iter(counts.values()))
    if rows == 0:
        raise InputError("expected at least one row, got none")
    return rows


def _told(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        inner = type(value[0]).__name__ if value else "nothing"
        return f"a {type(value).__name__} of {inner}"
    return "nothing" if value is None else f"a {type(value).__name__}"
