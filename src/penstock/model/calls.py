"""Calls of TensorFlow's on arrays, in the mode that was chosen for a model.

The function for a batch is found by the shapes of its inputs, and kept. Where answers of a size are
sooner on the host when they are fetched there, they are (`find_way_out`). A call that does not fit
into the device's memory is made once more when no other goes on, of any model (`traffic`). Errors
are told as whoever sent the rows may read them.

Arrays are padded here, too, where a device has not done so when it gathered them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from penstock.errors import DeviceMemoryError
from penstock.model import pace
from penstock.model.handover import to_array, to_tensor
from penstock.model.modes import Modes, Run, Shapes, shapes_of
from penstock.model.runtime import tf
from penstock.model.shortage import leaves_no_room
from penstock.model.traffic import Traffic
from penstock.transport.tensors import Array

_OURS = re.compile(r"\{\{function_node [^}]*\}\}\s*|\[Op:StatefulPartitionedCall\]( name:)?")
_TIMED = 0.1  # seconds of measuring one way out
_CLEARLY = 0.97
_KEPT = 256
_traffic = Traffic()  # of all models of this process: they share the device


class Calls:
    """Of one model, in the mode that `take` was told. Several threads may make them at a time."""

    def __init__(self, modes: Modes, short: Callable[[int], None]) -> None:
        """`short` is told how many rows did not fit into the device's memory, even alone."""
        self.modes = modes
        self.mode = ""
        self._short = short
        self._runs: dict[Shapes, Run] = {}
        self._fetched: set[Shapes] = set()  # of these sizes answers are fetched after the call

    def take(self, modes: Modes, mode: str) -> None:
        """From now on calls are made in this mode."""
        self.modes, self.mode = modes, mode
        self._runs.clear()

    def __call__(self, arrays: list[Any]) -> list[Array]:
        """What comes out. Raises `DeviceMemoryError` where it does not fit, even alone."""
        shapes = shapes_of(arrays)
        run = self._runs.get(shapes)
        if run is None:
            land = self.modes.lands and shapes not in self._fetched
            run = self.modes.run(self.mode, shapes, land)
            if len(self._runs) >= _KEPT:
                self._runs.clear()
            self._runs[shapes] = run
        try:
            with _traffic.among_others():
                return ran(run, arrays)
        except DeviceMemoryError:
            pass  # perhaps only because others were running
        try:
            with _traffic.alone():
                return ran(run, arrays)
        except DeviceMemoryError as error:
            rows = len(arrays[0])
            self._short(rows)
            raise DeviceMemoryError(
                f"a batch of {rows} rows needs more memory than the device has left: {error}"
            ) from None

    def find_way_out(self, arrays: list[Any]) -> None:
        """Whether answers of this size are sooner on the host when they are fetched there.

        A copy inside the call costs a little, and is worth it when the next call follows at once.
        """
        if not self.modes.lands:
            return
        shapes = shapes_of(arrays)
        seconds: dict[bool, float] = {}
        for land in (True, False):
            call = partial(ran, self.modes.run(self.mode, shapes, land), arrays)
            try:
                call()
                together = pace.in_flight(call, enough=_TIMED)
            except DeviceMemoryError:
                return  # so many of them do not fit; one at a time does
            seconds[land] = together + pace.alone(call, enough=_TIMED)
        if seconds[False] < _CLEARLY * seconds[True]:
            self._fetched.add(shapes)
        self._runs.pop(shapes, None)


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
