"""The function that the workers run, and the requests that clients make of it.

A row is a number that no other request has and some random bytes; its answer is that number, a
checksum over both, and for odd sizes the bytes mirrored, which makes answers that do not fit the
room that slots leave for them at first.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Few enough for rows of the same size to meet in a batch; now and then another one is drawn.
SIZES = (0, 1, 64, 1000, 4097, 65_536, 150_528, 1_000_000)
_WEIGHTS = (1, 4, 8, 8, 4, 4, 4, 1)


def checksum(inputs: dict[str, Array]) -> dict[str, Array]:
    """Answer a batch: the model."""
    numbers, data = inputs["number"], inputs["data"]
    sums = np.array(
        [
            zlib.crc32(row.tobytes(), int(number) & 0xFFFF_FFFF)
            for number, row in zip(numbers, data, strict=True)
        ],
        np.uint32,
    )
    answer = {"number": numbers, "sum": sums}
    if data.shape[1] % 2:
        answer["mirror"] = data[:, ::-1]
    return answer


def draw_size(chance: np.random.Generator) -> int:
    """A size for the data of a request."""
    if chance.random() < 0.05:
        return int(chance.integers(1, 200_000))
    weights = np.array(_WEIGHTS) / sum(_WEIGHTS)
    return int(chance.choice(SIZES, p=weights))


def is_right(number: int, data: Array, answer: dict[str, Array]) -> bool:
    """Whether this is the answer to that request: a row of each output."""
    return (
        int(answer["number"]) == number
        and int(answer["sum"]) == zlib.crc32(data.tobytes(), number & 0xFFFF_FFFF)
        and (len(data) % 2 == 0 or np.array_equal(answer["mirror"], data[::-1]))
    )
