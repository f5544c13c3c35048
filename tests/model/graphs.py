"""Graphs of a few operations, and models made of them. Only where TensorFlow is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.config import Model
from penstock.model.graph import Graph
from penstock.spec import TensorSpec
from penstock.transport.tensors import empty_aligned, structure
from tests.model.networks import graph_of, network

Array = np.ndarray[Any, Any]


def graph(
    call: Callable[..., Any],
    inputs: Any = ("float32", (3,)),
    outputs: Any = ("float32", (3,)),
    *,
    keep: Any = None,
    key: str = "",
    stateful: str = "",
) -> Graph:
    """A graph of one function of tensors; inputs and outputs as pairs, or dicts of pairs."""

    def listed(tensors: list[Any]) -> list[Any]:
        given = call(*tensors)
        return list(given) if isinstance(given, (list, tuple)) else [given]

    return Graph(listed, _signature(inputs), _signature(outputs), keep, key, stateful)


def _signature(value: Any) -> tuple[TensorSpec, ...]:
    if isinstance(value, dict):
        return tuple(TensorSpec(*pair, name) for name, pair in value.items())
    return (TensorSpec(*value),)


def compiled(made: Graph, **settings: Any) -> Any:
    """What Penstock runs of a graph."""
    from penstock.model.compiled import Compiled

    return Compiled(made, Model("test:graph", **settings))


def compiled_network(kind: str, **settings: Any) -> tuple[Any, Any]:
    """A network, and what Penstock runs of it."""
    from penstock.model.compiled import Compiled

    made = network(kind)
    model = Model(made, **settings)
    return made, Compiled(graph_of(model), model)


def answer(made: Any, rows: dict[str, Any]) -> dict[str, Any]:
    """What it says to these rows: its outputs by name, "" for a bare array."""
    count = len(next(iter(rows.values())))
    signature, arrays = made({name: aligned(value) for name, value in rows.items()}, count)
    got = structure(signature, arrays)
    return got if isinstance(got, dict) else {"": got}


def rewrite(made: Any, **changes: Any) -> None:
    """What the next start will read of the findings about this one, with changes."""
    preparation = made._preparation
    preparation._entry.write({**preparation._findings.to_json(), **changes})


def aligned(array: Any) -> Array:
    """A copy that lies as the worker's buffers lie."""
    array = np.asarray(array)
    copy = empty_aligned(array.shape, array.dtype)
    copy[...] = array
    return copy
