"""From values, as files and Python hold them, to rows of arrays of one dtype and shape."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from penstock.data.chunk import Array, Fault
from penstock.errors import ConfigError, InputError
from penstock.spec import DTYPES, STRING, Signature, TensorSpec, refuse_mask, tensor_spec

Features = Mapping[str, TensorSpec]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of one of our names; strings are objects."""
    return np.dtype(object if name == STRING else getattr(ml_dtypes, name, name))


_iinfo: Any = ml_dtypes.iinfo  # which has no types
_NAMES = {numpy_dtype(name): name for name in DTYPES if name != STRING}


def spec_of(array: Array, name: str = "") -> TensorSpec:
    """What the rows of an array look like. Raises `InputError` for dtypes that no model takes."""
    label = f"column {name!r}" if name else "the array"
    if array.ndim == 0:
        raise InputError(f"{label}: expected rows along the first axis, got a scalar")
    if array.dtype.kind in "SUTO":
        return TensorSpec(STRING, array.shape[1:], name)
    dtype = _NAMES.get(array.dtype.newbyteorder("="))
    if dtype is None:
        raise InputError(f"{label}: dtype {array.dtype} is none of {', '.join(DTYPES)}")
    return TensorSpec(dtype, array.shape[1:], name)


def native(array: Array) -> Array:
    """In this machine's byte order, with texts as objects: `str`, or `bytes` for `S`."""
    if array.dtype.kind in "SUT":
        return array.astype(object)
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array


def features_of(value: Any) -> dict[str, TensorSpec]:
    """`{"x": ("float32", (3,)), "id": "string"}` as specs."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"features: expected a dict of name: (dtype, row shape) or name: dtype, got {value!r}"
        )
    found = {
        str(name): tensor_spec((spec, ()) if isinstance(spec, str) else spec, str(name))
        for name, spec in value.items()
    }
    for name, spec in found.items():
        if None in spec.shape:
            raise ConfigError(f"features: {name!r}: expected rows of one shape, got {spec}")
    return found


def chosen(names: Sequence[str], columns: Iterable[str] | None, where: str) -> tuple[str, ...]:
    """The columns to read: those asked for, which must exist, or all of them."""
    if len(set(names)) < len(names):
        raise InputError(f"{where}: two columns of one name in {names}")
    if columns is None:
        return tuple(names)
    wanted = (columns,) if isinstance(columns, str) else tuple(columns)
    missing = [name for name in wanted if name not in names]
    if missing:
        raise InputError(f"{where} has no column {', '.join(map(repr, missing))}; it has {names}")
    return wanted


def blank(spec: TensorSpec, rows: int, text: Any = "") -> Array:
    """Rows of zeros, or of empty texts."""
    array = np.zeros((rows, *spec.sizes), numpy_dtype(spec.dtype))
    if spec.dtype == STRING:
        array.fill(text)
    return array


def infer(values: Iterable[Any], name: str) -> TensorSpec:
    """The spec of the first of some values; whole numbers give way to fractions in others.

    Whole numbers that no dtype of such holds together stay those of int64: the others do not fit.
    """
    shape: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None
    negative = False
    for value in values:
        if value is None:
            continue
        if shape is None or dtype is None:
            array = as_array(value)
            shape, dtype = array.shape, array.dtype
            negative = _is_negative(array)
        elif dtype.kind in "iuf":
            with contextlib.suppress(ValueError):  # it will fail when it is read
                array = as_array(value)
                negative = negative or _is_negative(array)
                dtype = _promoted(dtype, array.dtype, negative)
    if shape is None or dtype is None:
        return TensorSpec(STRING, (), name)
    return spec_of(np.empty((0, *shape), dtype), name)


def _is_negative(array: Array) -> bool:
    return array.dtype.kind == "i" and bool((array < 0).any())


def _promoted(one: np.dtype[Any], other: np.dtype[Any], negative: bool) -> np.dtype[Any]:
    if other.kind not in "iuf":
        return one
    both: np.dtype[Any] = np.promote_types(one, other)
    if both.kind == "f" and one.kind in "iu" and other.kind in "iu":  # int64 and uint64
        return np.dtype(np.int64 if negative else np.uint64)
    return both


def as_array(value: Any) -> Array:
    """A value as an array; texts stay objects, because numpy's lose nuls at their end."""
    array = np.asarray(value) if not isinstance(value, (str, bytes)) else np.empty((), object)
    if isinstance(value, (str, bytes)):
        array[()] = value
    elif array.dtype.kind in "SU":
        array = np.asarray(value, object)
    return array


