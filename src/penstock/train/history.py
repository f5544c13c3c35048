"""What `fit` returns: Keras' history, the trained model, and what was chosen on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class History:
    """Like `keras.callbacks.History`: `history` has a list for each metric, a value an epoch.

    `model` is the trained model. `report` says what was chosen and where the time went; it is of
    plain values, so `json.dumps` takes it.
    """

    model: Any = None
    history: dict[str, list[float]] = field(default_factory=dict)
    epoch: list[int] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        last = {name: values[-1] for name, values in self.history.items() if values}
        return f"History({len(self.epoch)} epochs, last {last})"
