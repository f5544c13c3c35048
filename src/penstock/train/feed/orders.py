"""A shuffled `tf.data.Dataset` in the order of an epoch, for whoever asks, as often as he does.

As TensorFlow has it, such a data set draws the next order whenever it is begun, and without a seed
each process draws its own; with deterministic=False, timing decides. `in_order` copies it, graph
and all, with seeds for this epoch alone, drawn from the seeds that it has, or from that of the run,
and without leave to be out of order. `loose` tells what has none to begin with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from penstock.train.feed.datasets import chain, is_unseeded

_LARGEST = 1 << 28  # bytes of a data set that is copied: rows may lie in it
_DRAWN = {  # what draws: what it is then, and how many inputs are before its two seeds
    "ShuffleDataset": ("ShuffleDataset", 2),
    "ShuffleDatasetV3": ("ShuffleDataset", 2),
    "RandomDataset": ("RandomDataset", 0),
    "RandomDatasetV2": ("RandomDataset", 0),
}
_ANEW = ("reshuffle_each_iteration", "rerandomize_each_iteration")
_CACHES = ("CacheDataset", "CacheDatasetV2")


def in_order(dataset: Any, seed: int, epoch: int) -> Any | None:
    """A copy that always has the order of an epoch; itself, where nothing in it is shuffled.

    `None` where it cannot be copied.
    """
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops

    graph = _graph(dataset)
    if graph is None:
        return None
    given = _give_seeds(graph.node, "{}", seed, epoch) + _hold_order(graph.node)
    for function in graph.library.function:
        given += _give_seeds(function.node_def, "{}:output:0", seed, epoch)
        given += _hold_order(function.node_def)
    if not given:
        return dataset
    try:
        copy = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    except (tf.errors.OpError, ValueError):
        return None
    return dataset_ops._VariantDataset(copy, dataset.element_spec)


def loose(dataset: Any) -> str:
    """What gives it another order whenever it is read, as far as that can be seen; or nothing."""
    graph = _graph(dataset)
    if is_unseeded(dataset):  # found also where rows are too many to copy
        return "a shuffle without a seed"
    if graph is None:
        return ""
    for nodes in (graph.node, *(each.node_def for each in graph.library.function)):
        known = {node.name: node for node in nodes}
        for node in nodes:
            if _may_overtake(node):
                of = next(
                    (each for each in ("interleave", "map") if each in node.op.lower()), "step"
                )
                return f"{'an' if of == 'interleave' else 'a'} {of} with deterministic=False"
            if node.op.startswith("RandomDataset") and not any(_seeds(node, known)):
                return "a random choice without a seed"
    return ""


def _graph(dataset: Any) -> Any | None:
    """What it is made of; nothing where that cannot be had, or has too many rows in it."""
    import tensorflow as tf

    if sum(map(_bytes, chain(dataset))) > _LARGEST:
        return None
    policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    try:
        text = dataset._as_serialized_graph(external_state_policy=policy).numpy()
        return tf.compat.v1.GraphDef.FromString(text) if len(text) <= _LARGEST else None
    except (tf.errors.OpError, ValueError):
        return None


def _may_overtake(node: Any) -> bool:
    return "deterministic" in node.attr and node.attr["deterministic"].s == b"false"


def _hold_order(nodes: Any) -> int:
    """Have nothing overtake another. How often that was allowed."""
    free = [node for node in nodes if _may_overtake(node)]
    for node in free:
        node.attr["deterministic"].s = b"true"
    return len(free)


def _seeds(node: Any, known: dict[str, Any]) -> list[int]:
    first = _DRAWN[node.op][1]
    return [_value(known.get(_name(each))) for each in node.input[first : first + 2]]


def _give_seeds(nodes: Any, named: str, seed: int, epoch: int) -> int:
    """To all that draw among the nodes of a graph, which name each other's outputs like that.

    How many there are.
    """
    import tensorflow as tf

    known = {node.name: node for node in nodes}
    kept = _behind([node for node in nodes if node.op in _CACHES], known)
    drawing = [node for node in nodes if node.op in _DRAWN]
    for number, node in enumerate(drawing):
        own = _seeds(node, known)
        anew = any(name in node.attr and node.attr[name].b for name in _ANEW)
        anew = anew and node.name not in kept
        drawn = np.random.SeedSequence([*(own if any(own) else (seed, 0)), number, epoch * anew])
        node.op, first = _DRAWN[node.op]
        for name in _ANEW:
            node.attr.pop(name, None)
        del node.input[first:]
        for place, value in enumerate(drawn.generate_state(2)):
            constant = nodes.add(name=f"penstock_seed_{number}_{place}", op="Const")
            constant.attr["dtype"].type = tf.int64.as_datatype_enum
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(int(value) + 1, tf.int64))
            node.input.append(named.format(constant.name))
    return len(drawing)


def _behind(caches: Iterable[Any], known: dict[str, Any]) -> set[str]:
    """The nodes whose rows are kept by caches: they are read once, whatever the epoch."""
    found: set[str] = set()
    left = [_name(each) for cache in caches for each in cache.input]
    while left:
        name = left.pop()
        if name in known and name not in found:
            found.add(name)
            left += [_name(each) for each in known[name].input]
    return found


def _bytes(dataset: Any) -> int:
    """Of rows that lie in it."""
    tensors = getattr(dataset, "_tensors", None) or ()
    return sum(each.dtype.size * int(each.shape.num_elements() or 0) for each in tensors)


def _name(reference: str) -> str:
    return reference.removeprefix("^").partition(":")[0]


def _value(constant: Any) -> int:
    """Of a seed; 0, as none has, where it is no constant."""
    import tensorflow as tf

    if constant is None or constant.op != "Const":
        return 0
    return abs(int(tf.make_ndarray(constant.attr["value"].tensor)))
