"""What callbacks remember from one epoch to the next, kept in checkpoints.

Keras' callbacks have no word in that, and forget everything when training begins: a run that is
taken up again would have all its patience anew. What its own ones remember is listed here. One of
a user's own has it kept where it has `get_state()`, which returns what JSON can hold, and
`set_state(state)`, which is called after `on_train_begin`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.errors import ConfigError
from penstock.model.runtime import keras

PREFIX = "callbacks/"  # of arrays in a checkpoint
_KNOWN = {
    "EarlyStopping": ("wait", "best", "best_epoch", "stopped_epoch"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    # After an epoch the model has the averages, and the next one begins with swapping them back.
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "ModelCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
}
_WEIGHTS = "best_weights"

Arrays = dict[str, np.ndarray[Any, Any]]


def remembered(callbacks: Sequence[Any]) -> tuple[dict[str, Any], Arrays]:
    """By the callback's class, and its number among several: what JSON can hold, and arrays."""
    told: dict[str, Any] = {}
    arrays: Arrays = {}
    for name, each in _named(callbacks):
        if _has_own(each):
            told[name] = each.get_state()
            continue
        told[name] = {known: _plain(getattr(each, known, None)) for known in _attributes(each)}
        for number, array in enumerate(getattr(each, _WEIGHTS, None) or ()):
            arrays[f"{PREFIX}{name}/{number}"] = np.asarray(array)
    return told, arrays


def recall(callbacks: Sequence[Any], told: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """As they were. Callbacks of which nothing was kept begin anew."""
    for name, each in _named(callbacks):
        if name not in told:
            continue
        if _has_own(each):
            each.set_state(told[name])
            continue
        for known in _attributes(each):
            if known in told[name]:
                setattr(each, known, told[name][known])
        begin = f"{PREFIX}{name}/"
        numbers = sorted(int(key.removeprefix(begin)) for key in arrays if key.startswith(begin))
        if numbers:
            setattr(each, _WEIGHTS, [arrays[f"{begin}{number}"] for number in numbers])


def _named(callbacks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Those that remember something: `EarlyStopping`, `EarlyStopping-2`."""
    seen: dict[str, int] = {}
    for each in callbacks:
        if not _has_own(each) and not _attributes(each):
            continue
        kind = type(each).__name__
        seen[kind] = seen.get(kind, 0) + 1
        yield kind if seen[kind] == 1 else f"{kind}-{seen[kind]}", each


def _has_own(callback: Any) -> bool:
    has = [callable(getattr(callback, name, None)) for name in ("get_state", "set_state")]
    if any(has) and not all(has):
        raise ConfigError(
            f"{type(callback).__name__}: expected both get_state and set_state, or neither"
        )
    return all(has)


def _attributes(callback: Any) -> tuple[str, ...]:
    for name, attributes in _KNOWN.items():
        if isinstance(callback, getattr(keras().callbacks, name)):
            return attributes
    return ()


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, (np.generic, np.ndarray)) else value
