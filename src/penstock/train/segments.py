"""A Keras model's graph as a list of calls, and where that list is best cut into segments.

A `Chain` holds the calls in the order in which they run, with nested models opened up. Each
call takes and gives numbered tensors. A segment is a run of calls: what it takes from before it
and what others need of it follows from the numbers. `remat` recomputes segments, `pipeline`
places them on devices.

Cuts lie where few bytes cross: where the graph has one tensor that all else hangs on, such as
the end of a residual block (`narrow`). `cuts` chooses among them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.model.runtime import keras


@dataclass(frozen=True, eq=False)
class Call:
    """One layer or operation at one place. `takes` are numbers by the symbolic tensors' ids."""

    operation: Any
    arguments: Any
    takes: dict[int, int]
    gives: tuple[int, ...]
    within: tuple[Any, ...] = ()  # the nested models that it is in, the outermost first

    def run(self, tensors: dict[int, Any], training: bool) -> None:
        """With the numbered tensors that it takes; what it gives is put beside them."""
        known = {key: tensors[number] for key, number in self.takes.items()}
        args, kwargs = self.arguments.fill_in(known)
        if "training" in getattr(self.operation, "_call_context_args", ()):
            kwargs["training"] = training  # as Keras does, whatever the graph was made with
        outputs = keras().tree.flatten(self.operation(*args, **kwargs))
        tensors.update(zip(self.gives, outputs, strict=True))

    def variables(self) -> list[Any]:
        return list(getattr(self.operation, "variables", ()))


@dataclass(frozen=True, eq=False)
class Segment:
    """Calls that follow one another, what they take from before, and what is needed of them."""

    calls: tuple[Call, ...]
    takes: tuple[int, ...]
    gives: tuple[int, ...]

    def run(self, tensors: dict[int, Any], training: bool) -> dict[int, Any]:
        """The tensors that it gives; those inside it are let go."""
        known = {number: tensors[number] for number in self.takes}
        for call in self.calls:
            call.run(known, training)
        return {number: known[number] for number in self.gives}

    def variables(self) -> list[Any]:
        """Of all its layers, each once."""
        return list({id(one): one for call in self.calls for one in call.variables()}.values())


@dataclass
class Chain:
    """A model's calls in order; `sizes` are bytes of each numbered tensor for one row."""

    calls: list[Call] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    def number(self, tensor: Any) -> int:
        """Of a new tensor."""
        self.sizes.append(_bytes(tensor))
        return len(self.sizes) - 1

    def live(self, position: int) -> set[int]:
        """The numbers that cross a cut before the call at this position."""
        given = {number for call in self.calls[:position] for number in call.gives}
        given.update(self.inputs)
        needed = {number for call in self.calls[position:] for number in call.takes.values()}
        return given & (needed | set(self.outputs))

    def segments(self, cuts: Iterable[int]) -> list[Segment]:
        """Cut before the calls at these positions."""
        edges = [0, *sorted(set(cuts) - {0, len(self.calls)}), len(self.calls)]
        return [self._segment(start, end) for start, end in itertools.pairwise(edges)]

    def _segment(self, start: int, end: int) -> Segment:
        calls = tuple(self.calls[start:end])
        given = {number for call in calls for number in call.gives}
        taken = {number for call in calls for number in call.takes.values()}
        later = {number for call in self.calls[end:] for number in call.takes.values()}
        return Segment(
            calls,
            tuple(sorted(taken - given)),
            tuple(sorted(given & (later | set(self.outputs)))),
        )

    def narrow(self) -> list[int]:
        """Positions that one tensor crosses; all positions, where there are hardly any such."""
        found = []
        for position, live in enumerate(self._crossings(), start=1):
            if len(live - set(self.inputs) - set(self.outputs)) == 1:
                found.append(position)
        return found if len(found) > 1 else list(range(1, len(self.calls)))

    def kept(self, positions: Sequence[int]) -> list[int]:
        """Bytes for a row that cross each position and are not there anyway."""
        always = set(self.inputs) | set(self.outputs)
        wanted = set(positions)
        return [
            sum(self.sizes[number] for number in live - always)
            for position, live in enumerate(self._crossings(), start=1)
            if position in wanted
        ]

    def given(self) -> list[int]:
        """Bytes for a row that each call gives."""
        return [sum(self.sizes[number] for number in call.gives) for call in self.calls]

    def _crossings(self) -> list[set[int]]:
        """What crosses each position but the first, in one pass from the end."""
        needed, found = set(self.outputs), []
        for call in reversed(self.calls[1:]):
            needed = (needed - set(call.gives)) | set(call.takes.values())
            found.append(needed - set(call.gives))
        return found[::-1]


def chain_of(model: Any) -> Chain | None:
    """The calls of a functional or sequential model; None where Python code is in between."""
    graph = graph_of(model)
    if graph is None:
        return None
    chain = Chain()
    chain.inputs = tuple(chain.number(tensor) for tensor in graph.inputs)
    chain.outputs = tuple(_unroll(chain, graph, chain.inputs))
    return chain


def graph_of(model: Any) -> Any | None:
    """The functional model that a model is, or is made of; None where it is not."""
    functional = _functional_class()
    if isinstance(model, keras().Sequential) and type(model).call is keras().Sequential.call:
        model = getattr(model, "_functional", None)
    if isinstance(model, functional) and type(model).call is functional.call:
        return model
    return None


def _unroll(
    chain: Chain, graph: Any, inputs: Sequence[int], within: tuple[Any, ...] = ()
) -> list[int]:
    """Adds a functional model's calls to a chain; the numbers of its outputs."""
    numbers = {id(tensor): number for tensor, number in zip(graph.inputs, inputs, strict=True)}
    for node in _nodes(graph):
        operation, arguments = node.operation, node.arguments
        takes = {id(one): numbers[id(one)] for one in arguments.keras_tensors}
        nested = graph_of(operation)
        told = {name for name, value in arguments.kwargs.items() if value is not None}
        if nested is None or told - {"training"} or len(arguments.args) != 1:
            gives = tuple(chain.number(tensor) for tensor in node.outputs)
            chain.calls.append(Call(operation, arguments, takes, gives, within))
        else:
            entry = tuple(chain.number(tensor) for tensor in nested.inputs)
            enter = _Entry(nested._standardize_inputs)
            inside = (*within, operation)
            chain.calls.append(Call(enter, arguments, takes, entry, inside))
            gives = tuple(_unroll(chain, nested, entry, inside))
        numbers.update({id(one): number for one, number in zip(node.outputs, gives, strict=True)})
    return [numbers[id(tensor)] for tensor in graph.outputs]


@dataclass(frozen=True)
class _Entry:
    """The start of a nested model: its inputs as it wants them."""

    standardize: Callable[[Any], Any]

    def __call__(self, inputs: Any, **_: Any) -> Any:
        return self.standardize(inputs)


def _nodes(graph: Any) -> list[Any]:
    """In the order in which Keras runs them."""
    depths = graph._nodes_by_depth
    nodes = [node for depth in sorted(depths, reverse=True) for node in depths[depth]]
    return [node for node in nodes if node.operation and not node.is_input]


def _functional_class() -> Any:
    import keras.src.models.functional as module

    return module.Functional


def _bytes(tensor: Any) -> int:
    """Of one row: the first axis is the batch, and other unknown ones count as one."""
    count = 1
    for length in tensor.shape[1:]:
        count *= length or 1
    width = "".join(letter for letter in tensor.dtype if letter.isdigit())
    return int(count * max(int(width or 8) // 8, 1))
