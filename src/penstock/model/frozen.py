"""Frozen graphs that are the same in every process, down to the names of their functions.

XLA's compiled programs can be kept between starts (`xla_cache`), under a key that has the name of
the compiled function in it. TensorFlow ends such names with a number that counts what was traced
before, so a second start would find nothing. Here a frozen graph is written down (`Written`) and
read again, also at the first start, and whatever is traced from it is numbered by its content.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tensorflow.python.framework import ops

from penstock.model.runtime import tf

_numbering = threading.RLock()
_FAR = 1 << 61  # from here on no count of TensorFlow's own gets
_EACH = 1 << 20  # numbers for what is traced under one seed


class Written(NamedTuple):
    """A frozen graph as bytes, with the names of its inputs and outputs."""

    data: bytes
    feeds: list[str]
    fetches: list[str]

    @property
    def checksum(self) -> str:
        """Of the bytes."""
        return hashlib.sha256(self.data).hexdigest()


def write_down(function: Any) -> Written:
    """A concrete function without variables."""
    data = function.graph.as_graph_def().SerializeToString(deterministic=True)
    feeds = [tensor.name for tensor in function.inputs]
    return Written(data, feeds, [tensor.name for tensor in function.outputs])


def read_again(written: Written, specs: Sequence[Any], checksum: str) -> Any:
    """The function that was written down."""
    definition = tf.compat.v1.GraphDef()
    definition.ParseFromString(written.data)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def function(*tensors: Any) -> Any:
        return tf.graph_util.import_graph_def(
            definition,
            input_map=dict(zip(written.feeds, tensors, strict=True)),
            return_elements=written.fetches,
            name="",
        )

    with numbered(checksum):
        return function.get_concrete_function(*specs)


@contextlib.contextmanager
def numbered(seed: str) -> Iterator[None]:
    """What this thread traces meanwhile is numbered by the seed, in every process alike."""
    digest = hashlib.sha256(seed.encode()).digest()
    numbers = itertools.count(_FAR + int.from_bytes(digest[:5], "big") * _EACH)
    mine = threading.get_ident()
    with _numbering:
        counted = ops.uid
        ops.uid = lambda: next(numbers) if threading.get_ident() == mine else counted()
        try:
            yield
        finally:
            ops.uid = counted
