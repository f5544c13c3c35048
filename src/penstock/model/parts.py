"""Parts of a graph, and how they are put together: preprocess, the model itself, postprocess.

    what callers send ──▶ preprocess ──▶ model ──▶ postprocess ──▶ what callers get

A `Part` is a function on lists of tensors with named specs on both sides, the rows axis included.
`trace` finds out what a function returns, `join` puts one part behind another, `accept` makes a
part take what callers send, and `graph_of` makes the `Graph` of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import ModelLoadError
from penstock.model.graph import Graph
from penstock.model.runtime import tf
from penstock.model.structure import leaves_of, output_names, passing
from penstock.spec import DTYPES, MAX_TENSORS, Signature, TensorSpec

Tensors = list[Any]
Specs = tuple[Any, ...]  # of tf.TensorSpec, with names


@dataclass(frozen=True)
class Part:
    """A function on tensors: what it takes, what it returns, and what must stay alive for it."""

    call: Callable[[Tensors], Tensors]
    inputs: Specs
    outputs: Specs
    what: str  # how errors name it
    keep: object = None
    stateful: str = ""


def trace(
    function: Callable[..., Any],
    inputs: Specs,
    what: str,
    like: Callable[..., Any] | None = None,
) -> Part:
    """A part of a function that TensorFlow can trace; traced once to see what it returns.

    One with branches on tensors has to be a `tf.function`: nothing else is converted by AutoGraph.
    It takes the parameters of the function that it is `like`.
    """
    call = passing(function, [spec.name for spec in inputs], like)
    names: list[str] = []

    def listed(*tensors: Any) -> Tensors:
        returned = call(list(tensors))
        names[:] = output_names(returned)
        leaves = zip(names, leaves_of(returned), strict=True)
        return [_dense(leaf, name, what) for name, leaf in leaves]

    try:
        traced = tf.function(listed, autograph=False).get_concrete_function(
            *(tf.TensorSpec(spec.shape, spec.dtype) for spec in inputs)
        )
    except ModelLoadError:
        raise
    except Exception as error:
        error.add_note(f"{what}, traced with {_described(inputs)}")
        raise
    if not names:
        raise ModelLoadError(f"{what} returns no tensors")
    outputs = named_specs(zip(names, traced.structured_outputs, strict=True), what)
    return Part(lambda tensors: leaves_of(call(tensors)), inputs, outputs, what, function)


def named_specs(named: Any, what: str) -> Specs:
    """Specs with names, from pairs of a name and anything with a shape and a dtype."""
    specs: list[Any] = []
    for name, tensor in named:
        _check_dense(tensor, name, what)
        if not hasattr(tensor, "shape") or not hasattr(tensor, "dtype"):
            raise ModelLoadError(f"{what}: {name!r} is a {type(tensor).__name__}, not a tensor")
        specs.append(tf.TensorSpec(tensor.shape, tensor.dtype, name))
    return tuple(specs)


def _dense(leaf: Any, name: str, what: str) -> Any:
    _check_dense(leaf, name, what)
    try:
        return tf.convert_to_tensor(leaf)
    except (TypeError, ValueError):
        raise ModelLoadError(
            f"{what}: expected a tensor or a dict of tensors back, got {type(leaf).__name__}"
        ) from None


def _check_dense(leaf: Any, name: str, what: str) -> None:
    spec = isinstance(leaf, tf.TypeSpec) and not isinstance(leaf, tf.TensorSpec)
    if spec or isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        label = f"{name!r} of {what}" if name else what
        raise ModelLoadError(
            f"{label}: a {type(leaf).__name__} cannot be sent; make it dense "
            "(.to_tensor(), tf.sparse.to_dense) in the model or in postprocess"
        )


# ── putting parts together ─────────────────────────────────────────────────────────────────────


def join(first: Part, second: Part) -> Part:
    """The second part behind the first. Dtypes are cast, shapes must fit."""
    order = _matched(first, second)
    for index, wanted in zip(order, second.inputs, strict=True):
        _check_fit(first, first.outputs[index], second, wanted)

    def call(tensors: Tensors) -> Tensors:
        made = first.call(tensors)
        handed = zip(order, second.inputs, strict=True)
        return second.call([_fitted(made[index], wanted) for index, wanted in handed])

    keep = (first.keep, second.keep)
    stateful = first.stateful or second.stateful
    return Part(call, first.inputs, second.outputs, second.what, keep, stateful)


def accept(part: Part, sent: Specs) -> Part:
    """The part, taking what callers send: perhaps other dtypes, names, or fewer open sizes."""
    callers = Part(lambda tensors: tensors, sent, sent, "what callers send")
    inputs = list(sent)
    joined = join(callers, part)
    for index, wanted in zip(_matched(callers, part), part.inputs, strict=True):
        shape = sent[index].shape.merge_with(wanted.shape)
        name = sent[index].name or wanted.name
        inputs[index] = tf.TensorSpec(shape, sent[index].dtype, name)
    return replace(joined, inputs=tuple(inputs))


def promise(part: Part, declared: Specs) -> Part:
    """The part, returning what was declared of its outputs; raises where that cannot be."""
    made = {spec.name: spec for spec in part.outputs}
    if made.keys() != {spec.name for spec in declared}:
        raise ModelLoadError(
            f"the outputs are declared as {_listed([spec.name for spec in declared])}; "
            f"{part.what} gives {_listed(list(made))}"
        )
    for spec in declared:
        if made[spec.name].dtype != spec.dtype:
            raise ModelLoadError(
                f"an output is declared as {_text(spec)}; {part.what}: {_text(made[spec.name])}"
            )
    callers = Part(lambda tensors: tensors, declared, declared, "what is declared of the outputs")
    joined = join(part, callers)
    shapes = [spec.shape.merge_with(made[spec.name].shape) for spec in declared]
    outputs = zip(declared, shapes, strict=True)
    return replace(
        joined,
        what=part.what,
        outputs=tuple(tf.TensorSpec(shape, spec.dtype, spec.name) for spec, shape in outputs),
    )


def _matched(first: Part, second: Part) -> list[int]:
    """For each input of the second part, the number of the first part's output."""
    given = [spec.name for spec in first.outputs]
    wanted = [spec.name for spec in second.inputs]
    if len(given) == len(wanted) == 1:
        return [0]
    if sorted(given) == sorted(wanted):
        return [given.index(name) for name in wanted]
    if given == [f"output_{number}" for number in range(len(wanted))]:
        return list(range(len(wanted)))
    raise ModelLoadError(
        f"{second.what} takes {_listed(wanted)}; {first.what} gives {_listed(given)}"
    )


