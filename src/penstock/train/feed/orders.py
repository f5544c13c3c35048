"""A shuffled `tf.data.Dataset` in the order of an epoch, for whoever asks, as often as he does.

As TensorFlow has it, such a data set draws the next order whenever it is begun, and without a seed
each process draws its own. `in_order` copies it, graph and all, with seeds for this epoch alone:
drawn from the seeds that it has, or from that of the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from penstock.train.feed.datasets import chain

_LARGEST = 1 << 28  # bytes of a data set that is copied: rows may lie in it
_SHUFFLES = ("ShuffleDataset", "ShuffleDatasetV3")  # (data, size, two seeds, their generator)
_CACHES = ("CacheDataset", "CacheDatasetV2")


def in_order(dataset: Any, seed: int, epoch: int) -> Any | None:
    """A copy that always has the order of an epoch; itself, where nothing in it is shuffled.

    `None` where it cannot be copied.
    """
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops

    if sum(map(_bytes, chain(dataset))) > _LARGEST:
        return None
    policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    try:
        text = dataset._as_serialized_graph(external_state_policy=policy).numpy()
        if len(text) > _LARGEST:
            return None
        graph = tf.compat.v1.GraphDef.FromString(text)
        given = _give_seeds(graph.node, "{}", seed, epoch)
        for function in graph.library.function:
            given += _give_seeds(function.node_def, "{}:output:0", seed, epoch)
        if not given:
            return dataset
        copy = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    except (tf.errors.OpError, ValueError):
        return None
    return dataset_ops._VariantDataset(copy, dataset.element_spec)


def _give_seeds(nodes: Any, named: str, seed: int, epoch: int) -> int:
    """To every shuffle among the nodes of a graph, which name each other's outputs like that.

    How many there are.
    """
    import tensorflow as tf

    known = {node.name: node for node in nodes}
    kept = _behind([node for node in nodes if node.op in _CACHES], known)
    shuffles = [node for node in nodes if node.op in _SHUFFLES]
    for number, node in enumerate(shuffles):
        own = [_value(known.get(_name(each))) for each in node.input[2:4]]
        anew = node.attr["reshuffle_each_iteration"].b and node.name not in kept
        drawn = np.random.SeedSequence([*(own if any(own) else (seed, 0)), number, epoch * anew])
        node.op = "ShuffleDataset"
        node.attr["reshuffle_each_iteration"].b = False
        del node.input[2:]
        for place, value in enumerate(drawn.generate_state(2)):
            constant = nodes.add(name=f"penstock_seed_{number}_{place}", op="Const")
            constant.attr["dtype"].type = tf.int64.as_datatype_enum
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(int(value) + 1, tf.int64))
            node.input.append(named.format(constant.name))
    return len(shuffles)


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
