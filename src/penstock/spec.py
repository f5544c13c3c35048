"""What goes into a model and what comes out: names, dtypes and shapes. Knows no numpy.

A `TensorSpec` describes *one row* of a tensor; the rows axis itself is never part of a shape. A
`Signature` is a tuple of `TensorSpec`s with every size known: what one request really carries. A
`ModelSpec` is what a model declares; its sizes may be open (`None`).

The client checks a call's signature against the model's spec to give a good error; the engine
checks it again, because it believes no client.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from penstock.errors import ConfigError, InputError, ModelError

STRING = "string"

# name -> (code in messages, bytes an element). Codes are part of the protocol: never renumber.
DTYPES: dict[str, tuple[int, int]] = {
    "bool": (1, 1),
    "int8": (2, 1),
    "int16": (3, 2),
    "int32": (4, 4),
    "int64": (5, 8),
    "uint8": (6, 1),
    "uint16": (7, 2),
    "uint32": (8, 4),
    "uint64": (9, 8),
    "float16": (10, 2),
    "float32": (11, 4),
    "float64": (12, 8),
    "complex64": (13, 8),
    "complex128": (14, 16),
    "bfloat16": (15, 2),
    "float8_e4m3fn": (16, 1),
    "float8_e5m2": (17, 1),
    "int4": (18, 1),
    "uint4": (19, 1),
    STRING: (20, 0),
}
DTYPE_OF_CODE = {code: name for name, (code, _) in DTYPES.items()}

MAX_RANK = 16
MAX_TENSORS = 64
MAX_NAME_BYTES = 256
_MOST_PAD_BYTES = 50_000  # of all of a model's: a client is told of them in one message


class _Tensor(NamedTuple):
    dtype: str
    shape: tuple[int | None, ...] = ()
    name: str = ""


class TensorSpec(_Tensor):
    """One row of a tensor: dtype, shape without the rows axis (`None`: any size), name.

    The name "" means that the caller gave, or the function returned, a bare array. A tuple, because
    signatures are looked up for every request and tuples are hashed fast.
    """

    __slots__ = ()

    def __new__(cls, dtype: str, shape: Iterable[int | None] = (), name: str = "") -> TensorSpec:
        """Checked, with the shape as a tuple."""
        sizes = tuple(shape)
        if dtype not in DTYPES:
            raise ConfigError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
        if len(sizes) > MAX_RANK:
            raise ConfigError(f"{len(sizes)} axes in {sizes}; at most {MAX_RANK}")
        if any(size is not None and size < 0 for size in sizes):
            raise ConfigError(f"a negative size in the shape {sizes}")
        if len(name.encode()) > MAX_NAME_BYTES:
            raise ConfigError(f"a tensor's name has more than {MAX_NAME_BYTES} bytes")
        return super().__new__(cls, dtype, sizes, name)

    def __str__(self) -> str:
        sizes = ", ".join("any" if size is None else str(size) for size in ("rows", *self.shape))
        return f"{self.dtype} ({sizes})"

    @property
    def elements(self) -> int:
        """How many elements a row has. Only where every size is known."""
        return math.prod(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, where every size is known."""
        assert None not in self.shape, "a size is open"
        return cast("tuple[int, ...]", self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row; 0 for strings, whose size is not in their type."""
        return self.elements * DTYPES[self.dtype][1]

    def admits(self, other: TensorSpec) -> bool:
        """Whether a tensor of that dtype and shape (with known sizes) fits this spec."""
        return (
            self.dtype == other.dtype
            and len(self.shape) == len(other.shape)
            and all(
                mine is None or mine == its
                for mine, its in zip(self.shape, other.shape, strict=True)
            )
        )


Signature = tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a model declares of its tensors. `None`: it does not say, anything may come."""

    inputs: Signature | None = None
    outputs: Signature | None = None

    def check(self, signature: Signature) -> None:
        """Raise `InputError` unless the model takes tensors of these names, dtypes and shapes."""
        if self.inputs is None:
            return
        if len(signature) == 1 and signature[0].name == "":
            if len(self.inputs) != 1:
                raise InputError(
                    f"the model has {len(self.inputs)} inputs ({_names(self.inputs)}): "
                    "pass a dict of arrays; got one array"
                )
            _check_tensor(self.inputs[0], signature[0])
            return
        given = {tensor.name: tensor for tensor in signature}
        wanted = {tensor.name: tensor for tensor in self.inputs}
        missing = [name for name in wanted if name not in given]
        extra = [name for name in given if name not in wanted]
        if missing or extra:
            faults = [f"missing {', '.join(map(repr, missing))}"] if missing else []
            faults += [f"unknown {', '.join(map(repr, extra))}"] if extra else []
            raise InputError(
                f"inputs do not match: {' and '.join(faults)}; expected {_names(self.inputs)}"
            )
        for name, tensor in wanted.items():
            _check_tensor(tensor, given[name])

    def check_outputs(self, signature: Signature) -> None:
        """Raise `ModelError` unless the model returned what it declares."""
        if self.outputs is None:
            return
        wanted = {tensor.name: tensor for tensor in self.outputs}
        given = {tensor.name: tensor for tensor in signature}
        if wanted.keys() != given.keys():
            raise ModelError(
                f"the model declares the outputs {_names(self.outputs)} "
                f"and returned {_names(signature)}"
            )
        for name, tensor in wanted.items():
            if not tensor.admits(given[name]):
                label = f"output {name!r}" if name else "the output"
                raise ModelError(f"{label}: the model declares {tensor}, returned {given[name]}")


@dataclass(frozen=True, slots=True)
class Pad:
    """An axis of an input that is padded, so that rows of different lengths share batches.

    `axis` is of a row (the rows axis not counted), `sizes` are what it is padded to, with `value`.
    `mask` and `lengths` name inputs of the model that are made from the rows: which elements are
    real, and how many. The same axis of the outputs in `trim` ("" for the only one) is cut back to
    the longest row of the call. `input` may be left out when the model has only one.
    """

    sizes: Any
    input: str = ""
    axis: int = 0
    value: Any = 0
    mask: str = ""
    lengths: str = ""
    trim: Any = ()

    def __post_init__(self) -> None:
        sizes = (self.sizes,) if isinstance(self.sizes, int) else tuple(self.sizes)
        if not sizes or any(type(size) is not int or size < 1 for size in sizes):
            raise ConfigError(f"pad: sizes are whole numbers from 1 on; got {self.sizes!r}")
        if type(self.axis) is not int or not 0 <= self.axis < MAX_RANK:
            raise ConfigError(f"pad: axis is 0 to {MAX_RANK - 1}, of a row; got {self.axis!r}")
        if (self.mask or self.lengths) and not self.input:
            raise ConfigError(
                "pad: a model with a mask or lengths has several inputs: name `input`"
            )
        trim = (self.trim,) if isinstance(self.trim, str) else tuple(self.trim)
        object.__setattr__(self, "sizes", tuple(sorted(set(sizes))))
        object.__setattr__(self, "trim", trim)


def pads_of(value: Any) -> tuple[Pad, ...]:
    """What people write of padding: one `Pad`, several, or what JSON makes of them."""
    given = [value] if isinstance(value, (Pad, Mapping)) else list(value or ())
    pads: list[Pad] = []
    for pad in given:
        try:
            pads.append(pad if isinstance(pad, Pad) else Pad(**pad))
        except TypeError as error:
            raise ConfigError(f"pad: expected a Pad, got {pad!r} ({error})") from None
    if len({pad.input for pad in pads}) < len(pads):
        raise ConfigError("pad: two Pads for one input; one axis of an input can be padded")
    size = len(json.dumps([dataclasses.asdict(pad) for pad in pads], default=str))
    if size > _MOST_PAD_BYTES:
        raise ConfigError(
            f"pad: expected what fits one message, {_MOST_PAD_BYTES} bytes as JSON; got {size} of "
            f"them, with {sum(len(pad.sizes) for pad in pads)} sizes: name fewer, farther apart"
        )
    return tuple(pads)


def _names(signature: Signature) -> str:
    return ", ".join(repr(tensor.name) for tensor in signature)


def _check_tensor(wanted: TensorSpec, given: TensorSpec) -> None:
    if not wanted.admits(given):
        label = f"input {wanted.name!r}" if wanted.name else "the input"
        raise InputError(f"{label}: expected {wanted}, got {given}{_way_out(wanted, given)}")


def _way_out(wanted: TensorSpec, given: TensorSpec) -> str:
    """What to do about the two most common mistakes."""
    if STRING in (wanted.dtype, given.dtype):
        return ""
    if wanted.admits(TensorSpec(wanted.dtype, given.shape)):
        return f"; convert it with .astype({wanted.dtype!r})"
    if len(given.shape) == len(wanted.shape) - 1:
        return "; the first axis is rows: a single row x is passed as x[None]"
    return ""


def tensor_spec(value: Any, name: str = "") -> TensorSpec:
    """A `TensorSpec` from what people write: one, or `("float32", (224, 224, 3))`."""
    if isinstance(value, TensorSpec):
        return TensorSpec(value.dtype, value.shape, name or value.name)
    if (
        isinstance(value, Sequence)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], Sequence)
    ):
        return TensorSpec(value[0], tuple(value[1]), name)
    raise ConfigError(
        f"a tensor is a TensorSpec or a pair (dtype, row shape), for example "
        f"('float32', (224, 224, 3)); got {value!r}"
    )


