"""The ways to compile a graph, each as something that runs tensors.

| mode | what it is |
|---|---|
| function | `tf.function`; every variable is an argument of every call |
| frozen | its variables turned into constants (`convert_variables_to_constants_v2`) |
| xla | the function, compiled by XLA (`jit_compile=True`) |
| frozen-xla | the frozen function, compiled by XLA |

A graph is traced once, with the number of rows and all open sizes left open, and frozen once: what
comes out runs at any size, as fast as if it had been made for that size, and holds the weights once
(each frozen function has a copy of them). XLA compiles for exact sizes: it has a function for each
of them around the one that was traced. Only a graph that cannot be traced with open sizes is traced
for each size, in every mode.

On a GPU the outputs are copied to the host inside the call, unless a caller wants to fetch them
itself: the copy belongs to the batch then, and does not wait for the next one.

Functions are called through `StatefulPartitionedCall`: a tenth of what calling the Python object of
a concrete function costs. That does not compile by XLA what it calls, only what is called inside.

XLA raises nothing while it runs: it drops a model's own checks (`Assert`), and takes any index into
a table. And it may abort the process, at strings for one.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from penstock.model import xla_cache
from penstock.model.frozen import Written, numbered, read_again, write_down
from penstock.model.graph import Graph
from penstock.model.handover import dtype_of
from penstock.model.runtime import tf

Run = Callable[[list[Any]], list[Any]]
Shapes = tuple[tuple[int | None, ...], ...]  # of all inputs, with rows as the first axis

_KEPT = 128
_LANDED = " to host"
_call = tf.raw_ops.StatefulPartitionedCall


class Modes:
    """Every mode of one graph, made when it is first asked for. Safe to use from two threads."""

    def __init__(self, graph: Graph, frozen: Bound | None = None) -> None:
        self._graph = graph
        self.open: Shapes = tuple((None, *tensor.shape) for tensor in graph.inputs)
        self._lock = threading.RLock()
        self._runs: OrderedDict[tuple[str, Shapes], Bound] = OrderedDict()
        self._traceable_open = frozen is not None
        self.lands = bool(tf.config.list_logical_devices("GPU"))  # outputs go to the host
        self._lasting = xla_cache.used()  # XLA's programs are kept for the next start
        self.needs_sizes = ""  # why the graph cannot be traced with open sizes, if it cannot
        if frozen is not None:
            self._runs["frozen", self.open] = frozen

    def run(self, mode: str, shapes: Shapes, land: bool | None = None) -> Run:
        """What runs tensors of these shapes in that mode. Raises what TensorFlow raises.

        `land`: whether it copies the outputs to the host; it does, where they are not there anyhow.
        """
        with self._lock:
            if not mode.endswith("xla"):
                shapes = self._traceable(shapes)
            land = self.lands if land is None else land
            return self._bound(f"{mode}{_LANDED}" if land else mode, shapes)

    def traced(self, shapes: Shapes) -> Any:
        """The concrete function of mode `function`, to be looked into."""
        with self._lock:
            return self._bound("function", self._traceable(shapes)).function

    def frozen(self) -> Bound | None:
        """The frozen graph with open sizes, if there is one."""
        with self._lock:
            return self._runs.get(("frozen", self.open))

    def settle(self, mode: str) -> None:
        """From here on only this mode is wanted: let go of what the others hold."""
        with self._lock:
            inside = {"frozen-xla": "frozen", "xla": "function"}.get(mode, mode)
            for kind, shapes in list(self._runs):
                if kind.removesuffix(_LANDED) not in (mode, inside):
                    del self._runs[kind, shapes]
            frozen = self.frozen()
            if inside == "frozen" and frozen is not None and not frozen.rest:
                self._graph = dataclasses.replace(self._graph, call=_let_go, keep=None, at=Graph.at)

    def _traceable(self, shapes: Shapes) -> Shapes:
        """The shapes to trace with: open, unless that fails."""
        if self._traceable_open:
            return self.open
        if not self.needs_sizes:
            try:
                self._bound("function", self.open)
            except Exception as error:
                self.needs_sizes = f"{type(error).__name__}: {error}"
            else:
                self._traceable_open = True
                return self.open
        return shapes

    def _bound(self, mode: str, shapes: Shapes) -> Bound:
        known = self._runs.get((mode, shapes))
        if known is not None:
            self._runs.move_to_end((mode, shapes))
            return known
        if mode == "function":
            made = Bound(self._trace(shapes))
        elif mode == "frozen":
            made = _freeze(self._bound("function", shapes).function)
            if self._lasting and not made.rest:
                made = reread(write_down(made.function), self._specs(shapes))
        elif mode.endswith(_LANDED):
            made = self._land(self._bound(mode.removesuffix(_LANDED), shapes), shapes)
        else:
            inside = "frozen" if mode == "frozen-xla" else "function"
            made = self._compile(self._bound(inside, self._traceable(shapes)), shapes)
        self._runs[mode, shapes] = made
        if len(self._runs) > _KEPT:
            self._runs.popitem(last=False)
        return made

    def _trace(self, shapes: Shapes) -> Any:
        call = self._graph.call

        @tf.function  # type: ignore[untyped-decorator]
        def function(*tensors: Any) -> Any:
            return call(list(tensors))

        return function.get_concrete_function(*self._specs(shapes))

    def _compile(self, inner: Bound, shapes: Shapes) -> Bound:
        @tf.function(autograph=False, jit_compile=True)  # type: ignore[untyped-decorator]
        def compiled(*tensors: Any) -> Any:
            return inner(list(tensors))

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def outer(*tensors: Any) -> Any:
            return compiled(*tensors)

        if not inner.checksum:
            return Bound(outer.get_concrete_function(*self._specs(shapes)))
        with numbered(f"{inner.checksum} {shapes}"):
            return Bound(outer.get_concrete_function(*self._specs(shapes)))

    def _land(self, inner: Bound, shapes: Shapes) -> Bound:
        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def outer(*tensors: Any) -> Any:
            return _on_host(inner(list(tensors)))

        return Bound(outer.get_concrete_function(*self._specs(shapes)))

    def _specs(self, shapes: Shapes) -> list[Any]:
        return [
            tf.TensorSpec(shape, dtype_of(tensor.dtype), f"input_{index}")
            for index, (shape, tensor) in enumerate(zip(shapes, self._graph.inputs, strict=True))
        ]


def _on_host(tensors: Sequence[Any]) -> list[Any]:
    with tf.device("/CPU:0"):
        return [tf.identity(tensor) for tensor in tensors]


def _let_go(tensors: list[Any]) -> list[Any]:
    raise AssertionError("the model was frozen and let go of")


def shapes_of(arrays: Sequence[Any]) -> Shapes:
    """The shapes of these inputs."""
    return tuple(array.shape for array in arrays)


class Bound:
    """A concrete function with all that it needs besides the rows: variables, tables.

    It may be called inside a function that is being traced, too.
    """

    def __init__(self, function: Any, rest: Sequence[Any] | None = None) -> None:
        self.checksum = ""  # of a graph that is the same in every process
        self.written: Written | None = None  # that graph, until it is kept
        self.function = function
        self.rest = list(function.captured_inputs if rest is None else rest)
        self._outputs = [tensor.dtype for tensor in function.outputs]

    def __call__(self, tensors: list[Any]) -> list[Any]:
        """Run it."""
        return list(_call(args=tensors + self.rest, Tout=self._outputs, f=self.function))


def reread(written: Written, specs: Sequence[Any]) -> Bound:
    """A graph that was written down, in this process or in an earlier one."""
    checksum = written.checksum
    bound = Bound(read_again(written, specs, checksum))
    bound.checksum = checksum
    bound.written = written
    return bound


def _freeze(function: Any) -> Bound:
    frozen = convert_variables_to_constants_v2(function, lower_control_flow=False)
    outside = {inner.name: outer for outer, inner in function.graph.captures}
    rest = [outside[tensor.name] for tensor in frozen.inputs if tensor.name in outside]
    return Bound(frozen, rest)
