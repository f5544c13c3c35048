"""How far a model's answers in another precision are from those in float32.

A number's drift is measured as `agreement` does it: the difference, divided by the number's own
size plus the average size of the output that it is in. For an output that looks like a classifier's
(one row of scores), the share of rows whose largest score is in the same place is told too: that is
what most people care about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from penstock.model.agreement import shares_off
from penstock.transport.tensors import Array


@dataclass(frozen=True)
class Drift:
    """The largest and the mean drift over all outputs; `same_class` of rows, where there are any.

    `math.inf` where answers are infinite or no numbers, and float32's are not.
    """

    largest: float
    mean: float
    same_class: float | None
    rows: int

    def to_json(self) -> dict[str, Any]:
        """As facts tell it; JSON knows no infinity."""
        told = asdict(self)
        return {k: "inf" if v == math.inf else v for k, v in told.items()}

    def __str__(self) -> str:
        if self.largest == math.inf:
            return "answers that are infinite or no numbers, where float32 has numbers"
        text = f"drift {self.largest:.2g} at most, {self.mean:.2g} on average"
        if self.same_class is not None:
            text += f", the same class for {100 * self.same_class:.4g} % of {self.rows} rows"
        return text


def drift_of(got: Sequence[Array], wanted: Sequence[Array]) -> Drift:
    """Of these outputs from those, which have the same shapes and dtypes."""
    largest, means, same = 0.0, [], None
    for ours, theirs in zip(got, wanted, strict=True):
        if theirs.dtype.kind in "SUO":
            off = (ours != theirs).astype(np.float64)
        else:
            off = shares_off(ours, theirs)
        if off.size:
            largest = max(largest, float(off.max()))
            means.append(float(off.mean()))
        if same is None and theirs.ndim == 2 and theirs.shape[1] > 1 and theirs.dtype.kind != "O":
            same = float(np.mean(ours.argmax(axis=1) == theirs.argmax(axis=1)))
    return Drift(largest, max(means, default=0.0), same, len(wanted[0]))
