"""What a traced graph does besides computing: the operations in it that matter to us.

Functions that the graph calls are looked into as well, those that it only holds are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from penstock.model.runtime import tf

_CHANGES = re.compile(
    r"Assign\w*|Resource(Sparse)?Apply\w*|ResourceScatter\w*|ResourceStridedSliceAssign"
    r"|ResourceCountUpTo|Scatter(Nd)?(Add|Sub|Update|Mul|Div|Min|Max)|Apply[A-Z]\w*"
    r"|LookupTable(Insert|Import|Remove)\w*|Queue(Enqueue|Dequeue)\w*|IteratorGetNext\w*"
)
_DRAWS = re.compile(
    r"Random(Uniform|UniformInt|StandardNormal|Shuffle|Gamma|Poisson)\w*|Multinomial"
    r"|(Parameterized)?TruncatedNormal|Stateful(Uniform|StandardNormal|TruncatedNormal|Random)\w*"
    r"|Rng(ReadAndSkip|Skip)\w*|SampleDistortedBoundingBox\w*"
)
_CHECKS = re.compile(r"Assert|CheckNumerics(V2)?")
_LOOKS_UP = re.compile(r"(Resource)?Gather(V2|Nd)?")
_HALF = frozenset((tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum))
_STRING = frozenset((tf.string.as_datatype_enum,))


class Operations:
    """The operations of a concrete function."""

    def __init__(self, function: Any) -> None:
        self._nodes = list(_reachable(function.graph.as_graph_def()))

    def hidden_state(self) -> str:
        """Why one run may change what the next one answers, or ""."""
        for node in self._nodes:
            if _CHANGES.fullmatch(node.op):
                return f"its graph changes variables or other state ({node.op})"
            if _DRAWS.fullmatch(node.op):
                return f"its graph draws random numbers ({node.op})"
        return ""

    def has_strings(self) -> bool:
        """Whether strings are computed with: XLA knows none, and may abort the process."""
        return any(node.op != "Const" and _has(node, _STRING) for node in self._nodes)

    def has_checks(self) -> bool:
        """Whether the model checks its numbers itself: XLA drops such checks."""
        return any(_CHECKS.fullmatch(node.op) for node in self._nodes)

    def looks_up(self) -> bool:
        """Whether rows of tables are read by index: XLA takes any index, TensorFlow on CPUs not."""
        return any(_LOOKS_UP.fullmatch(node.op) for node in self._nodes)

    def has_half_precision(self) -> bool:
        """Whether something is computed in 16 bits."""
        return any(_has(node, _HALF) for node in self._nodes)


def _reachable(graph: Any) -> Iterator[Any]:
    library = {function.signature.name: function for function in graph.library.function}
    pending = [graph.node]
    while pending:
        for node in pending.pop():
            yield node
            for value in node.attr.values():
                for named in (value.func, *value.list.func):
                    if named.name in library:
                        pending.append(library.pop(named.name).node_def)


def _has(node: Any, kinds: frozenset[int]) -> bool:
    return any(
        value.type in kinds or any(kind in kinds for kind in value.list.type)
        for value in node.attr.values()
    )
