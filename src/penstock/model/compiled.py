"""A TensorFlow model as something to run: a batch of rows goes in, as many come out.

How it gets ready, and which sizes are warm, is `preparation`'s affair. Until all are, a batch runs
at the next larger size that is warm; the functions that run it are found by `calls`.

Where sizes are compiled (XLA) or chosen for by the device (GPUs), batches are padded to the sizes
of the ladder. On CPUs without XLA one function runs any number of rows: 17 rows of MobileNetV2 take
28 ms, and 47 ms when they are padded to 32. There nothing is padded unless the settings name a
ladder, and the facts' ladder is empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.config import Model
from penstock.errors import DeviceMemoryError, ModelError
from penstock.model.calls import Calls, blank, padded
from penstock.model.graph import Graph
from penstock.model.modes import Bound, Modes
from penstock.model.preparation import Preparation
from penstock.model.rungs import Rungs
from penstock.spec import ModelSpec, Signature, TensorSpec
from penstock.transport.tensors import Array, dtype_name, numpy_dtype

_log = logging.getLogger(__name__)
_KEPT = 256


class Compiled:
    """A model that runs in the mode that suits it best. A `Runnable`."""

    def __init__(
        self,
        graph: Graph,
        model: Model,
        frozen: Bound | None = None,
        *,
        thorough: bool = False,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`thorough`: measure sizes also where a worker would not, as `tune` does."""
        self.spec = ModelSpec(graph.inputs, graph.outputs)
        self.changed = False
        self._names = [tensor.name for tensor in graph.inputs]
        self._outputs = graph.outputs
        self._signatures: dict[tuple[Any, ...], Signature] = {}
        self._calls = Calls(Modes(graph, frozen), self._shorten)
        self._rungs = Rungs()
        self._preparation = Preparation(
            graph, model, self._calls, self._rungs, frozen, thorough=thorough, tell=tell
        )
        self._preparation.start(graph)
        self.batched = self._preparation.batched
        self.cached = self._preparation.cached
        self.device = self._preparation.device

    @property
    def max_batch(self) -> int:
        """The largest size that it was made ready for."""
        return self._rungs.sizes[-1]

    def __call__(self, inputs: Any, rows: int) -> tuple[Signature, list[Array]]:
        """Run a batch; one that is not of a size of the ladder is padded first."""
        arrays = [inputs[name] for name in self._names] if isinstance(inputs, dict) else [inputs]
        if rows == 0:
            return self._nothing(arrays)
        if rows > self._rungs.most:
            raise DeviceMemoryError(
                f"a batch of {rows} rows: the device has memory for {self._rungs.most}"
            )
        size = self.padded(rows)
        if size != rows:
            arrays = [padded(array, size) for array in arrays]
        outputs = self._calls(arrays)
        for output in outputs:
            if output.ndim == 0 or len(output) != size:
                got = "a scalar" if output.ndim == 0 else f"{len(output)}"
                raise ModelError(f"expected {size} rows, as many as came in, got {got}")
        if size != rows:
            outputs = [output[:rows] for output in outputs]
        return self._signature(outputs), outputs

    def padded(self, rows: int) -> int:
        """The next size that is warm; the rows themselves where any size can be run."""
        return self._rungs.padded(rows)

    def _signature(self, outputs: list[Array]) -> Signature:
        kind = tuple((output.dtype, output.shape[1:]) for output in outputs)
        known = self._signatures.get(kind)
        if known is None:
            if len(outputs) != len(self._outputs):
                raise ModelError(f"expected {len(self._outputs)} outputs, got {len(outputs)}")
            known = tuple(
                TensorSpec(dtype_name(output.dtype), output.shape[1:], tensor.name)
                for output, tensor in zip(outputs, self._outputs, strict=True)
            )
            self.spec.check_outputs(known)
            if len(self._signatures) >= _KEPT:
                self._signatures.clear()
            self._signatures[kind] = known
        return known

    def _nothing(self, arrays: list[Array]) -> tuple[Signature, list[Array]]:
        """No rows: nothing is run, unless only a run can tell the outputs' sizes."""
        signature = self._outputs
        if any(None in tensor.shape for tensor in signature):
            if self._rungs.warm:
                arrays = [blank(array, self._rungs.warm[0]) for array in arrays]
            signature = self._signature(self._calls(arrays))
        return signature, [
            np.empty((0, *tensor.sizes), numpy_dtype(tensor.dtype)) for tensor in signature
        ]

    def _shorten(self, size: int) -> None:
        """A batch of this size did not fit into the device's memory: from now on only smaller ones.

        The batch itself is taken apart by whoever runs it.
        """
        self._rungs.shorten(size)
        self.changed = True
        _log.warning(
            "out of memory at a batch of %d rows: at most %d from now on", size, self._rungs.most
        )
        self._preparation.cut()

    def warm_up(self) -> bool:
        """The sizes in between, in a thread beside the one that serves; then `keep`."""
        return self._preparation.warm_up()

    def keep(self) -> None:
        """Keep for the next start what this one has made."""
        self._preparation.keep()

    @property
    def remembered_at(self) -> str:
        """The file that the findings are kept in; "" where they are not."""
        return self._preparation.remembered_at

    def facts(self) -> dict[str, Any]:
        """How it is compiled and how long sizes take (nanoseconds)."""
        return self._preparation.facts()
