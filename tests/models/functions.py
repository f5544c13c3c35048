"""Models for tests: plain functions, found by workers as "…/functions.py:name".

Those that wait do so for a *gate*: a file whose path is in the data. `started` beside it says that
somebody is waiting there.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

_GATE_LIMIT = 40.0


def identity(x: Any) -> Any:
    """What came in."""
    return x


def doubled(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Twice what came in."""
    return x + x


def checksum(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The sum of each row's bytes."""
    rows = np.ascontiguousarray(x).reshape(len(x), -1).view(np.uint8)
    return rows.sum(axis=1, dtype=np.uint64)


def where(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The worker's process and the size of the batch, for each row."""
    return np.full((len(x), 2), (os.getpid(), len(x)), np.int64)


def described(inputs: dict[str, Any]) -> dict[str, Any]:
    """Several inputs, several outputs of other kinds."""
    image, size, label = inputs["image"], inputs["size"], inputs["label"]
    words = [text.decode() for text in label]
    return {
        "mean": image.reshape(len(image), -1).mean(axis=1).astype(np.float32),
        "label": np.array([f"{word}!" for word in words], object),
        "area": size[:, 0] * size[:, 1],
        "shape": np.full((len(image), image.ndim - 1), image.shape[1:], np.int32),
    }


def repeated(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Each word as often as its length says: answers grow with what they hold."""
    return np.array([word * len(word) for word in words], object)


def grown(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Answers much larger than their questions."""
    return np.repeat(x.reshape(len(x), 1), 10_000, axis=1)


def as_long_as_told(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Outputs whose shape depends on what is in the first row."""
    return np.zeros((len(x), int(x[0])), np.float32)


def boxes(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers in a box of the size that a row says; boxes of different sizes are no batch."""
    return np.stack([np.arange(a * b * c, dtype=np.uint8).reshape(a, b, c) for a, b, c in x])


def picky(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Raises when a number is negative."""
    if (x < 0).any():
        raise ValueError(f"negative: {x.min()}")
    return x * 2


def wordy(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Raises with a very long message."""
    raise ValueError("long " * 4_000)


def one_short(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A row less than it should."""
    return x[:-1]


def nothing(x: Any) -> None:
    """Forgets to return."""


def many(x: np.ndarray[Any, Any]) -> dict[str, Any]:
    """More outputs than can be described."""
    return {f"output {number}": x for number in range(100)}


def strange(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A dtype that cannot be sent."""
    return np.zeros(len(x), "datetime64[s]")


def gated(inputs: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Waits at the gates in the data, writes down who ran, and returns the tags."""
    gates, tags = inputs["gate"], inputs["tag"]
    for gate, tag in zip(gates, tags, strict=True):
        if not gate:
            continue
        path = Path(os.fsdecode(gate))
        with open(path.parent / "started", "a") as file:
            file.write(f"{tag}\n")
        _wait_for(path)
    for gate, tag in zip(gates, tags, strict=True):
        if gate:
            with open(Path(os.fsdecode(gate)).parent / "order", "a") as file:
                file.write(f"{tag}\n")
    return np.asarray(tags)


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + _GATE_LIMIT
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody opened {path}")
        time.sleep(0.001)


class Counting:
    """Remembers how many rows it has seen: its rows are not independent."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The running number of each row."""
        first = self.seen
        self.seen += len(x)
        return np.arange(first, self.seen)


class Unloadable:
    """Cannot be made."""

    def __init__(self) -> None:
        raise FileNotFoundError("weights.bin is not there")