def stack(
    values: Sequence[Any], spec: TensorSpec, faults: dict[int, Fault], out: Array | None = None
) -> Array:
    """Values as rows of one array. One that does not fit becomes a fault and leaves zeros."""
    target = blank(spec, len(values)) if out is None else out[: len(values)]
    try:
        _place(target, values, spec)
    except (ValueError, TypeError, OverflowError):
        for row, value in enumerate(values):
            try:
                _place(target[row : row + 1], [value], spec)
            except (ValueError, TypeError, OverflowError) as error:
                target[row] = "" if spec.dtype == STRING else 0
                faults.setdefault(row, _fault(value, spec, error))
    return target


def _place(target: Array, values: Sequence[Any], spec: TensorSpec) -> None:
    refuse_mask(values)
    array = _objects(values, target.shape) if spec.dtype == STRING else np.asarray(values)
    if array.shape != target.shape:
        raise ValueError("shape")
    if array.dtype != target.dtype and not _fits(array, target.dtype):
        raise TypeError("type")
    if lost(array, target.dtype).any():
        raise OverflowError("too large")
    target[...] = array


def _objects(values: Sequence[Any], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(values), object)
    array[:] = values
    if len(shape) > 1:
        array = np.array(list(values), object)
    flat = array.ravel().tolist()
    if not all(isinstance(item, (str, bytes)) for item in flat):
        raise TypeError("type")
    return array


def _fits(array: Array, dtype: np.dtype[Any]) -> bool:
    """Casts that keep the meaning: between numbers, not from fractions to whole ones."""
    if array.size == 0:
        return True
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        info = np.iinfo(dtype)
        return bool(array.min() >= info.min and array.max() <= info.max)
    if array.dtype.kind == "b":
        return dtype.kind == "b"
    if array.dtype.kind not in "iufc" and array.dtype not in _NAMES:
        return False
    return dtype.kind == "c" or (dtype.kind in "fV" and array.dtype.kind != "c")


def lost(array: Array, dtype: np.dtype[Any]) -> Array:
    """True where a number would become another one as one of this dtype: too large, or no whole
    one. Fractions may lose digits."""
    if array.dtype == dtype or not _is_number(array.dtype) or not _is_number(dtype):
        return np.zeros(array.shape, bool)
    if _is_whole(array.dtype) and array.dtype.kind == "V":
        array = array.astype(np.int8)  # numpy compares and computes with that
    if not _is_whole(dtype):
        return _overflows(array, dtype)
    info = _iinfo(dtype)
    if array.dtype.kind not in "iu":
        array = array.astype(np.float64, copy=False)  # the smallest of them do not hold the limits
    outside: Array = ~((array >= info.min) & (array < info.max + 1))
    return outside | (array != np.trunc(array)) if array.dtype.kind == "f" else outside


def _overflows(array: Array, dtype: np.dtype[Any]) -> Array:
    """True where a number is finite, and would not be as a fraction of this dtype."""
    if _largest(array.dtype) <= _largest(dtype):
        return np.zeros(array.shape, bool)
    with np.errstate(over="ignore", invalid="ignore"):
        bad: Array = np.isfinite(array) & ~np.isfinite(array.astype(dtype))
    return bad


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuf" or (dtype.kind == "V" and dtype in _NAMES)


def _is_whole(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" or dtype in (ml_dtypes.int4, ml_dtypes.uint4)


def _largest(dtype: np.dtype[Any]) -> float:
    limits: Any = _iinfo if _is_whole(dtype) else ml_dtypes.finfo
    return float(limits(dtype).max)


def _fault(value: Any, spec: TensorSpec, error: Exception) -> Fault:
    label = f"{spec.name!r}: " if spec.name else ""
    wanted = f"{spec.dtype} {spec.shape}" if spec.shape else spec.dtype
    if value is None:
        return Fault("null", f"{label}expected {wanted}, got nothing")
    try:
        refuse_mask(value)
        array = as_array(value)
    except InputError as masked:
        return Fault("type", f"{label}{masked}")
    except ValueError:
        return Fault("shape", f"{label}expected {wanted}, got rows of different lengths")
    got = str(array.dtype)
    if array.dtype == object:
        strange = (item for item in array.flat if not isinstance(item, (str, bytes)))
        got = type(next(strange, "")).__name__.replace("str", "text")
    if array.shape != spec.shape:
        return Fault("shape", f"{label}expected {wanted}, got {got} {array.shape}")
    shown = repr(value)
    shown = shown if len(shown) <= 40 else shown[:40] + "…"
    return Fault("type", f"{label}expected {wanted}, got {got} {shown}")


def same_columns(first: Signature, other: Signature, where: str) -> None:
    """Raise `InputError` unless a file's columns are those of the first one."""
    if first != other:
        texts = [{spec.name: str(spec) for spec in signature} for signature in (first, other)]
        raise InputError(
            f"{where}: expected the columns of the first file {texts[0]}, got {texts[1]}"
        )
