"""Arrays to TensorFlow and back, without copying where that is possible.

An array of the worker's becomes a tensor that lies where the array lies (DLPack), if TensorFlow can
use it there: contiguous, writable, and at a multiple of 64 bytes, without which TensorFlow aborts
the process. Everything else is copied. A tensor's array lies where the tensor lies; so a model that
returns its input returns the batch buffer itself, to be read before the next batch is gathered.

Memory of a GPU's becomes a tensor likewise (`on_device`). TensorFlow keeps 32-bit integers on the
host, whatever device uses them, so those are not put there.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from penstock.model.runtime import tf
from penstock.transport.tensors import ALIGNMENT, Array, address_of, dtype_name, numpy_dtype

# What numpy can export; the others numpy does not know, or are strings.
_SHARED = frozenset(
    numpy_dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)
_BFLOAT16 = numpy_dtype("bfloat16")
_from_dlpack = tf.experimental.dlpack.from_dlpack


class OnDevice:
    """Rows that lie in a GPU's memory, where whoever made this has put them and keeps them."""

    __slots__ = ("ndim", "shape", "tensor")

    def __init__(self, tensor: Any, shape: tuple[int, ...]) -> None:
        self.tensor = tensor
        self.shape = shape
        self.ndim = len(shape)

    def __len__(self) -> int:
        return self.shape[0]


def to_tensor(array: Array | OnDevice) -> Any:
    """A tensor with the array's contents; the array must not change while it is used."""
    if isinstance(array, OnDevice):
        return array.tensor
    if shareable(array):
        if array.dtype in _SHARED:
            return _from_dlpack(array.__dlpack__())
        if array.dtype == _BFLOAT16:
            bits = _from_dlpack(array.view(np.uint16).__dlpack__())
            return tf.bitcast(bits, tf.bfloat16)
    return tf.convert_to_tensor(array, dtype_of(dtype_name(array.dtype)))


def shareable(array: Array) -> bool:
    """Whether TensorFlow can use the array's memory as it is."""
    return (
        array.flags.c_contiguous
        and array.flags.writeable
        and array.size > 0
        and address_of(array) % ALIGNMENT == 0
    )


def to_array(tensor: Any) -> Array:
    """The tensor's contents, where they are; strings as an object array of bytes."""
    return np.asarray(tensor)


def dtype_of(name: str) -> Any:
    """TensorFlow's dtype of one of our names."""
    return tf.dtypes.as_dtype(name)


# ── a GPU's memory, as DLPack describes it ─────────────────────────────────────────────────────


class _Tensor(ctypes.Structure):
    """`DLManagedTensor` of DLPack 0: where the bytes are, and of which kind."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("axes", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_CUDA = 2
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5}
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def stays_on_device(dtype: np.dtype[Any]) -> bool:
    """Whether TensorFlow uses tensors of this dtype where a GPU has them."""
    return dtype == _BFLOAT16 or (dtype.kind in _CODES and dtype != np.dtype(np.int32))


def gathered(array: Array) -> Array | OnDevice:
    """The array where a worker would have it when it runs a batch: on the GPU, if there is one."""
    if not stays_on_device(array.dtype) or not tf.config.list_logical_devices("GPU"):
        return array
    with tf.device("/GPU:0"):
        return OnDevice(tf.identity(to_tensor(array)), array.shape)


# What TensorFlow reads of a tensor until that is gone, by where it lies. It may go long after its
# Python object has: only TensorFlow knows when, and says so.
_described: dict[int, Any] = {}


def _gone(place: int) -> None:
    _described.pop(place, None)


_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_gone)


def on_device(
    pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any], kind: int = _CUDA
) -> OnDevice:
    """A tensor that lies at this place in the memory of the GPU; the caller keeps the memory."""
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    described = _Tensor(
        data=pointer,
        device_type=kind,
        axes=len(shape),
        code=4 if dtype == _BFLOAT16 else _CODES[dtype.kind],
        bits=dtype.itemsize * 8,
        lanes=1,
        shape=ctypes.addressof(sizes),
        deleter=ctypes.cast(_deleter, ctypes.c_void_p),
    )
    place = ctypes.addressof(described)
    _described[place] = described, sizes
    try:
        return OnDevice(_from_dlpack(_new_capsule(place, b"dltensor", None)), shape)
    except BaseException:
        _gone(place)
        raise