def _check_fit(first: Part, given: Any, second: Part, wanted: Any) -> None:
    castable = given.dtype == wanted.dtype or tf.string not in (given.dtype, wanted.dtype)
    if castable and given.shape.is_compatible_with(wanted.shape):
        return
    label = f"input {wanted.name!r} of {second.what}" if wanted.name else second.what
    raise ModelLoadError(f"{label} takes {_text(wanted)}; {first.what}: {_text(given)}")


def _fitted(tensor: Any, wanted: Any) -> Any:
    if tensor.dtype != wanted.dtype:
        tensor = tf.cast(tensor, wanted.dtype)
    if wanted.shape.rank is None:
        return tensor
    mine = [None] * wanted.shape.rank if tensor.shape.rank is None else tensor.shape.as_list()
    sizes = zip(mine, wanted.shape.as_list(), strict=True)
    if any(its is not None and size is None for size, its in sizes) or tensor.shape.rank is None:
        return tf.ensure_shape(tensor, wanted.shape)
    return tensor


# ── our own signatures ─────────────────────────────────────────────────────────────────────────


def specs_of(signature: Signature) -> Specs:
    """What somebody declared, as TensorFlow says it."""
    return tuple(
        tf.TensorSpec([None, *tensor.shape], tf.as_dtype(tensor.dtype), tensor.name)
        for tensor in signature
    )


def graph_of(part: Part, key: str) -> Graph:
    """The graph of the whole. Raises `ModelLoadError` for tensors that cannot be sent."""
    inputs = tuple(_row(spec, "input", part.what) for spec in part.inputs)
    outputs = tuple(_row(spec, "output", part.what) for spec in part.outputs)
    for side, tensors in (("inputs", inputs), ("outputs", outputs)):
        names = [tensor.name for tensor in tensors]
        if len(set(names)) < len(names) or len(names) > MAX_TENSORS:
            raise ModelLoadError(
                f"{part.what}: expected 1 to {MAX_TENSORS} {side} of different names, got {names}"
            )
    call = tf.autograph.experimental.do_not_convert(part.call)
    return Graph(call, inputs, outputs, part.keep, key, part.stateful)


def _row(spec: Any, side: str, what: str) -> TensorSpec:
    label = f"{side} {spec.name!r} of {what}" if spec.name else f"the {side} of {what}"
    if spec.dtype.name not in DTYPES:
        raise ModelLoadError(f"{label}: dtype {spec.dtype.name} cannot be sent")
    if spec.shape.rank is None:
        raise ModelLoadError(
            f"{label}: the number of its axes is not known; declare it: "
            f"Model(…, {side}s=…) with ({spec.dtype.name!r}, row shape)"
        )
    if spec.shape.rank == 0:
        raise ModelLoadError(f"{label} is a single {spec.dtype.name}: it has no axis for rows")
    if spec.shape[0] is not None:
        raise ModelLoadError(
            f"{label}: its first axis is {spec.shape[0]} long whatever the number of rows; "
            "the first axis must be rows"
        )
    return TensorSpec(spec.dtype.name, spec.shape.as_list()[1:], spec.name)


def _text(spec: Any) -> str:
    if spec.shape.rank is None:
        return f"{spec.dtype.name} of unknown shape"
    sizes = ["any" if size is None else str(size) for size in spec.shape.as_list()]
    if sizes and spec.shape[0] is None:
        sizes[0] = "rows"
    return f"{spec.dtype.name} ({', '.join(sizes)})"


def _described(specs: Specs) -> str:
    return ", ".join(f"{spec.name} {_text(spec)}".strip() for spec in specs)


def _listed(names: Sequence[str]) -> str:
    if list(names) == [""]:
        return "one tensor"
    return f"{len(names)} ({', '.join(map(repr, names))})"