def signature_of(value: Any) -> Signature | None:
    """What a model declares, from what people write: one tensor, or a dict of them, or `None`."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        if not value:
            raise ConfigError("an empty dict declares no tensors; leave it out instead")
        return tuple(tensor_spec(tensor, str(name)) for name, tensor in value.items())
    if isinstance(value, TensorSpec):
        return (value,)
    if isinstance(value, tuple) and value and all(isinstance(t, TensorSpec) for t in value):
        return value
    return (tensor_spec(value),)


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str, what: str) -> str:
    """Names of engines and models become file names and labels: keep them plain."""
    if not _NAME.fullmatch(str(name)):
        raise ConfigError(
            f"{what} {name!r}: expected 1 to 64 of letters, digits, '.', '_' and '-', "
            "beginning with a letter or a digit"
        )
    return name


def refuse_mask(value: Any, label: str = "") -> None:
    """What lies below a mask is not meant to be computed with."""
    masks = sys.modules.get("numpy.ma")  # takes 10 ms to load, and whoever has a mask has done so
    if masks is None:
        return
    for array in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(array, masks.MaskedArray) and masks.is_masked(array):
            raise InputError(
                f"{label}{': ' if label else ''}expected an array without a mask, got one whose "
                "values are masked in part; give those values first, for example with .filled(0)"
            )
