"""Whether weights are numbers: all are looked at in one call, and waited for once.

One by one, each of some hundred weights would have the device wait for the host several times.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from penstock.model.runtime import tf
from penstock.train.tracing import traced


class Soundness:
    """Of a run's weights. They are traced where they are looked at again: once is sooner done."""

    def __init__(self) -> None:
        self._weights: list[Any] | None = None
        self._function: Any = None

    def look(self, weights: Sequence[Any]) -> Any:
        """For each of the weights whether all of it is finite, as a tensor: nothing waits."""
        before = self._weights
        # A callback may have layers learn that did not, or the other way round.
        if before is None or [*map(id, weights)] != [*map(id, before)]:
            self._weights, self._function = list(weights), None
            return _finite(weights)
        if self._function is None:
            self._function = traced(functools.partial(_finite, before))
        return self._function()

    def spoilt(self, found: Any) -> str | None:
        """The path of the first weights that are no numbers. `found`: by the last look."""
        assert self._weights is not None
        told = zip(self._weights, found.numpy(), strict=True)
        return next((str(weight.path) for weight, sound in told if not sound), None)


def _finite(weights: Sequence[Any]) -> Any:
    """Each is looked at where it lies: what travels is one truth value of it. One after another
    there, for each takes memory while it is looked at: a byte a number."""
    found = []
    last: dict[Any, Any] = {}
    for each in weights:
        variable = each.value
        device = variable.device
        with tf.device(device), tf.control_dependencies([last[device]] if device in last else []):
            floats = tf.as_dtype(variable.dtype).is_floating
            finite = tf.math.is_finite(tf.convert_to_tensor(variable)) if floats else True
            last[device] = tf.reduce_all(finite)
        found.append(last[device])
    return tf.stack(found) if found else tf.zeros((0,), tf.bool)
