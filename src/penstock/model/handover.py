"""Arrays to TensorFlow and back, without copying where that is possible.

An array of the worker's becomes a tensor that lies where the array lies (DLPack), if TensorFlow can
use it there: contiguous, writable, and at a multiple of 64 bytes, without which TensorFlow aborts
the process. Everything else is copied. A tensor's array lies where the tensor lies; so a model that
returns its input returns the batch buffer itself, to be read before the next batch is gathered.
"""

from __future__ import annotations

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


def to_tensor(array: Array) -> Any:
    """A tensor with the array's contents; the array must not change while it is used."""
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
