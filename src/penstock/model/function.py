"""A plain Python function (or an instance of a class) on numpy arrays as something to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from penstock.config import DEFAULT_BATCH
from penstock.errors import ConfigError, InputError, ModelError, ModelLoadError
from penstock.model.digest import code_digest, text_digest
from penstock.spec import MAX_TENSORS, ModelSpec, Signature, TensorSpec, refuse_mask
from penstock.transport.tensors import Array, dtype_name, encode_strings


class Runnable(Protocol):
    """A loaded model: what the worker's device runs."""

    spec: ModelSpec
    batched: bool
    device: str  # what TensorFlow runs it on, "CPU" or "GPU"; "" for what is not TensorFlow's
    changed: bool  # whether its facts are others than those that were told

    @property
    def max_batch(self) -> int:
        """The rows of the largest batch that it was loaded for."""

    def __call__(self, inputs: Any, rows: int) -> tuple[Signature, list[Array]]:
        """Run on an array or a dict of arrays; returns the outputs with as many rows.

        Raises whatever the model raises, and `ModelError` for outputs that cannot be sent.
        """

    def padded(self, rows: int) -> int:
        """The size that so many rows are run at; rows that are missing repeat the first one."""

    def warm_up(self) -> bool:
        """Get ready what may come later; called once, in a thread beside the one that serves.

        Returns whether the facts are others now.
        """

    def facts(self) -> dict[str, Any]:
        """What is known of it, for people and for the scheduler; can be written as JSON."""


class Function:
    """A Python callable. A class is instantiated first: that is where it loads what it needs."""

    device = ""
    changed = False

    def __init__(
        self, target: Any, spec: ModelSpec, max_batch: int, batched: bool, source: str
    ) -> None:
        self._content = text_digest(source, code_digest(target))
        if isinstance(target, type):
            target = target()
        if not callable(target):
            raise ModelLoadError(f"{source} is a {type(target).__name__}, which cannot be called")
        self._target: Callable[[Any], Any] = target
        self._seen: dict[tuple[np.dtype[Any], tuple[int, ...]], Signature] = {}
        self.spec = spec
        self.max_batch = max_batch or DEFAULT_BATCH
        self.batched = batched

    def __call__(self, inputs: Any, rows: int) -> tuple[Signature, list[Array]]:
        """Call it and check what comes back."""
        outputs = self._target(inputs)
        if type(outputs) is np.ndarray and outputs.flags.c_contiguous and outputs.ndim:
            signature = self._seen.get((outputs.dtype, outputs.shape[1:]))
            if signature is not None and len(outputs) == rows:
                return signature, [outputs]
        signature, arrays = check_outputs(outputs, rows)
        self.spec.check_outputs(signature)
        if type(outputs) is np.ndarray and arrays[0] is outputs:
            if len(self._seen) > 1024:
                self._seen.clear()
            self._seen[outputs.dtype, outputs.shape[1:]] = signature
        return signature, arrays

    def padded(self, rows: int) -> int:
        """A Python function runs on what there is."""
        return rows

    def warm_up(self) -> bool:
        """There is nothing to warm up: it is not called without rows of a caller's."""
        return False

    def facts(self) -> dict[str, Any]:
        """Only what the settings say."""
        unbatched = "" if self.batched else "the settings say so (batched=False)"
        return {
            "mode": "python",
            "ladder": [],
            "latency": {},
            "unbatched": unbatched,
            "content": self._content,
        }


def check_outputs(outputs: Any, rows: int) -> tuple[Signature, list[Array]]:
    """A model's outputs as contiguous arrays with a signature. Raises `ModelError`."""
    named = list(outputs.items()) if isinstance(outputs, Mapping) else [("", outputs)]
    names = {str(name) for name, _ in named}
    if not named or len(names) < len(named) or len(named) > MAX_TENSORS:
        raise ModelError(
            f"expected 1 to {MAX_TENSORS} outputs of different names, got {[n for n, _ in named]}"
        )
    tensors: list[TensorSpec] = []
    arrays: list[Array] = []
    for name, value in named:
        label = f"output {name!r}" if name else "the output"
        if value is None or isinstance(value, (str, bytes, tuple)):
            raise ModelError(
                f"{label}: expected an array (or a dict of arrays), got {type(value).__name__}"
            )
        array = np.asarray(value)
        if array.dtype.kind in "SU" and not hasattr(value, "dtype"):
            array = np.asarray(value, dtype=object)  # fixed-width texts lose nuls at their end
        if array.ndim == 0 or len(array) != rows:
            got = "a scalar" if array.ndim == 0 else f"{len(array)}"
            raise ModelError(f"{label}: expected {rows} rows, as many as came in, got {got}")
        try:
            refuse_mask(value, label)
            dtype = dtype_name(array.dtype, label)
            if dtype == "string":
                array = encode_strings(array, label)
        except InputError as error:
            raise ModelError(str(error)) from None
        try:
            tensors.append(TensorSpec(dtype, array.shape[1:], str(name)))
        except ConfigError as error:
            raise ModelError(f"{label}: {error}") from None
        arrays.append(np.ascontiguousarray(array, array.dtype.newbyteorder("=")))
    return tuple(tensors), arrays
