"""A call of TensorFlow's on arrays, and its errors as whoever sent the rows may read them.

Arrays are padded here, too, where a device has not done so when it gathered them.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from penstock.errors import DeviceMemoryError
from penstock.model.handover import to_array, to_tensor
from penstock.model.modes import Run
from penstock.model.runtime import tf
from penstock.model.shortage import leaves_no_room
from penstock.transport.tensors import Array

_OURS = re.compile(r"\{\{function_node [^}]*\}\}\s*|\[Op:StatefulPartitionedCall\]( name:)?")


def ran(run: Run, arrays: list[Any]) -> list[Array]:
    """What comes out of a function. Raises `DeviceMemoryError` where it does not fit."""
    try:
        return [to_array(tensor) for tensor in run([to_tensor(array) for array in arrays])]
    except tf.errors.OpError as error:
        if leaves_no_room(error):
            raise DeviceMemoryError(_plainer(error).message.splitlines()[0]) from None
        raise _plainer(error) from None


def _plainer(error: Any) -> Any:
    """The same error, without the names that only we have given."""
    text = _OURS.sub("", error.message).strip()
    return type(error)(error.node_def, error.op, text)


def padded(array: Array, size: int) -> Array:
    """With the first row again and again, up to this size."""
    missing = np.repeat(array[:1], size - len(array), axis=0)
    return np.concatenate([array, missing])


def blank(array: Array, rows: int) -> Array:
    """So many rows of the same kind, of nothing."""
    blank: Array = np.zeros((rows, *array.shape[1:]), array.dtype)
    if array.dtype == object:
        blank[...] = b""
    return blank
