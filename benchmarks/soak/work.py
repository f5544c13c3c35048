"""What the workers run and what clients ask of it: a function, and fresh random data.

A row is a number that no other request has and some random bytes; its answer is that number, a
checksum over both, and for odd sizes the bytes mirrored, which makes answers that do not fit the
room that slots leave for them at first.

`Work` is what a client needs to know of any model; `digits` has another one.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]

# Few enough for rows of the same size to meet in a batch; now and then another one is drawn.
SIZES = (0, 1, 64, 1000, 4097, 65_536, 150_528, 1_000_000)
_WEIGHTS = (1, 4, 8, 8, 4, 4, 4, 1)
_WHOLE = 3 << 20  # bytes that one call carries at most


class Work(Protocol):
    """Requests that can be checked. A row is whatever `draw` gives for it."""

    def draw(self, chance: np.random.Generator, most: int) -> Array:
        """Rows for one call, fewer than `most`."""

    def inputs(self, numbers: list[int], rows: Array) -> Any:
        """What the model gets for these rows: the same axis first."""

    def row_of(self, whole: Any, at: int) -> Any:
        """One row of a call's inputs or outputs."""

    def is_right(self, number: int, row: Any, answer: Any) -> bool:
        """Whether this is the answer to that request."""

    def owner(self, asked: Mapping[int, Any], answer: Any) -> int | None:
        """The number of the request that is answered so, among these; `None`: of none of them."""


class Checksum:
    """Asks for `checksum`."""

    def draw(self, chance: np.random.Generator, most: int) -> Array:
        """Fresh rows of one size."""
        size = draw_size(chance)
        count = int(chance.integers(1, max(2, min(most, _WHOLE // (size + 1)))))
        return chance.integers(0, 256, (count, size), np.uint8)

    def inputs(self, numbers: list[int], rows: Array) -> dict[str, Array]:
        """The numbers and the data."""
        return {"number": np.array(numbers, np.uint64), "data": rows}

    def row_of(self, whole: dict[str, Array], at: int) -> dict[str, Array]:
        """Of every tensor."""
        return {name: array[at] for name, array in whole.items()}

    def is_right(self, number: int, row: Array, answer: dict[str, Array]) -> bool:
        """To the last bit."""
        return is_right(number, row, answer)

    def owner(self, asked: Mapping[int, Array], answer: dict[str, Array]) -> int | None:
        """Answers say themselves whose they are."""
        number = int(answer["number"])
        return number if number in asked else None


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
